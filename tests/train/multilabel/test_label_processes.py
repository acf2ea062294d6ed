"""A run on images with several labels in two processes: the values of one, whichever way they share the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_label_runs import SMALL, read_rows, write_images

from forked import run_forked
from several import processes
from vitreous.checkpoint.model_file import load_model

COMMAND = """
import sys
from vitreous.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""


def words(manifest: Path, *more: str) -> list[str]:
    options = ("--epochs", "2", "--batch_size", "64", "--ema", "0.9", "--class-weights", "inverse", "--out", "run")
    return ["train", str(manifest), *SMALL, "--aux", "none", *options, *more]  # two processes have no second task


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("colours")
    manifest = write_images(folder, 301)
    done = run_forked(folder, *words(manifest), code=COMMAND)
    assert done.returncode == 0, done.stderr
    return manifest, folder / "run"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_do_what_one_does(alone: tuple[Path, Path], tmp_path: Path, strategy: str) -> None:
    manifest, run = alone
    with processes(tmp_path, 2, *words(manifest, "--strategy", strategy), code=COMMAND) as pair:
        (told, errors), (silent, _) = (process.communicate() for process in pair)
    assert [process.returncode for process in pair] == [0, 0], errors
    assert "2 processes, each with a share of every batch" in told
    assert silent == ""
    tables = [read_rows(folder / "metrics.csv") for folder in (run, tmp_path / "run")]
    for one, two in zip(*tables, strict=True):
        names = [name for name in one if name.startswith("val_") or name == "train_loss"]
        assert [float(two[name]) for name in names] == pytest.approx([float(one[name]) for name in names], abs=1e-4)
    one, two = (load_file(folder / "model.safetensors") for folder in (run, tmp_path / "run"))
    assert all(torch.allclose(one[name], two[name], atol=1e-4) for name in one)
    rules = [load_model(folder / "model.safetensors")[1].multilabel for folder in (run, tmp_path / "run")]
    assert rules[1].thresholds == pytest.approx(rules[0].thresholds, abs=1e-3)
    reports = [json.loads((folder / "report.json").read_text())["scores"] for folder in (run, tmp_path / "run")]
    for name in ("val", "test"):
        assert reports[1][name]["mean_ap"] == pytest.approx(reports[0][name]["mean_ap"], abs=1e-4)
