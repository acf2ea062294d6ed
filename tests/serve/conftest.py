"""Fixtures of the tests of services: a small model, images, and services that run."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="a service needs the extra `serve`")
pytest.importorskip("uvicorn", reason="a service needs the extra `serve`")

from services import RunningService, write_model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory) -> Path:
    """The file of the small model."""
    return write_model(tmp_path_factory.mktemp("served") / "insects.safetensors")


@pytest.fixture(scope="session")
def images() -> list[bytes]:
    """Twelve different images, JPEG and PNG of various sizes."""
    rng, found = np.random.default_rng(0), []
    for n in range(12):
        low = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        image = Image.fromarray(low).resize((60 + 7 * n, 50 + 3 * n), Image.Resampling.BICUBIC)
        memory = io.BytesIO()
        image.save(memory, "JPEG" if n % 2 else "PNG")
        found.append(memory.getvalue())
    return found


@pytest.fixture(scope="session")
def local(model_path):
    """The same model without a service."""
    from vitreous.predictor import load

    return load(model_path, device="cpu", engine="torch")


@pytest.fixture(scope="module")
def launch() -> Iterator[Callable[..., RunningService]]:
    """Start services that end with the module."""
    running: list[RunningService] = []

    def start(*words: object, ready: bool = True, **options: Any) -> RunningService:
        service = RunningService(*words, **options)
        running.append(service)
        if ready:
            service.wait_for("ready: ")
        return service

    yield start
    for service in running:
        service.close()


@pytest.fixture(scope="session")
def service(model_path) -> Iterator[RunningService]:
    """A service of the small model, for tests that leave it as it is."""
    running = RunningService(model_path, "--max-body", "2", "--max-images", "8", "--max-pixels", "1000000")
    try:
        running.wait_for("ready: ")
        yield running
    finally:
        running.close()
