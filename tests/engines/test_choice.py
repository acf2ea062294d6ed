"""Which engine is chosen, and where graphs are kept: converted once, compared each time, made again when damaged."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from engine_models import info_of, model_of

import vitreous
from vitreous.checkpoint.artifact import save_model
from vitreous.engines import cache, choose, openvino_engine
from vitreous.engines.cache import FOLDER, GraphCache
from vitreous.errors import ConfigError, MissingExtraError, OutputError
from vitreous.predictor import Classifier

pytest.importorskip("openvino", reason="openvino is not installed: pip install -e '.[dev]'")


class Opened:
    """A model file opened with OpenVINO: its classifier, and what was told."""

    def __init__(self, file: Path, engine: str = "openvino", precision: str = "float32", **options: object) -> None:
        self.told: list[str] = []
        self.classifier = vitreous.load(
            file, device="cpu", engine=engine, precision=precision, tell=self.told.append, **options
        )

    @property
    def converted(self) -> bool:
        return any("converting" in line for line in self.told)


def graphs(folder: Path) -> list[Path]:
    return sorted(folder.joinpath(FOLDER).glob("*"))


def test_a_graph_is_converted_once_and_kept_beside_the_file(model_file, home, photos):
    first, second, plain = Opened(model_file), Opened(model_file), Opened(model_file, "torch")
    expected = plain.classifier.logits(photos)
    for opened, converts in ((first, True), (second, False)):
        np.testing.assert_allclose(opened.classifier.logits(photos), expected, rtol=1e-3, atol=1e-3)
        assert opened.converted is converts
    (graph,) = graphs(model_file.parent)
    assert sorted(file.name for file in graph.iterdir()) == ["about.json", "graph.bin", "graph.xml"]
    assert not home.exists()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "gone", "no about.json", "about.json is none", "foreign"])
def test_a_damaged_or_foreign_graph_is_made_again(model_file, photos, damage):
    Opened(model_file).classifier.prepare(1)
    (graph,) = graphs(model_file.parent)
    weights = graph / "graph.bin"
    if damage == "truncated":
        os.truncate(weights, weights.stat().st_size // 2)
    elif damage == "flipped":
        held = bytearray(weights.read_bytes())
        held[len(held) // 2] ^= 0x40
        weights.write_bytes(held)
    elif damage == "gone":
        (graph / "graph.xml").unlink()
    elif damage == "no about.json":
        (graph / "about.json").unlink()
    elif damage == "about.json is none":
        (graph / "about.json").write_text("{" * 10_000)
    else:  # whole, of the right name, and of other weights: only the check picture can tell
        other = model_of(seed=5)
        save_model(model_file.parent / "other.safetensors", other, info_of(other))
        Opened(model_file.parent / "other.safetensors").classifier.prepare(1)
        (foreign,) = (each for each in graphs(model_file.parent) if each.name.startswith("other"))
        shutil.rmtree(graph)
        foreign.rename(graph)
    again = Opened(model_file)
    expected = Opened(model_file, "torch").classifier.logits(photos)
    np.testing.assert_allclose(again.classifier.logits(photos), expected, rtol=1e-3, atol=1e-3)
    assert again.converted
    third = Opened(model_file)
    third.classifier.prepare(1)
    assert not third.converted


def test_new_weights_get_a_new_graph_and_the_old_one_goes(model_file):
    Opened(model_file).classifier.prepare(1)
    before = graphs(model_file.parent)
    model = model_of(seed=9)
    save_model(model_file, model, info_of(model))
    renewed = Opened(model_file)
    renewed.classifier.prepare(1)
    assert renewed.converted
    assert len(graphs(model_file.parent)) == 1
    assert graphs(model_file.parent) != before
    larger = Opened(model_file, image_size=48)
    larger.classifier.prepare(1)
    assert larger.converted
    assert len(graphs(model_file.parent)) == 2  # of one file, for two sizes


def test_models_of_like_names_in_one_folder_keep_their_graphs(tmp_path, home):
    folder = tmp_path / "models"
    folder.mkdir()
    for seed, name in enumerate(("best-ema.safetensors", "best.safetensors")):
        model = model_of(seed=seed)
        save_model(folder / name, model, info_of(model))
        Opened(folder / name).classifier.prepare(1)
    assert [graph.name.split("-openvino-")[0] for graph in graphs(folder)] == ["best-ema", "best"]


def test_a_folder_keeps_the_graph_of_the_only_weights_in_it(tmp_path, home):
    model = model_of()
    save_model(tmp_path / "best.safetensors", model, info_of(model))
    Opened(tmp_path).classifier.prepare(1)
    assert len(graphs(tmp_path)) == 1


def test_what_a_conversion_left_that_was_killed_goes_with_the_next(model_file):
    place = model_file.parent / FOLDER
    dead, alive = place / ".model-openvino-0123.4567", place / ".model-openvino-0123.89ab"
    for aside in (dead, alive):
        aside.mkdir(parents=True)
        (aside / "graph.bin").write_bytes(bytes(100))
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(dead, (two_days_ago, two_days_ago))
    Opened(model_file).classifier.prepare(1)
    assert alive.exists()
    assert not dead.exists()


def test_a_package_that_was_installed_under_another_name_has_a_version_too():
    assert cache._version("PIL") == PIL.__version__  # of the distribution Pillow
    assert cache._version("numpy") == np.__version__


def test_a_folder_that_cannot_be_written_sends_graphs_to_the_users_own(model_file, home, photos):
    (model_file.parent / FOLDER).write_text("a file where the folder would be")
    first, second = Opened(model_file), Opened(model_file)
    for opened, converts in ((first, True), (second, False)):
        opened.classifier.prepare(1)
        assert opened.converted is converts
    assert len(graphs(home / ".cache/vitreous")) == 1
    shutil.rmtree(home)
    home.write_text("no folder either")
    with pytest.raises(OutputError, match=r"graph for openvino cannot be kept: '.*engine-cache': .*Use --engine torch"):
        Opened(model_file).classifier.predict(photos[0])


def test_several_that_convert_at_once_leave_one_whole_graph(tmp_path):
    made = GraphCache(["x"], None)
    made.places = [tmp_path / FOLDER]
    start = threading.Barrier(4)

    def convert(folder: Path) -> None:
        (folder / "graph.xml").write_text("a" * 100_000)
        start.wait(timeout=30)

    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(made.write("openvino", ("openvino",), convert))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {made.find("openvino", ("openvino",))}
    assert len(found) == 4
    assert len(list((tmp_path / FOLDER).iterdir())) == 1


def test_auto_converts_only_where_it_pays(model_file, photos, monkeypatch):
    opened = Opened(model_file, "auto")
    opened.classifier.predict(photos)
    assert opened.classifier.prepare(len(photos)).name == "torch"
    assert not opened.converted
    monkeypatch.setattr(choose.EngineChoice, "_race", lambda *_: 2.0)  # which is faster is the machine's affair
    saved = opened.classifier._choice._seconds / 2  # a picture
    monkeypatch.setattr(choose, "_CONVERTING", 100 * saved)
    monkeypatch.setattr(choose, "_OPENING", 50 * saved)
    assert opened.classifier.prepare(94).name == "torch"  # and five were seen
    assert opened.classifier.prepare(96).name == "openvino"
    assert opened.converted
    cached = Opened(model_file, "auto")
    cached.classifier.prepare(1)
    saved = cached.classifier._choice._seconds / 2
    monkeypatch.setattr(choose, "_OPENING", 50 * saved)
    monkeypatch.setattr(choose, "_CONVERTING", 1e9)
    assert cached.classifier.prepare(49).name == "torch"
    assert cached.classifier.prepare(51).name == "openvino"
    assert not cached.converted


def test_auto_keeps_what_was_slower_and_remembers_it(model_file, monkeypatch):
    monkeypatch.setattr(choose, "_CONVERTING", 0.0)
    monkeypatch.setattr(choose, "_OPENING", 0.0)
    monkeypatch.setattr(choose, "installed", lambda name: name == "openvino")
    raced = []
    monkeypatch.setattr(choose.EngineChoice, "_race", lambda *_: raced.append(1) or 0.5)
    for _ in range(2):
        assert Opened(model_file, "auto").classifier.prepare(10).name == "torch"
    assert len(raced) == 1


def test_the_race_is_won_by_the_faster(model_file):
    choice = Opened(model_file, "auto").classifier._choice
    plain = choice._open.plain

    class Slow:
        name, precision = "slow", "float32"

        def __call__(self, images):
            for _ in range(20):
                found = plain(images)
            return found

    assert choice._race(plain, Slow(), 2) > 1 > choice._race(Slow(), plain, 2)


@pytest.mark.parametrize("held_up", [0, 1])
def test_one_pass_that_was_held_up_does_not_count(model_file, held_up):
    opener = Opened(model_file, "auto").classifier._choice._open
    passes = []

    def engine(images):
        time.sleep(2.0 * (len(passes) == held_up))
        passes.append(images)

    assert opener.seconds(engine) < 1.0
    assert len(passes) == 2


def test_bf16_waits_for_a_few_pictures(model_file, monkeypatch):
    monkeypatch.setattr(choose, "computes_bf16", lambda device: True)
    classifier = Opened(model_file, "auto", "auto").classifier
    assert classifier.prepare(3).precision == "float32"
    assert classifier.prepare(4).precision == "bf16"


def test_an_iterator_gets_the_faster_engine_as_its_pictures_come(model_file, photos, monkeypatch):
    monkeypatch.setattr(choose, "computes_bf16", lambda device: True)
    classifier = Opened(model_file, "auto", "auto").classifier
    used, run = [], classifier._run
    monkeypatch.setattr(classifier, "_run", lambda engine, *rest: used.append(engine.precision) or run(engine, *rest))
    assert classifier.logits(iter(photos), batch_size=2).shape == (5, 5)
    assert used == ["float32", "bf16", "bf16"]


@pytest.fixture
def wrong(monkeypatch):
    """Have the converter give graphs of other weights."""
    right = openvino_engine.convert
    monkeypatch.setattr(openvino_engine, "convert", lambda model, size, folder: right(model_of(seed=3), size, folder))


@pytest.mark.usefixtures("wrong")
def test_an_engine_that_disagrees_is_an_error_when_named_and_passed_over_by_auto(model_file, photos, monkeypatch):
    with pytest.raises(ConfigError, match=r"openvino in float32 disagrees with torch .*: use --engine torch"):
        Opened(model_file).classifier.predict(photos[0])
    monkeypatch.setattr(choose, "_CONVERTING", 0.0)
    monkeypatch.setattr(choose, "_OPENING", 0.0)
    monkeypatch.setattr(choose, "installed", lambda name: name == "openvino")
    auto = Opened(model_file, "auto")
    assert auto.classifier.prepare(10).name == "torch"
    assert any(line.startswith("openvino disagrees with torch") and "torch is used" in line for line in auto.told)
    told = len(auto.told)
    auto.classifier.prepare(20)
    assert len(auto.told) == told  # once


def test_a_precision_that_disagrees_is_not_the_graphs_fault(model_file, monkeypatch):
    """Weights whose activations bf16 cannot hold: auto falls back to float32, and the graph stays."""
    model = model_of()
    with torch.no_grad():  # two large parts that cancel: bf16 loses what is left
        model.head.weight.mul_(0.01)
        model.blocks[0].mlp.fc2.bias.add_(3000)
        model.norm.weight.mul_(100)
    save_model(model_file, model, info_of(model))
    monkeypatch.setattr(choose, "computes_bf16", lambda device: True)
    opened = Opened(model_file, "torch", "auto")
    assert opened.classifier.prepare(10).precision == "float32"
    assert any("torch in bf16 disagrees" in line for line in opened.told)
    with pytest.raises(ConfigError, match=r"torch in bf16 disagrees .*: use --precision float32"):
        Opened(model_file, "torch", "bf16").classifier.prepare(10)


def test_wrong_names_and_places_are_refused(model_file, monkeypatch):
    with pytest.raises(ConfigError, match=r"engine is 'openvin', it can be auto, torch.*Did you mean 'openvino'"):
        Opened(model_file, "openvin")
    with pytest.raises(ConfigError, match="precision is 'int3'"):
        Opened(model_file, "torch", "int3")
    with pytest.raises(ConfigError, match="onnxruntime has no bf16"):
        Opened(model_file, "onnxruntime", "bf16")
    monkeypatch.setattr(choose, "installed", lambda name: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitreous\[onnx\]'"):
        Opened(model_file, "onnxruntime")


def test_the_graphs_of_a_model_without_a_file_are_the_users(home, photos):
    model = model_of()
    Classifier(model, info_of(model), "cpu", engine="openvino").predict(photos[0])
    (graph,) = graphs(home / ".cache/vitreous")
    assert json.loads((graph / "about.json").read_text())["engine"] == "openvino"
    assert cache.digest(model) != cache.digest(model_of(seed=1))
