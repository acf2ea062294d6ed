"""Runs in several real processes over gloo: the same as in one, and ended with a checkpoint when one is killed."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from forked import run_forked
from several import WORDS, processes
from vitreous.errors import UsageError
from vitreous.recipes import recipe
from vitreous.runs.state_file import read_state
from vitreous.train.resume.saving import load_newest
from vitreous.train.run import run

ALONE = """
import sys
from vitreous.cli.main import main
assert main(sys.argv[1:]) == 0
print("modules:", [name for name in sys.modules if name.startswith(("vitreous.train.scale", "vitreous.runs.shards"))])
"""

LOAD = """
import hashlib
from pathlib import Path
import torch
from vitreous.runs.shards import fill
from vitreous.train.resume.saving import load_newest
from vitreous.train.scale.fsdp.layout import Layout
from vitreous.train.scale.place import find_place
from vitreous.train.scale.team import Team
team = Team(find_place(1, 1), on_cuda=False)
layout, digest = Layout(team, torch.device("cpu")), hashlib.sha256()
content = fill(Path("run"), load_newest(Path("run"), print, whole=False)[1].to_dict(), layout.empty)
for weights in (content["model"], content["average"], *content["optimizer"]["state"].values()):
    for name in sorted(weights):
        whole = layout.gather(weights[name])
        digest.update(whole.contiguous().numpy().tobytes())
if team.leads:
    print(digest.hexdigest())
team.close()
"""


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


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    with processes(folder, 4, "--out", "run", "--strategy", "fsdp") as four:
        (told, errors), *_ = (process.communicate() for process in four)
    assert [process.returncode for process in four] == [0] * 4, errors
    assert "4 processes, each with a share of every batch and a part of the weights (fsdp, about" in told
    return folder / "run"


def test_four_processes_with_a_part_of_the_model_each_do_what_one_does(alone: Path, sharded: Path) -> None:
    assert rows(sharded) == [pytest.approx(each, abs=1e-5) for each in rows(alone)]
    one, four = (load_file(folder / "model.safetensors") for folder in (alone, sharded))
    assert {name: (value.dtype, value.shape) for name, value in one.items()} == {
        name: (value.dtype, value.shape) for name, value in four.items()
    }
    assert all(torch.allclose(one[name], four[name], atol=1e-4) for name in one)


def test_a_checkpoint_in_shards_is_the_same_in_any_number_of_processes(sharded: Path) -> None:
    found = load_newest(sharded, pytest.fail)
    assert found is not None
    state, digest = found[1], hashlib.sha256()
    for weights in (state.model, state.average or {}, *state.optimizer["state"].values()):
        for name in sorted(weights):
            digest.update(weights[name].contiguous().numpy().tobytes())
    selected, saved = (state.best or {})["weights"], load_file(sharded / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in selected.items())
    for world in (2, 3, 4):
        with processes(sharded.parent, world, code=LOAD) as several:
            told = [process.communicate() for process in several]
        assert told[0] == (f"{digest.hexdigest()}\n", "")


def test_one_process_continues_a_run_in_shards(sharded: Path, tmp_path: Path) -> None:
    shutil.copytree(sharded, tmp_path / "run")
    (tmp_path / "run" / "report.json").unlink()  # as if it had been killed before the end
    done = run_forked(tmp_path, *WORDS, "--out", "run", "--resume")
    assert "continues from the end of training, epoch 2" in done.stdout, done.stderr
    assert load_file(tmp_path / "run" / "model.safetensors").keys() == load_file(sharded / "model.safetensors").keys()
