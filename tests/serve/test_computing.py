"""What an engine process computes, without the process."""

from __future__ import annotations

import pytest

from services import write_model
from vitreous.inspection.explain import explain
from vitreous.predictor import load
from vitreous.serve.engine.computing import Computing
from vitreous.serve.engine.effort import CONVERT

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")


def test_a_map_is_of_the_model_that_predicts(tmp_path, images, monkeypatch):
    """With another engine too, and when the file has been replaced since, as with `--reload false`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = write_model(tmp_path / "insects.safetensors")
    expected = explain(load(path, device="cpu", engine="torch"), images[1], "bee")
    computing = Computing(str(path), {"engine": "onnxruntime", "device": "cpu"}, CONVERT)
    write_model(path, seed=5)
    said, _ = computing.explain(images[1], {"target": "bee", "method": "gradient-attention", "render": "patches"})
    assert said["probability"] == pytest.approx(expected.probability, abs=1e-6)
    assert said["high"] == pytest.approx(float(expected.patches.max()), rel=1e-4)
