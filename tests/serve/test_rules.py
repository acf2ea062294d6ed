"""Rules that need no service: when a queue says no, what models are called, which keys are known."""

from __future__ import annotations

import os
import time

import pytest

from vitreous.client import Client
from vitreous.client.images import to_bytes
from vitreous.errors import DataError, UsageError
from vitreous.serve.engine.admission import Admission
from vitreous.serve.engine.engine_process import Pace
from vitreous.serve.engine.model_stamp import WEIGHTS, model_stamp
from vitreous.serve.http.keys import KeyFile, new_key
from vitreous.serve.metrics import Metrics
from vitreous.serve.settings import parse_models

PACE = Pace(one=0.02, per_image=0.01, largest=6)


def test_bursts_are_taken_up_to_the_hard_limit():
    admission = Admission(100)
    assert admission.takes(500, PACE), "an idle model takes any request"
    admission.enter(90)
    assert admission.takes(10, PACE)
    assert not admission.takes(11, PACE)
    assert admission.retry_after(PACE) == 1
    assert admission.retry_after(Pace(1.0, 0.5, 2)) == 45


def test_a_standing_queue_is_shortened_until_it_has_been_empty():
    admission = Admission(100)
    admission.enter(20)
    for _ in range(8):
        admission.answered(8 * PACE.one + 0.01, PACE)
        time.sleep(0.05)
    assert admission.is_overloaded
    assert admission.allowed(PACE) == 2 * PACE.largest
    assert not admission.takes(1, PACE)
    admission.answered(0.01, PACE)  # one fast answer does not end it
    assert admission.is_overloaded
    admission.leave(20)
    assert not admission.is_overloaded
    assert admission.takes(50, PACE)


def test_a_queue_that_stays_too_long_is_shortened_before_any_answer():
    admission = Admission(100)
    admission.enter(20)  # 0.2 s of work, more than 8 x 20 ms
    assert admission.takes(1, PACE)
    time.sleep(0.3)
    assert not admission.takes(1, PACE)
    short = Admission(100)
    short.enter(15)
    for _ in range(3):
        assert short.takes(1, PACE)
        time.sleep(0.15)


def test_late_answers_with_fast_ones_between_are_no_overload():
    admission = Admission(100)
    admission.enter(20)
    for _ in range(8):
        admission.answered(1.0, PACE)
        time.sleep(0.05)
        admission.answered(0.01, PACE)
    assert not admission.is_overloaded


def test_models_are_called_after_their_files_or_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/photos 1").mkdir(parents=True)
    words = ["runs/photos 1", "a/b.safetensors", "x=a/b.safetensors", "runs/photos 2/model.safetensors", "timm/vit_s"]
    names = [each.name for each in parse_models(words, {})]
    assert names == ["photos-1", "b", "x", "photos-2", "vit_s"]
    with pytest.raises(UsageError, match="two models are called 'b'"):
        parse_models(["a/b.onnx", "c/b.onnx"], {})
    with pytest.raises(UsageError, match="is no name for a model"):
        parse_models(["a b=c.onnx"], {})


def test_keys_are_read_again_and_a_damaged_file_is_named(tmp_path):
    file = tmp_path / "keys"
    first = new_key(file, "a")
    keys = KeyFile(file)
    second = new_key(file, "b")
    assert first != second
    assert [keys.owner(first), keys.owner(second), keys.owner(""), keys.owner("vit_x")] == ["a", "b", None, None]
    file.write_text("# nobody\n")
    os.utime(file, ns=(1, 1))
    assert keys.owner(first) is None
    file.unlink()
    assert [keys.owner(first), keys.owner(first)] == [None, None]  # a file that is gone has no keys, at any request
    file.write_text("a nonsense\n")
    with pytest.raises(UsageError, match="is no key"):
        KeyFile(file)
    with pytest.raises(UsageError, match="the name of a key is"):
        new_key(tmp_path / "other", "a b")
    file.write_text(f"a {'0' * 64}")  # written by hand, without a line feed
    assert KeyFile(file).owner(new_key(file, "b")) == "b"


@pytest.mark.parametrize("url", ["http://[::1", "http://host:80a", "http://host:99999", "ftp://host", "http://"])
def test_what_is_no_address_of_a_service_is_refused_at_once(url):
    with pytest.raises(UsageError, match="is not the address of a service"):
        Client(url)
    with pytest.raises(UsageError, match="characters that no header can hold"):
        Client("http://127.0.0.1:8000", key="vit_x\nHost: evil")


