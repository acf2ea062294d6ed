"""The order of rows in a manifest does not affect a run; changes of the data that do are refused on resume."""

from __future__ import annotations

import dataclasses
import io
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from sklearn.datasets import load_digits

from vitreous.data.config import DataConfig
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig
from vitreous.recipes import recipe
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.config import RunConfig
from vitreous.train.console import Display
from vitreous.train.resume.checkpoint import Checkpoint
from vitreous.train.run import run

TINY = ViTConfig(image_size=8, patch_size=4, in_channels=1, num_classes=10, width=16, depth=1, heads=2, mlp_dim=32)


class Killed(BaseException):
    """Stands for a kill: nothing in the run handles it."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[str]:
    """Rows of a manifest: 120 digits in three classes, one file twice."""
    folder = tmp_path_factory.mktemp("digits")
    digits = load_digits()
    chosen = np.flatnonzero(digits.target < 3)[:120]
    for n in chosen:
        Image.fromarray((digits.images[n] * 15).astype(np.uint8)).save(folder / f"{n}.png")
    labels = ("zero", "one", "two")
    found = [f"{folder / f'{n}.png'},{labels[digits.target[n]]}" for n in chosen]
    return [*found, found[7], found[7]]


def train(table: Path, out: Path, resume: bool = False) -> dict[str, torch.Tensor]:
    """Train for two epochs in steps of 24 images; return the final weights."""
    run_config = RunConfig(
        **{field.name: getattr(recipe("digits"), field.name) for field in dataclasses.fields(RunConfig)}
        | {"data": DataConfig(str(table), val_fraction=0.2), "model": TINY, "epochs": 2, "batch_size": 24}
        | {"out": str(out), "device": "cpu", "loggers": ()}
    )
    run(run_config, view=Display(Console(file=io.StringIO())), resume=resume)
    return read_state(out / "last.ckpt")["model"]


def written(path: Path, rows: list[str]) -> Path:
    path.write_text("path,label\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def killed(monkeypatch):
    """Make runs save after five steps and end there as if killed; a call undoes it."""
    original = Checkpoint.on_train_batch_end

    def end(self, trainer, pl_module, outputs, batch, batch_idx):
        original(self, trainer, pl_module, outputs, batch, batch_idx)
        if trainer.global_step == 5:
            self.save(wait=True)
            raise Killed

    monkeypatch.setattr(Checkpoint, "on_train_batch_end", end)
    yield lambda: monkeypatch.setattr(Checkpoint, "on_train_batch_end", original)
    monkeypatch.undo()


def permuted(rows: list[str], seed: int) -> list[str]:
    """Shuffle the rows, and with them the order in which classes appear."""
    return random.Random(seed).sample(rows, len(rows))


def test_rows_in_another_order_resume_to_the_same_bits(rows, tmp_path, killed, monkeypatch):
    monkeypatch.setattr("vitreous.train.run.select_weights", lambda this: (_ for _ in ()).throw(Killed()))
    table = written(tmp_path / "m.csv", rows)
    with pytest.raises(Killed):
        train(table, tmp_path / "broken")
    killed()
    with pytest.raises(Killed):
        train(table, tmp_path / "whole")
    written(table, permuted(rows, 0))
    with pytest.raises(Killed):
        train(table, tmp_path / "broken", resume=True)
    with pytest.raises(Killed):
        train(written(tmp_path / "m.csv", permuted(rows, 1)), tmp_path / "other")
    whole = read_state(tmp_path / "whole" / "last.ckpt")["model"]
    for name in ("broken", "other"):
        ended = read_state(tmp_path / name / "last.ckpt")["model"]
        assert all(torch.equal(ended[key], value) for key, value in whole.items()), name


def test_changed_rows_are_refused(rows, tmp_path, killed):
    table = written(tmp_path / "m.csv", rows)
    with pytest.raises(Killed):
        train(table, tmp_path / "run")
    killed()
    for changed in (
        rows[:-1],  # a missing row
        [*rows, rows[3]],  # a file listed twice
        [rows[0].replace("zero", "two"), *rows[1:]],  # another label
        [rows[0].replace("/", "//", 1), *rows[1:]],  # another name
    ):
        written(table, changed)
        with pytest.raises(
            CheckpointError, match="belongs to a run with different settings: the images or their labels"
        ):
            train(table, tmp_path / "run", resume=True)


def test_a_changed_split_is_refused(rows, tmp_path, killed):
    splits = [("train", "val")[n % 5 == 0] for n in range(len(rows))]
    table = tmp_path / "m.csv"

    def write() -> None:
        cells = [f"{row},{split}" for row, split in zip(rows, splits, strict=True)]
        table.write_text("path,label,split\n" + "\n".join(cells) + "\n")

    write()
    with pytest.raises(Killed):
        train(table, tmp_path / "run")
    killed()
    one = next(n for n in range(1, len(rows)) if splits[n] == "train" and rows[n][-3:] == rows[5][-3:])
    splits[5], splits[one] = splits[one], splits[5]
    write()
    with pytest.raises(CheckpointError, match="the order of the images or their split has changed"):
        train(table, tmp_path / "run", resume=True)


def test_a_state_of_an_earlier_version_is_refused(rows, tmp_path, killed):
    table = written(tmp_path / "m.csv", rows)
    with pytest.raises(Killed):
        train(table, tmp_path / "run")
    killed()
    state = read_state(tmp_path / "run" / "last.ckpt")
    state["identity"]["labels"] = state["identity"].pop("order")
    write_state(tmp_path / "run" / "last.ckpt", state)
    with pytest.raises(CheckpointError, match="the order of the images or their split has changed"):
        train(table, tmp_path / "run", resume=True)
