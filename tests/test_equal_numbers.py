"""One image and one model give the same numbers from every call on one machine, to the tolerance that is stated."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import vitreous
import vitreous.checkpoint.model_file
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.cli.main import main
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.engines import choose
from vitreous.engines.check import TOLERANCE
from vitreous.engines.opening import CONVERTERS, installed
from vitreous.model.config import ViTConfig

STATED = TOLERANCE["float32"]
CLASSES = ("cat", "dog", "eel", "fox", "gnu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model with the stem and pooling of the recipe for folders, and seven photographs of unlike sizes, as JPEGs."""
    folder = tmp_path_factory.mktemp("equal")
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=64, patch_size=8, num_classes=5, width=64, depth=2, heads=4, mlp_dim=128, stem="conv", pool="mean"
    )
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        model.head.weight.mul_(5)
    pipeline = EvalPipeline((64, 64), 3, PreprocessConfig(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)))
    save_model(folder / "model.safetensors", model, ModelInfo(CLASSES, pipeline, temperature=0.8))
    (folder / "photos").mkdir()
    china, flower = load_sample_images().images
    parts = (china, flower, china[:200], flower[:, :200], china[:, ::-1], flower[100:164, 50:114], china[::3, ::2])
    for n, part in enumerate(parts):
        Image.fromarray(np.ascontiguousarray(part)).save(folder / "photos" / f"{n}.jpg")
    return folder


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    """A cache folder for the module, so that each engine is converted once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


@pytest.fixture
def bf16_is_there(monkeypatch):
    """What made the numbers of a batch other than those of an image before bf16 had to be asked for."""
    monkeypatch.setattr(choose, "computes_bf16", lambda device: True)


def chances(predictions) -> np.ndarray:
    """Probabilities (n, K) in the order of the classes."""
    return np.asarray([[dict(each.top)[name] for name in CLASSES] for each in predictions])


def assert_equal(found: np.ndarray, expected: np.ndarray, scale: np.ndarray | float = 1.0) -> None:
    assert found.shape == expected.shape
    assert (np.abs(found - expected) <= STATED.probabilities * scale).all()


@pytest.fixture(scope="module")
def paths(folder) -> list[str]:
    return sorted(map(str, (folder / "photos").iterdir()))


@pytest.fixture(scope="module")
def alone(folder, paths) -> tuple[np.ndarray, np.ndarray]:
    """What each image gets by itself, by the model and the pipeline as they are: probabilities and features."""
    model, info = vitreous.checkpoint.model_file.load_model(folder / "model.safetensors")
    with torch.inference_mode():
        images = [info.pipeline(Image.open(path))[None] for path in paths]
        features = torch.cat([model(image, "features") for image in images])
        logits = torch.cat([model(image) for image in images])
    return (logits / 0.8).softmax(1).numpy(), features.numpy()


@pytest.mark.usefixtures("bf16_is_there")
def test_python_gives_one_image_the_same_numbers_from_every_call(folder, paths, alone):
    expected, features = alone
    classifier = vitreous.load(folder / "model.safetensors", device="cpu")
    for batch_size in (1, 2, 3, 7, 64):  # with last batches of every kind
        assert_equal(chances(classifier.predict(paths, batch_size=batch_size)), expected)
    assert_equal(chances(classifier.predict(iter(paths), batch_size=4)), expected)
    assert_equal(chances(classifier.predict_stream(paths[::-1], batch_size=2))[::-1], expected)
    assert_equal(chances([classifier.predict(path) for path in paths]), expected)
    largest = np.abs(features).max(1, keepdims=True)
    for found in (
        classifier.embed(paths),
        classifier.embed(paths, batch_size=3),
        np.stack([classifier.embed(p) for p in paths]),
    ):
        assert_equal(found, features, largest)


def test_ways_of_giving_an_image_give_the_same_bits(folder, paths):
    classifier = vitreous.load(folder / "model.safetensors", device="cpu", engine="torch")
    for path in paths:
        array = np.asarray(Image.open(path))
        ways = (path, Path(path), Path(path).read_bytes(), io.BytesIO(Path(path).read_bytes()), Image.open(path), array)
        tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
        first, *others = (classifier.predict(way).top for way in (*ways, array / 255, tensor, tensor / 255))
        assert others == [first] * len(others)


@pytest.mark.parametrize("engine", ["torch", *CONVERTERS])
def test_engines_agree_on_photographs_in_every_batch_size(folder, paths, alone, engine):
    if engine != "torch" and not installed(engine):
        pytest.skip(f"{engine} is not installed: pip install -e '.[dev]'")
    expected, features = alone
    classifier = vitreous.load(folder / "model.safetensors", device="cpu", engine=engine)
    for batch_size in (1, 4, 7):
        assert_equal(chances(classifier.predict(paths, batch_size=batch_size)), expected)
        assert_equal(classifier.embed(paths, batch_size), features, np.abs(features).max(1, keepdims=True))
    assert classifier.prepare(1).name == engine


def by_command(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


@pytest.mark.usefixtures("bf16_is_there")
def test_the_command_line_gives_the_same_numbers_whether_a_graph_is_there_or_not(
    folder, paths, alone, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected, features = alone
    model, photos = folder / "model.safetensors", folder / "photos"
    kept = len(CONVERTERS) if all(map(installed, CONVERTERS)) else 0
    for run, converts in enumerate(
        (False, True, True)
    ):  # without a graph, with one converted now, with one that is there
        monkeypatch.setattr(choose, "_CONVERTING", 0.0 if converts else 1e9)
        monkeypatch.setattr(choose, "_OPENING", 0.0 if converts else 1e9)
        by_command("embed", model, photos, "-o", tmp_path / f"{run}.npy", "--device=cpu")
        assert_equal(np.load(tmp_path / f"{run}.npy"), features, np.abs(features).max(1, keepdims=True))
        by_command("predict", model, photos, "--format=jsonl", "-o", tmp_path / f"{run}.jsonl", "--device=cpu")
        lines = [json.loads(line) for line in (tmp_path / f"{run}.jsonl").read_text().splitlines()]
        assert {line["precision"] for line in lines} == {"float32"}
        found = [[{e["label"]: e["probability"] for e in line["top"]}[name] for name in CLASSES] for line in lines]
        assert_equal(np.asarray(found), expected)
        by_command(
            "predict", model, *paths, "--format=csv", "-o", tmp_path / f"{run}.csv", "--device=cpu", "--batch-size=2"
        )
        rows = list(csv.DictReader((tmp_path / f"{run}.csv").read_text().splitlines()))
        assert_equal(np.asarray([float(row["probability"]) for row in rows]), expected.max(1))
    assert bool(kept) == (tmp_path / "cache").exists()
    assert "bf16" not in capfd.readouterr().err


def test_bf16_is_stated_before_anything_else_and_within_its_tolerance(folder, alone, tmp_path, capfd):
    file = tmp_path / "p.jsonl"
    words = ("predict", folder / "model.safetensors", folder / "photos", "--format=jsonl", "-o", file)
    by_command(*words, "--device=cpu", "--engine=torch", "--precision=bf16")
    first = capfd.readouterr().err.splitlines()[0]
    assert first.startswith("computing in bf16, as asked: probabilities may differ from those in float32 by 0.05, feat")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = [[{e["label"]: e["probability"] for e in line["top"]}[name] for name in CLASSES] for line in lines]
    apart = np.abs(np.asarray(found) - alone[0]).max()
    assert STATED.probabilities < apart <= TOLERANCE["bf16"].probabilities


def test_evaluate_sees_what_predict_sees(folder, paths, alone, tmp_path, capfd):
    for n, path in enumerate(paths):
        (tmp_path / "set" / CLASSES[n % 5]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / CLASSES[n % 5] / f"{n}.jpg").write_bytes(Path(path).read_bytes())
    by_command("evaluate", folder / "model.safetensors", tmp_path / "set", "--json=-", "--batch-size=3", "--device=cpu")
    found = json.loads(capfd.readouterr().out)["calibration"]["log_loss_after"]
    loss = -np.log([alone[0][n, n % 5] for n in range(len(paths))]).mean()
    assert found == pytest.approx(loss, rel=1e-4)
