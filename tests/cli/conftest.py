"""Fixtures of the command-line tests: the command as a subprocess, a small model file, real images."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.model.config import ViTConfig

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path) -> Command:
    """Run the installed command in a subprocess, in the folder of the test."""

    def run(*words: object, text_in: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).with_name("vitreous")), *map(str, words)],
            cwd=tmp_path,
            input=text_in or "",
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            timeout=120,
        )

    return run


@pytest.fixture(scope="session")
def model_file(tmp_path_factory) -> Path:
    """A model file with ten classes, a temperature, and seeded random weights."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=16, patch_size=4, in_channels=1, num_classes=10, width=32, depth=2, heads=2, mlp_dim=64, init="timm"
    )
    model = build(config)
    with torch.no_grad():
        model.head.weight.mul_(50)  # far from uniform, so that the order of classes means something
    pipeline = EvalPipeline((16, 16), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, model, ModelInfo(CLASSES, pipeline, temperature=1.7))
    return path


@pytest.fixture(scope="session")
def photographs() -> list[np.ndarray]:
    """The two photographs (427, 640, 3) of scikit-learn."""
    return load_sample_images().images


@pytest.fixture
def digits(tmp_path) -> Path:
    """The first 60 handwritten digits of scikit-learn as PNG files, a folder per class."""
    data = load_digits()
    for n in range(60):
        folder = tmp_path / "digits-folder" / CLASSES[data.target[n]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((data.images[n] * 255 / 16).astype(np.uint8)).save(folder / f"{n:03}.png")
    return tmp_path / "digits-folder"