def test_drift_is_the_confidence_less_what_the_file_expects():
    metrics = Metrics()
    metrics.model_loaded("m", {"classes": ["a"], "scores": {"val": {"top1": 0.7}, "test": {"top1": 0.8}}})
    for _ in range(10):
        metrics.predicted("m", {"label": "a", "probability": 0.5})
    text = metrics.exposition(lambda: None).decode()
    assert 'vitreous_confidence_expected{model="m"} 0.8\n' in text
    assert float(text.split('vitreous_confidence_drift{model="m"} ')[1].split()[0]) == pytest.approx(-0.3)
    metrics.model_loaded("n", {"classes": ["a"] * 300, "scores": {}})
    for n in range(1500):
        metrics.predicted("n", {"label": "\udc80", "probability": 0.9 if n < 1000 else 0.6})
    text = metrics.exposition(lambda: None).decode()
    assert float(text.split('vitreous_confidence_expected{model="n"} ')[1].split()[0]) == pytest.approx(0.9)
    assert float(text.split('vitreous_confidence_drift{model="n"} ')[1].split()[0]) == pytest.approx(-0.15)
    assert 'vitreous_predictions_total{label="(all)",model="n"} 1500.0' in text


def test_a_new_version_has_no_confidence_of_the_one_before():
    metrics = Metrics()
    metrics.model_loaded("m", {"classes": ["a"], "scores": {"test": {"top1": 0.8}}})
    metrics.predicted("m", {"label": "a", "probability": 0.5})
    assert 'vitreous_confidence_drift{model="m"}' in metrics.exposition(lambda: None).decode()
    metrics.model_loaded("m", {"classes": ["a"], "scores": {}})
    text = metrics.exposition(lambda: None).decode()
    assert "vitreous_confidence_drift{" not in text
    assert "vitreous_confidence_expected{" not in text
    metrics.model_loaded("m", {"classes": ["a"], "scores": {"test": {"top1": 0.9}}})
    assert 'vitreous_confidence_expected{model="m"} 0.9\n' in metrics.exposition(lambda: None).decode()


def test_a_model_that_is_written_anew_is_noticed_whatever_its_files_are_called(tmp_path, monkeypatch):
    from vitreous.checkpoint.untrusted.tensors import SUFFIXES

    assert WEIGHTS == SUFFIXES
    for name in ("open_clip_model.safetensors", "dinov3.pth", "model.npz", "model-00001-of-00002.safetensors"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_bytes(b"old")
        (folder / "config.json").write_text("{}")
        before = model_stamp(str(folder))
        (folder / "notes.txt").write_text("mine")
        assert model_stamp(str(folder)) == before
        (folder / name).write_bytes(b"newer")
        assert model_stamp(str(folder)) != before
    for name in ("model.safetensors", "last.pt", "graph.onnx", "graph.onnx.data"):
        (tmp_path / name).write_bytes(b"old")
    run, graph = model_stamp(str(tmp_path)), model_stamp(str(tmp_path / "graph.onnx"))
    (tmp_path / "last.pt").write_bytes(b"state of a training")
    assert model_stamp(str(tmp_path)) == run
    (tmp_path / "graph.onnx.data").write_bytes(b"newer")
    assert model_stamp(str(tmp_path / "graph.onnx")) != graph
    monkeypatch.chdir(tmp_path)
    assert model_stamp("timm/vit_small_patch16_224") == ()


def test_each_label_of_an_image_with_several_is_counted():
    metrics = Metrics()
    metrics.model_loaded("m", {"classes": ["cat", "dog"], "scores": {}})
    for labels in (["cat", "dog"], ["dog"], []):
        metrics.predicted("m", {"label": "cat", "labels": labels, "probability": 0.9})  # "cat" is the most probable
    text = metrics.exposition(lambda: None).decode()
    for label, count in {"cat": 1, "dog": 2, "(none)": 1}.items():
        assert f'vitreous_predictions_total{{label="{label}",model="m"}} {count}.0\n' in text


def test_the_client_does_not_wait_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe"):
        to_bytes(tmp_path / "pipe")
