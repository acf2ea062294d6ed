"""The page of an inspection: its numbers are the model's, it runs alone, and a reader with a keyboard sees the same."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from browser import browser
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.inspection.explain import explain
from vitreous.model.config import ViTConfig
from vitreous.predictor import Classifier
from vitreous.report.inspection.attention import StoredAttention, store
from vitreous.report.inspection.page import page
from vitreous.report.inspection.results import Inspection

EVIL = ("</script><script>alert(1)</script>", '"><img src=http://x onerror=alert(1)>', "\u202egpj", "d")


def classifier_of(registers: int = 2, **options) -> Classifier:
    torch.manual_seed(3)
    plain = {"image_size": (32, 48), "patch_size": 8, "width": 32, "depth": 3, "heads": 2, "mlp_dim": 64}
    config = ViTConfig(num_classes=4, init="timm", pool="cls", registers=registers, **(plain | options))
    model = build(config).eval()
    with torch.no_grad():
        model.head.weight.normal_()
        for block in model.blocks:
            block.attn.qkv.weight.mul_(8)  # attention far from uniform
    size = model.config.image_size
    fit = PreprocessConfig(fit="pad", mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1))
    return Classifier(model, ModelInfo(EVIL, EvalPipeline(size, 3, fit)), device="cpu")


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return classifier_of()


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (50, 70, 3), np.uint8)) for _ in range(2)]


@pytest.fixture(scope="module")
def result(classifier, images) -> Inspection:
    return vitreous.inspect(classifier, images, methods=["gradient-attention", "legrad"], quiet=True)


@pytest.fixture(scope="module")
def text(result) -> str:
    return "".join(page(result))


def attention(classifier: Classifier, image: Image.Image) -> np.ndarray:
    """Softmax of the scaled scores in float64, of all blocks, (L, H, T, T)."""
    values = classifier.model.intermediates(classifier.pipeline(image)[None])
    found = []
    for layer in values.layers:
        q, k = layer.queries[0].double().detach().numpy(), layer.keys[0].double().detach().numpy()
        scores = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]))
        found.append(scores / scores.sum(-1, keepdims=True))
    return np.stack(found)


def of_page(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def decoded(data: dict) -> np.ndarray:
    """The weights of an image as a reader of the page's format decodes them."""
    T = len(data["prefix"]) + data["grid"][0] * data["grid"][1]
    shape = (len(data["layers"]), 1 + len(data["heads"]), T)
    raw = base64.b64decode(data["weights"])
    weights = np.frombuffer(raw, np.uint8, int(np.prod(shape)) * T).reshape(*shape, T)
    scales = np.frombuffer(raw, "<f4", offset=weights.size).reshape(shape)
    return weights / 255.0 * scales[..., None]


def test_attention_in_the_page_is_that_of_the_model(classifier, images, text):
    for image, data in zip(images, of_page(text)["images"], strict=True):
        exact = attention(classifier, image)
        exact = np.concatenate([exact.mean(1, keepdims=True), exact], 1)
        found = decoded(data)
        assert data["prefix"] == ["class token", "register 1", "register 2"]
        assert found.shape == exact.shape == (3, 3, 27, 27)
        assert np.all(np.abs(found - exact) <= exact.max(-1, keepdims=True) / 510 + 1e-6)


def test_json_has_the_arrays(classifier, images, result):
    document = json.loads(json.dumps(result.to_dict()))
    for image, one in zip(images, document["images"], strict=True):
        for each in one["maps"]:
            alone = explain(classifier, image, method=each["method"])
            np.testing.assert_allclose(each["patches"], alone.patches, rtol=1e-5, atol=1e-7)
            assert each["target"] == alone.label
        exact = attention(classifier, image)[:, :, 0, 3:].reshape(3, 2, 4, 6)  # the class token is pooled
        np.testing.assert_allclose(one["attention_by_block_and_head"], exact, atol=1e-6)
    assert [each["method"] for each in document["images"][0]["maps"]] == ["gradient-attention", "legrad", "rollout"]
    assert set(document["measures"]) == {"filters", "position_similarity", "attention_distance", "token_norms"}


@pytest.mark.parametrize(
    ("maps", "layers", "heads", "joined"),
    [(99, 3, 2, 1), (9, 3, 2, 1), (8, 3, 1, 1), (3, 3, 0, 1), (2, 3, 2, 2)],
)
def test_attention_fits_a_limit(classifier, images, maps, layers, heads, joined):
    values = classifier.model.intermediates(classifier.pipeline(images[0])[None])
    limit = maps * (27 * 27 + 4 * 27)
    stored = store(values, limit, True)
    assert (len(stored.layers), len(stored.heads), stored.joined) == (layers, heads, joined)
    assert stored.weights.nbytes + stored.scales.nbytes <= limit
    assert bool(stored.left_out) == ((heads, joined) != (2, 1))
    assert np.allclose(stored.values().sum(-1), 1, atol=0.05)


