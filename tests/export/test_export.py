"""`vitreous convert --to onnx` and `--to torch`: exported files reproduce the model without vitreous."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.cli.main import main
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.export import onnx_file, torch_file
from vitreous.export.whole import WholeModel
from vitreous.model.config import ViTConfig
from vitreous.predictor import load

pytest.importorskip("onnxscript", reason="onnx is not installed: pip install -e '.[dev]'")

CLASSES = ("daisy", "Löwenzahn", "a\udcff\x1b[31m")
VARIANTS = {  # each stem, pooling, position, head and extra token once
    "folder recipe": {"stem": "conv", "pool": "mean"},
    "hybrid": {"stem": {"kind": "resnet", "layers": (1,), "width": 32}, "pool": "map", "position": "relative"},
    "tokens": {
        "position": "rope-2d",
        "registers": 2,
        "attention": {"qk_norm": True},
        "block": {"layer_scale": 0.3},
        "pool": "cls-mean",
        "head": {"kind": "mlp", "hidden": 20},
    },
    "positions before every block": {"position": {"layers": "every"}, "depth": 2, "registers": 1},
    "axial attention": {"attention": "axial", "depth": 2, "pool": "mean"},
    "shared positions": {"position": {"kind": "learned-2d", "layers": "shared"}, "depth": 2, "pool": "mean"},
    "grey, no head": {"num_classes": 0, "in_channels": 1, "stem": "linear", "pool": "seq", "position": "sincos-2d"},
}


def saved(folder: Path, **changes: object) -> Path:
    """Save a model whose weights are all non-zero."""
    small = {"image_size": (32, 48), "patch_size": 8, "num_classes": 3, "width": 32, "depth": 1, "heads": 2}
    torch.manual_seed(0)
    config = ViTConfig(**{**small, "mlp_dim": 64, "init": "timm", **changes})
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    channels = config.in_channels
    constants = PreprocessConfig(mean=(0.5, 0.4, 0.3)[:channels], std=(0.2, 0.3, 0.1)[:channels], crop_ratio=0.9)
    info = ModelInfo(
        CLASSES[: config.num_classes], EvalPipeline((32, 48), channels, constants), 1.7, {"recipe": "folder"}
    )
    save_model(folder / "model.safetensors", model, info)
    return folder / "model.safetensors"


def convert(*words: object) -> int:
    return main(["convert", *map(str, words)])


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize(("form", "module", "name"), [("onnx", onnx_file, "m.onnx"), ("torch", torch_file, "m.pt2")])
def test_exported_outputs_equal_the_model(tmp_path, capfd, form, module, name, changes):
    source = saved(tmp_path, **changes)
    assert convert(source, tmp_path / name, "--to", form) == 0
    told = capfd.readouterr().err
    assert "on photographs and noise, together and alone: largest difference" in told
    assert told.endswith(f"wrote {tmp_path / name}\n")
    classifier = load(source, device="cpu", engine="torch")
    photos = [*load_sample_images().images, *(image[:200] for image in load_sample_images().images)]
    pixels = np.stack([classifier.pipeline.pixels(Image.fromarray(photo)) for photo in photos])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    _, words, outputs = module.read(tmp_path / name, [images, images[:3], images[:1]])
    features = classifier.embed(photos)
    for count, found in zip((4, 3, 1), outputs, strict=True):
        np.testing.assert_allclose(found[-1], features[:count], rtol=1e-4, atol=1e-4)
        if classifier.classes:
            np.testing.assert_allclose(found[1], classifier.logits(photos[:count]), rtol=1e-4, atol=1e-4)
            tops = [dict(each.top) for each in classifier.predict(photos[:count])]
            expected = [[top[label] for label in classifier.classes] for top in tops]
            np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)
    assert tuple(json.loads(words["classes"])) == classifier.classes
    assert json.loads(words["pipeline"]) == classifier.pipeline.to_dict()
    assert float(words["temperature"]) == 1.7
    assert json.loads(words["provenance"]) == {"recipe": "folder"}
    assert words["outputs"] == ("probabilities, logits, features" if classifier.classes else "features")
    channels = classifier.pipeline.channels
    assert words["input"].startswith(f"images: uint8, B x {channels} x 32 x 48, {'RGB' if channels == 3 else 'grey'}")
    assert sorted(os.listdir(tmp_path)) == sorted([name, "model.safetensors"])
    assert str(Path(__file__).parents[2]).encode() not in (tmp_path / name).read_bytes()  # no paths of this machine


ALONE = """
import sys
sys.modules["vitreous"] = None
import numpy, onnxruntime, torch
images = numpy.full((5, 3, 32, 48), 77, numpy.uint8)
found = onnxruntime.InferenceSession("onnx/model.onnx").run(["probabilities"], {"images": images})[0]
other = torch.export.load("m.pt2").module()(torch.from_numpy(images))[0].detach().numpy()
print(found.shape, abs(found - other).max() < 1e-5, abs(found.sum(1) - 1).max() < 1e-5)
"""


def test_exported_files_run_without_vitreous(tmp_path, monkeypatch):
    source = saved(tmp_path, stem="conv", pool="mean")
    monkeypatch.setattr(onnx_file, "_MAX_BYTES", 1)  # forces a second file
    assert convert(source, tmp_path / "onnx", "--to", "onnx") == 0
    assert sorted(os.listdir(tmp_path / "onnx")) == ["model.onnx", "model.onnx.data"]
    assert convert(source, tmp_path / "m.pt2", "--to", "torch") == 0
    run = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout == "(5, 3) True True\n", run.stderr


def test_export_at_another_size(tmp_path):
    source = saved(tmp_path, stem="conv", pool="mean")
    assert convert(source, tmp_path / "m.pt2", "--to", "torch", "--image-size", "48x32") == 0
    _, words, outputs = torch_file.read(tmp_path / "m.pt2", [torch.zeros(1, 3, 48, 32, dtype=torch.uint8)])
    assert json.loads(words["pipeline"])["size"] == [48, 32]
    assert outputs[0][0].shape == (1, 3)


def test_wrong_outputs_are_not_kept(tmp_path, capfd, monkeypatch):
    source = saved(tmp_path)
    forward = WholeModel.forward
    monkeypatch.setattr(WholeModel, "forward", lambda self, images: forward(self, images.flip(0)))
    assert convert(source, tmp_path / "m.pt2", "--to", "torch") == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("vitreous: the written file gives other numbers, run by torch")
    assert error.endswith("above 3e-05; nothing was kept")
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_missing_package_is_named_first(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(onnx_file, "PACKAGES", ("onnxruntime", "no_such_package"))
    assert convert(tmp_path / "gone", tmp_path / "m.onnx", "--to", "onnx") == 1
    assert capfd.readouterr().err == "vitreous: --to onnx needs no_such_package: pip install 'vitreous[onnx]'\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("m.pt2", "--to", "onnx"), 2, "does not fit --to onnx: give a folder or a file ending in .onnx"),
        (("m.onnx", "--to", "torch"), 2, "does not fit --to torch: give a folder or a file ending in .pt2"),
        (("m.onnx", "--to", "onx"), 2, "Did you mean 'onnx'"),
        (("m.pth", "--to", "torchvision"), 1, "not square. `--to onnx` and `--to torch` take any model"),
        (("t", "--to", "timm"), 1, "stem conv. `--to onnx` and `--to torch` take any model"),
        (("there.onnx", "--to", "onnx"), 2, "'there.onnx' exists already: --overwrite replaces it"),
        ((".", "--to", "onnx", "--overwrite"), 2, "'.' contains the source: name another destination"),
        (("there.onnx", "--to", "onnx", "--drop", "head", "--json", "there.onnx"), 2, "exists already"),
    ],
)
def test_usage_errors_are_one_line(tmp_path, capfd, monkeypatch, words, code, said):
    source = saved(tmp_path, stem="conv", pool="mean")
    (tmp_path / "there.onnx").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert convert(source.name, *words) == code
    error = capfd.readouterr().err
    assert said in error
    assert error.splitlines()[-1].startswith("vitreous: ")
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "there.onnx"]
    assert (tmp_path / "there.onnx").read_text() == "mine"


@pytest.mark.parametrize("name", ["m.onnx", "m.pt2"])
def test_exported_file_as_a_model_is_explained(tmp_path, capfd, name):
    (tmp_path / name).write_bytes(bytes(100))
    assert main(["predict", str(tmp_path / name), "x.png"]) == 1
    assert "is an exported model, which" in capfd.readouterr().err


def test_url_as_a_model_states_the_remedy(capfd):
    assert main(["predict", "https://example.org/model.safetensors", "x.png"]) == 1
    assert "is a URL, and URLs are not fetched: download the file first" in capfd.readouterr().err
