"""Which engine is chosen, and in which precision. test_cache.py has the storage of graphs."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_models import info_of, model_of

import vitreous
from vitreous.checkpoint.model_file import save_model
from vitreous.engines import choose, openvino_engine
from vitreous.errors import ConfigError, MissingExtraError

pytest.importorskip("openvino", reason="openvino is not installed: pip install -e '.[dev]'")


class Opened:
    """A model file opened with OpenVINO: its classifier, and the messages."""

    def __init__(self, file: Path, engine: str = "openvino", precision: str = "float32", **options: object) -> None:
        self.messages: list[str] = []
        self.classifier = vitreous.load(
            file, device="cpu", engine=engine, precision=precision, tell=self.messages.append, **options
        )

    @property
    def converted(self) -> bool:
        return any("converting" in line for line in self.messages)


def test_auto_converts_only_if_it_pays_off(model_file, photos, monkeypatch):
    opened = Opened(model_file, "auto")
    opened.classifier.predict(photos)
    assert opened.classifier.prepare(len(photos)).name == "torch"
    assert not opened.converted
    monkeypatch.setattr(choose.EngineChoice, "_race", lambda *_: 2.0)  # independent of this machine
    saved = opened.classifier._choice._seconds / 2  # per image
    monkeypatch.setattr(choose, "_CONVERTING", 100 * saved)
    monkeypatch.setattr(choose, "_OPENING", 50 * saved)
    assert opened.classifier.prepare(94).name == "torch"  # plus five before
    assert opened.classifier.prepare(96).name == "openvino"
    assert opened.converted
    cached = Opened(model_file, "auto")
    monkeypatch.setattr(choose, "_OPENING", 1e9)  # until the time of an image is known, which load may lengthen
    cached.classifier.prepare(1)
    saved = cached.classifier._choice._seconds / 2
    monkeypatch.setattr(choose, "_OPENING", 50 * saved)
    monkeypatch.setattr(choose, "_CONVERTING", 1e9)
    assert cached.classifier.prepare(49).name == "torch"
    assert cached.classifier.prepare(51).name == "openvino"
    assert not cached.converted


def test_auto_remembers_that_an_engine_was_slower(model_file, monkeypatch):
    monkeypatch.setattr(choose, "_CONVERTING", 0.0)
    monkeypatch.setattr(choose, "_OPENING", 0.0)
    monkeypatch.setattr(choose, "installed", lambda name: name == "openvino")
    races = []
    monkeypatch.setattr(choose.EngineChoice, "_race", lambda *_: races.append(1) or 0.5)
    for _ in range(2):
        assert Opened(model_file, "auto").classifier.prepare(10).name == "torch"
    assert len(races) == 1


def test_the_race_is_won_by_the_faster(model_file):
    choice = Opened(model_file, "auto").classifier._choice
    plain = choice._opener.plain

    class Slow:
        name, precision = "slow", "float32"

        def __call__(self, images):
            for _ in range(20):
                found = plain(images)
            return found

    assert choice._race(plain, Slow(), 2) > 1 > choice._race(Slow(), plain, 2)


@pytest.mark.parametrize("slow", [0, 1])
def test_one_slow_pass_does_not_count(model_file, slow):
    opener = Opened(model_file, "auto").classifier._choice._opener
    passes = []

    def engine(images):
        time.sleep(2.0 * (len(passes) == slow))
        passes.append(images)

    assert opener.seconds(engine) < 1.0
    assert len(passes) == 2


@pytest.mark.parametrize("name", ["auto", "torch"])
def test_float32_is_the_default_for_any_number_of_images(model_file, monkeypatch, name):
    monkeypatch.setattr(choose, "computes_bf16", lambda device: True)
    classifier = vitreous.load(model_file, device="cpu", engine=name)
    assert [classifier.prepare(count).precision for count in (1, 4, 1_000)] == ["float32"] * 3


def test_bf16_is_used_from_the_first_image_on_and_its_tolerance_is_reported(model_file, photos, monkeypatch):
    monkeypatch.setattr(choose, "computes_bf16", lambda device: True)
    for precision in ("auto", "bf16"):
        opened = Opened(model_file, "torch", precision)
        assert [opened.classifier.prepare(count).precision for count in (1, 100)] == ["bf16", "bf16"]
        (line,) = opened.messages
        assert line.startswith("computing in bf16, as asked: probabilities may differ from those in float32 by 0.05")


def test_an_iterator_switches_to_the_faster_engine(model_file, photos, monkeypatch):
    monkeypatch.setattr(choose.EngineChoice, "_race", lambda *_: 2.0)
    monkeypatch.setattr(choose, "_CONVERTING", 1e-9)
    monkeypatch.setattr(choose, "_OPENING", 1e-9)
    classifier = Opened(model_file, "auto").classifier
    used, run = [], classifier._run
    monkeypatch.setattr(classifier, "_run", lambda engine, *rest: used.append(engine.name) or run(engine, *rest))
    found = classifier.logits(iter(photos), batch_size=2)
    assert used == ["openvino"] * 3
    np.testing.assert_allclose(found, Opened(model_file, "torch").classifier.logits(photos), rtol=1e-4, atol=1e-4)


@pytest.fixture
def wrong(monkeypatch):
    """Make the converter use other weights."""
    convert = openvino_engine.convert
    monkeypatch.setattr(openvino_engine, "convert", lambda model, size, folder: convert(model_of(seed=3), size, folder))


@pytest.mark.usefixtures("wrong")
def test_an_engine_that_disagrees_is_an_error_when_named_and_skipped_by_auto(model_file, photos, monkeypatch):
    with pytest.raises(ConfigError, match=r"openvino in float32 disagrees with torch .*: use --engine torch"):
        Opened(model_file).classifier.predict(photos[0])
    monkeypatch.setattr(choose, "_CONVERTING", 0.0)
    monkeypatch.setattr(choose, "_OPENING", 0.0)
    monkeypatch.setattr(choose, "installed", lambda name: name == "openvino")
    auto = Opened(model_file, "auto")
    assert auto.classifier.prepare(10).name == "torch"
    assert any(line.startswith("openvino disagrees with torch") and "torch is used" in line for line in auto.messages)
    before = len(auto.messages)
    auto.classifier.prepare(20)
    assert len(auto.messages) == before


def test_auto_falls_back_to_float32_if_bf16_disagrees(model_file, monkeypatch):
    """With weights whose activations bf16 cannot represent."""
    model = model_of()
    with torch.no_grad():  # two large values that cancel: bf16 loses the difference
        model.head.weight.mul_(0.01)
        model.blocks[0].mlp.fc2.bias.add_(3000)
        model.norm.weight.mul_(100)
    save_model(model_file, model, info_of(model))
    monkeypatch.setattr(choose, "computes_bf16", lambda device: True)
    opened = Opened(model_file, "torch", "auto")
    assert opened.classifier.prepare(10).precision == "float32"
    assert any("torch in bf16 disagrees" in line for line in opened.messages)
    with pytest.raises(ConfigError, match=r"torch in bf16 disagrees .*: use --precision float32"):
        Opened(model_file, "torch", "bf16").classifier.prepare(10)


def test_unknown_names_and_missing_packages_are_refused(model_file, monkeypatch):
    with pytest.raises(ConfigError, match=r"engine is 'openvin', it can be auto, torch.*Did you mean 'openvino'"):
        Opened(model_file, "openvin")
    with pytest.raises(ConfigError, match="precision is 'int3'"):
        Opened(model_file, "torch", "int3")
    with pytest.raises(ConfigError, match="onnxruntime has no bf16"):
        Opened(model_file, "onnxruntime", "bf16")
    monkeypatch.setattr(choose, "installed", lambda name: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitreous\[onnx\]'"):
        Opened(model_file, "onnxruntime")
