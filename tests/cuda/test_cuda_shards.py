"""A model in shards on one GPU, by the path that several take: it learns, and a plain run continues it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA GPU")


def train(out: Path, *words: str) -> str:
    command = [sys.executable, "-m", "vitreous", "train", "digits", "--device", "cuda", "--out", str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--precision", "float32", "--optim.name", "muon", "--ema", "0.9"),
        ("--precision", "bf16", "--optim.name", "adamw", "--optim.lr", "3e-3", "--model.block.checkpoint", "true"),
        ("--precision", "bf16", "--compile", "true"),
    ],
    ids=" ".join,
)
def test_it_learns_and_is_resumed_in_a_plain_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    told = train(tmp_path / "run", *options, "--epochs", "8", "--strategy", "fsdp")
    assert "a part of the weights (fsdp, about" in told
    assert json.loads((tmp_path / "run" / "report.json").read_text())["scores"]["test"]["top1"] > 0.8
    told = train(tmp_path / "run", *options, "--epochs", "9", "--resume")
    assert "continues from" in told
    assert json.loads((tmp_path / "run" / "report.json").read_text())["scores"]["test"]["top1"] > 0.8
