"""Runs in several real processes over gloo: the same as in one, and ended with a checkpoint when one is killed."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from forked import Forked, run_forked
from vitreous.errors import UsageError
from vitreous.recipes import recipe
from vitreous.runs.state_file import read_state
from vitreous.train.run import run
from vitreous.train.scale.launch import rank_environment
from vitreous.train.scale.place import Place

WORDS = (
    *("train", "digits", "--device", "cpu", "--precision", "float32", "--optim.name", "adamw", "--optim.lr", "1e-3"),
    *("--model.width", "16", "--model.depth", "1", "--model.heads", "2", "--model.mlp_dim", "32", "--epochs", "2"),
    *("--augment.mixup", "0.2", "--augment.cutmix", "1.0", "--batch_size", "256", "--checkpoint_every", "1h"),
)


ALONE = """
import sys
from vitreous.cli.main import main
assert main(sys.argv[1:]) == 0
print("modules:", [name for name in sys.modules if name.startswith("vitreous.train.scale")])
"""


@contextlib.contextmanager
def processes(folder: Path, world: int, *words: str, **environment: str) -> Iterator[list[Forked]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = Place(world, 1, 0, "127.0.0.1", probe.getsockname()[1])
    started = [
        Forked(folder, *WORDS, *words, **(rank_environment(place, place.port, rank) | environment))
        for rank in range(world)
    ]
    try:
        yield started
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def rows(folder: Path) -> list[dict[str, float]]:
    with (folder / "metrics.csv").open(newline="") as file:
        names = ("train_loss", "val_log_loss", "val_top1")
        return [{name: float(row[name]) for name in names} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    done = run_forked(folder, *WORDS, "--out", "run", code=ALONE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("modules: []\n")  # a run in one process imports nothing of this
    return folder / "run"


def test_two_processes_do_what_one_does(alone: Path, tmp_path: Path) -> None:
    with processes(tmp_path, 2, "--out", "run") as pair:
        (told, errors), (silent, _) = (process.communicate() for process in pair)
    assert [process.returncode for process in pair] == [0, 0], errors
    assert "2 processes, each with a share of every batch" in told
    assert silent == ""
    assert rows(tmp_path / "run") == [pytest.approx(each, abs=1e-5) for each in rows(alone)]
    one, two = (read_state(folder / "last.ckpt") for folder in (alone, tmp_path / "run"))
    assert one.keys() == two.keys()
    assert one["identity"] == two["identity"]  # so either may resume the other
    assert one["best"]["labels"].tolist() == two["best"]["labels"].tolist()
    assert torch.allclose(one["best"]["logits"], two["best"]["logits"], atol=1e-4)
    assert sorted(os.listdir(tmp_path / "run")) == sorted(os.listdir(alone))


def test_python_refuses_several_processes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="devices 4 on nodes 2 are 8 processes, which only the command starts"):
        run(dataclasses.replace(recipe("digits"), devices=4, nodes=2, out=str(tmp_path / "run")))


def test_a_killed_process_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    with processes(tmp_path, 3, "--out", "run", "--epochs", "900") as three:
        while not (tmp_path / "run" / "metrics.csv").exists():
            assert all(process.returncode is None for process in three)
            time.sleep(0.05)
        os.kill(three[2].pid, signal.SIGKILL)
        (_, errors), (_, others), _ = (process.communicate() for process in three)
    assert [process.returncode for process in three] == [1, 1, -signal.SIGKILL]
    assert others == ""
    assert errors.count("\n") == 1
    assert f"process 2 (pid {three[2].pid} on " in errors
    assert "was killed or has crashed. A checkpoint of " in errors
    assert "--resume" in errors
    state = read_state(tmp_path / "run" / "last.ckpt")
    assert state["epoch"] >= 1
    assert not state["trained"]
