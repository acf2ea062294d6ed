"""`predict` gives the same result for every form of an image, and refuses other inputs with a one-line reason."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import DataError
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer
from vitreous.predictions import Failure, Prediction
from vitreous.predictor import Classifier

torch.manual_seed(1)
CONFIG = ViTConfig(image_size=32, patch_size=8, num_classes=2, width=32, depth=1, heads=2, mlp_dim=32, init="timm")
PIPELINE = EvalPipeline((32, 32), 3, PreprocessConfig(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)))
CLASSIFIER = Classifier(VisionTransformer(CONFIG), ModelInfo(("cat", "dog"), PIPELINE), "cpu")
PHOTOS = [photo[:80, :100].copy() for photo in load_sample_images().images]


def png(photo: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(photo).save(buffer, "PNG")
    return buffer.getvalue()


def chw(photo: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(photo).permute(2, 0, 1)


def saved(photo: np.ndarray, folder: Path) -> Path:
    Image.fromarray(photo).save(folder / "photo.png")
    return folder / "photo.png"


ONE = {
    "array": lambda photo, folder: photo,
    "floats": lambda photo, folder: photo / 255,
    "floats of 32 bits": lambda photo, folder: (photo / 255).astype(np.float32),
    "array with alpha": lambda photo, folder: np.dstack((photo, np.full(photo.shape[:2], 255, np.uint8))),
    "PIL image": lambda photo, folder: Image.fromarray(photo),
    "path": saved,
    "text path": lambda photo, folder: str(saved(photo, folder)),
    "bytes": lambda photo, folder: png(photo),
    "bytearray": lambda photo, folder: bytearray(png(photo)),
    "memoryview": lambda photo, folder: memoryview(png(photo)),
    "file in memory": lambda photo, folder: io.BytesIO(png(photo)),
    "file": lambda photo, folder: open(saved(photo, folder), "rb"),  # noqa: SIM115
    "tensor": lambda photo, folder: chw(photo),
    "float tensor": lambda photo, folder: chw(photo) / 255,
    "float64 tensor with gradient": lambda photo, folder: (chw(photo).double() / 255).requires_grad_(),
    "contiguous tensor with alpha": lambda photo, folder: torch.cat(
        (chw(photo), torch.full((1, *photo.shape[:2]), 255, dtype=torch.uint8))
    ).contiguous(),
}


@pytest.mark.parametrize("form", ONE.values(), ids=ONE)
@pytest.mark.filterwarnings("ignore:unclosed file")
def test_every_form_of_one_image_gives_the_same_prediction(tmp_path, form):
    expected = CLASSIFIER.predict(PHOTOS[0]).top
    alone = CLASSIFIER.predict(form(PHOTOS[0], tmp_path))
    assert isinstance(alone, Prediction)
    assert alone.top == expected
    (listed,) = CLASSIFIER.predict([form(PHOTOS[0], tmp_path)])
    (streamed,) = CLASSIFIER.predict_stream(form(PHOTOS[0], tmp_path))
    assert listed.top == streamed.top == expected
    named = form(PHOTOS[0], tmp_path)
    path = getattr(named, "name", None) if hasattr(named, "read") else named
    assert alone.name == (str(path) if isinstance(path, str | Path) else "#0")


@pytest.mark.parametrize("grey", [torch.from_numpy(PHOTOS[0][..., 0]), torch.from_numpy(PHOTOS[0][..., 0])[None]])
def test_a_grey_tensor_is_a_grey_image(grey):
    assert CLASSIFIER.predict(grey).top == CLASSIFIER.predict(PHOTOS[0][..., 0]).top


SEVERAL = {
    "list": lambda: list(PHOTOS),
    "tuple": lambda: tuple(PHOTOS),
    "generator": lambda: (photo for photo in PHOTOS),
    "array": lambda: np.stack(PHOTOS),
    "float array": lambda: np.stack(PHOTOS) / 255,
    "tensor": lambda: torch.stack([chw(photo) for photo in PHOTOS]),
    "float tensor": lambda: torch.stack([chw(photo) for photo in PHOTOS]).to(torch.float32) / 255,
    "mixed": lambda: [png(PHOTOS[0]), chw(PHOTOS[1])],
}


@pytest.mark.parametrize("form", SEVERAL.values(), ids=SEVERAL)
def test_every_form_of_several_images_gives_a_list(form):
    expected = [prediction.top for prediction in CLASSIFIER.predict(PHOTOS)]
    assert [prediction.top for prediction in CLASSIFIER.predict(form())] == expected
    assert [prediction.top for prediction in CLASSIFIER.predict_stream(form())] == expected
    assert CLASSIFIER.embed(form()).shape == (2, 32)


@pytest.mark.parametrize("empty", [[], np.zeros((0, 8, 9, 3), np.uint8), torch.zeros(0, 3, 8, 9)])
def test_no_images_give_an_empty_list(empty):
    assert CLASSIFIER.predict(empty) == []


REFUSED = {
    "None": (None, "^None is not an image: pass a path"),
    "number": (3, "^a value of type int is not an image"),
    "dict": ({"a": PHOTOS[0]}, "^a value of type dict is not an image"),
    "empty path": ("", "^#0: an empty path: pass the path of a file$"),
    "bytes that are not an image": (b"not an image at all" * 100, "^#0: not an image$"),
    "no bytes": (b"", "^#0: empty, 0 bytes$"),
    "list of numbers": ([1, 2], "^2 of 2 images cannot be read: #0: a value of type int is not an image"),
    "list of None": ([None], "^1 of 1 .*#0: None is not an image"),
    "list of lists": ([[PHOTOS[0]]], "#0: a value of type list is not an image"),
    "batch inside a list": ([np.stack(PHOTOS)], r"#0: shape \(2, 80, 100, 3\) is a batch inside a list"),
    "tensor batch inside a list": ([torch.zeros(2, 3, 8, 9)], r"#0: shape \(2, 3, 8, 9\) is a batch inside a list"),
    "tensor of another order": (torch.zeros(80, 100, 3), r"#0: shape \(80, 100, 3\) is not an image: .*channels first"),
    "grey tensors": (torch.zeros(9, 80, 100), r"#0: shape \(9, 80, 100\) is not an image: a tensor must be H x W"),
    "ambiguous tensor": (torch.zeros(3, 80, 3), r"#0: shape \(3, 80, 3\) may have its channels first or last"),
    "ambiguous tensor batch": (torch.zeros(2, 3, 80, 3), r"shape \(2, 3, 80, 3\) may have its channels second or last"),
    "ambiguous array batch": (np.zeros((2, 3, 8, 3)), r"shape \(2, 3, 8, 3\) may have its channels second or last"),
    "tensor batch of another order": (
        torch.zeros(2, 80, 90, 3),
        r"shape \(2, 80, 90, 3\) is not a batch .* \(B, C, H, W\)",
    ),
    "array batch of another order": (
        np.zeros((2, 3, 80, 90)),
        r"shape \(2, 3, 80, 90\) is not a batch .* \(B, H, W, C\)",
    ),
    "five dimensions": (np.zeros((1, 2, 8, 9, 3)), r"shape \(1, 2, 8, 9, 3\)"),
    "tensor of five dimensions": (torch.zeros(1, 2, 3, 8, 9), r"shape \(1, 2, 3, 8, 9\)"),
    "one dimension": (torch.zeros(8), r"shape \(8,\)"),
    "a number as a tensor": (torch.tensor(1.0), r"shape \(\)"),
    "no pixels": (torch.zeros(3, 0, 5), r"shape \(0, 5, 3\)"),
    "normalised": (torch.randn(3, 80, 90), r"float values are in \[-.*they must be in \[0, 1\]"),
    "not finite": (torch.full((3, 8, 9), torch.nan), "float values are in"),
    "whole numbers": (torch.zeros(3, 80, 90, dtype=torch.int64), "values are int64, they must be uint8"),
    "booleans": (torch.zeros(3, 80, 90, dtype=torch.bool), "values are bool, they must be uint8"),
    "sparse": (torch.zeros(80, 90).to_sparse(), "#0: a tensor without plain values"),
    "without data": (torch.zeros(3, 80, 90, device="meta"), "#0: a tensor without plain values"),
    "text file": (io.StringIO("x"), "open in text mode"),
}


@pytest.mark.parametrize(("x", "reason"), REFUSED.values(), ids=REFUSED)
def test_other_inputs_are_refused_in_one_line(x, reason):
    for method in (CLASSIFIER.predict, CLASSIFIER.embed, CLASSIFIER.logits):
        with pytest.raises(DataError, match=reason) as caught:
            method(x)
        assert "\n" not in str(caught.value)


URLS = {
    "https://example.org/cat.jpg": "download it first and give the file",
    "HTTP://example.org/cat.jpg": "download it first",
    "s3://bucket/cat.jpg": "download it first",
    "file:///tmp/cat.jpg": "give the path behind file://",
    "data:image/png;base64,AAAA": "decode it and give the bytes",
}


@pytest.mark.parametrize(("url", "remedy"), URLS.items())
def test_a_url_is_refused_with_the_remedy(url, remedy):
    for x in (url, [url], Path(url)):
        with pytest.raises(DataError, match=f": a URL, and nothing is fetched from the web: {remedy}"):
            CLASSIFIER.predict(x)
    failure, good = CLASSIFIER.predict_stream([url, PHOTOS[0]])
    assert isinstance(failure, Failure)
    assert isinstance(good, Prediction)


def test_an_existing_file_with_the_name_of_a_url_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "https:").mkdir()
    Image.fromarray(PHOTOS[0]).save(tmp_path / "https:" / "cat.png")
    assert CLASSIFIER.predict("https://cat.png").top == CLASSIFIER.predict(PHOTOS[0]).top
