"""Fixtures for the tests of engines: a small model in a file, and photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_models import info_of, model_of
from sklearn.datasets import load_sample_images

from converting import one_operator_table  # noqa: F401  fixture
from vitreous.checkpoint.model_file import save_model


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home folder for one test, in which engines have their cache folder."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def model_file(tmp_path, home) -> Path:
    """A model file, alone in its folder."""
    (tmp_path / "run").mkdir()
    model = model_of()
    save_model(tmp_path / "run" / "model.safetensors", model, info_of(model))
    return tmp_path / "run" / "model.safetensors"


@pytest.fixture(scope="session")
def photos() -> list[np.ndarray]:
    china, flower = load_sample_images().images
    return [china, flower, china[:200], flower[:, :200], np.ascontiguousarray(china[:, ::-1])]