def test_joined_patches_are_sums_of_keys_and_means_of_queries(images):
    classifier = classifier_of(registers=0, image_size=(40, 24))  # 5 x 3 patches: the last row and column are halves
    values = classifier.model.intermediates(classifier.pipeline(images[0])[None])
    stored: StoredAttention = store(values, 3 * (16 * 16 + 4 * 16) - 1, True)
    assert (stored.joined, stored.grid) == (2, (3, 2))
    exact, cell = attention(classifier, images[0])[:, 1], [0]
    cell += [1 + (row // 2) * 2 + column // 2 for row in range(5) for column in range(3)]
    for layer, found in zip(exact, stored.values()[:, 1 + stored.heads.index(1)], strict=True):
        expected = np.zeros((7, 7))
        for query in range(16):
            for key in range(16):
                expected[cell[query], cell[key]] += layer[query, key] / cell.count(cell[query])
        assert np.abs(found - expected).max() < 1 / 400


def test_the_page_is_small_and_fetches_nothing(text):
    assert len(text) < 600_000
    outside = re.findall(r'(?:src|href)="(?!data:|#)[^"]*"|url\((?!data:)[^)]*\)|@import', text)
    assert not outside
    assert "default-src 'none'" in text
    assert not re.search(r"<img(?![^>]*\balt=)", text)
    assert text.count("<script") == 2  # names of classes add none


@pytest.mark.parametrize("size", [(64, 128), (192, 224)])
def test_eight_images_stay_below_6_mb(size, tmp_path):
    width, side = size
    options = {"patch_size": 8 if side < 200 else 16, "width": width, "depth": 12, "heads": 4}
    classifier = classifier_of(image_size=(side, side), **options)
    rng = np.random.default_rng(1)
    images = [Image.fromarray(rng.integers(0, 256, (300, 400, 3), np.uint8)) for _ in range(8)]
    vitreous.inspect(classifier, images, out=tmp_path / "x", quiet=True)
    assert (tmp_path / "x" / "inspection.html").stat().st_size <= 6_000_000


def test_pointer_and_keyboard_show_attention(classifier, images, text, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    exact = attention(classifier, images[0])
    exact = np.concatenate([exact.mean(1, keepdims=True), exact], 1)  # L 1+H T T

    def expect(block: int, head: int, query: int) -> None:
        row = exact[block, head, query, 3:]
        drawn = base64.b64decode(view.js("document.querySelector('.viewer canvas').toDataURL()").split(",")[1])
        with Image.open(io.BytesIO(drawn)) as png:
            pixels = np.asarray(png.convert("RGB"), int).reshape(24, 3)
        table = (255 * mpl.colormaps["viridis"](np.arange(256))[:, :3]).round()
        shown = np.abs(pixels[:, None] - table).sum(-1).argmin(1) / 255
        assert np.abs(shown - row / row.max()).max() < 0.02
        best = int(row.argmax())
        assert f"most to the patch in row {best // 6 + 1}, column {best % 6 + 1}:" in said()

    def said() -> str:
        return view.js("document.querySelector('.said').textContent")

    profile = tmp_path / "profile"
    profile.mkdir()
    with browser(profile) as view:
        view.open(path)
        expect(2, 0, 0)  # at first, what the class token attends to in the last block
        view.hover(".patches", 4.5 / 6, 1.5 / 4)
        expect(2, 0, 3 + 1 * 6 + 4)
        view.js("document.querySelector('.patches').focus()")
        view.key("ArrowDown")
        view.key("ArrowLeft")
        expect(2, 0, 3 + 2 * 6 + 3)
        view.js("document.querySelector('.block-slider').focus()")
        view.key("ArrowLeft")
        expect(1, 0, 3 + 2 * 6 + 3)
        assert view.js("document.querySelector('.block-slider').getAttribute('aria-valuetext')") == "block 1"
        view.js("document.querySelector('.head-slider').focus()")
        view.key("ArrowRight")
        view.key("ArrowRight")
        expect(1, 2, 3 + 2 * 6 + 3)
        assert "head 1" in said()
        view.js("document.querySelector('.opacity-slider').focus()")
        before = float(view.js("getComputedStyle(document.querySelector('img.map')).opacity"))
        view.key("ArrowRight")
        assert float(view.js("getComputedStyle(document.querySelector('img.map')).opacity")) == before + 0.05
        view.js("document.querySelectorAll('.viewer button')[1].click()")
        expect(1, 2, 1)  # a register
        assert view.complaints == []
        assert view.requests == [path.as_uri()]


def test_files_beside_the_page(classifier, images, tmp_path):
    folder = tmp_path / "out"
    vitreous.inspect(classifier, images[:1], out=folder, quiet=True)
    names = {path.name for path in folder.iterdir()}
    assert {"inspection.html", "inspection.json", "filters.png"} < names
    with Image.open(next(folder.glob("*-gradient-attention.png"))) as overlay:
        assert overlay.size == (70, 50)  # the image's own pixels
    written = json.loads((Path(folder) / "inspection.json").read_text())
    assert written["images"][0]["image_size"] == [50, 70]
