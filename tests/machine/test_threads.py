"""A run keeps the number of threads that it began with: its last bits depend on them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from vitreous.errors import CheckpointError, TrainingError
from vitreous.machine.threads import threads_of
from vitreous.model.config import ViTConfig
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.console import View
from vitreous.train.setup import prepare

# Enough work in a step for more than one thread, and enough patches for each to take a share.
MODEL = ViTConfig(image_size=16, patch_size=4, in_channels=1, num_classes=10, width=128, depth=1, heads=2, mlp_dim=256)
LONG = {"model": MODEL, "batch_size": 600, "epochs": 2}


@contextlib.contextmanager
def threads(count):
    """As in a process that PyTorch gives so many."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
        assert torch.get_num_threads() == count  # a run leaves it as it was
    finally:
        torch.set_num_threads(before)


def end_of(runs, asked, selected, resume=False):
    """What a training and the scoring after it end with, times left out; and what was said on the way."""
    said = []
    with pytest.raises(runs.Killed):
        runs.train(asked, resume, said)
    state = read_state(Path(asked.out, "last.ckpt"))
    assert state["trained"]
    names = ("model", "optimizer", "best", "loss_sum", "threads")
    return {name: state[name] for name in names} | {"logits": selected[-1]}, said[0]


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_resumed_run_computes_with_the_threads_that_it_began_with(tmp_path, runs, selected, monkeypatch):
    wholes = {}
    for count in (1, 2):
        with threads(count):
            wholes[count], _ = end_of(runs, runs.config(tmp_path / f"whole-{count}", **LONG), selected)
    assert not same(wholes[1]["model"], wholes[2]["model"])  # else the test shows nothing
    for begun, then, killed in ((2, 1, 3), (2, 3, 1), (1, 2, 2), (2, 1, 0)):
        asked = runs.config(tmp_path / f"broken-{begun}-{then}-{killed}", **LONG)
        with threads(begun):
            _break_off(runs, asked, killed, monkeypatch)
        with threads(then):
            end, said = end_of(runs, asked, selected, resume=True)
        assert same(end, wholes[begun]), (begun, then, killed)
        kept = f", with {begun} {'thread' if begun == 1 else 'threads'}, as it began ({then} would be taken here)\n"
        assert kept in said
        assert f"\n# threads: {begun} " in Path(asked.out, "recipe.yaml").read_text()


def _break_off(runs, asked, steps, monkeypatch):
    """End a run as if by a kill after so many steps; after none, before there is a checkpoint."""
    if steps:
        runs.broken_off(asked, steps)
        return

    def end(this):
        raise runs.Killed

    with monkeypatch.context() as patched:
        patched.setattr("vitreous.train.run._fit", end)
        with pytest.raises(runs.Killed):
            runs.train(asked)
    assert not Path(asked.out, "last.ckpt").exists()


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_fresh_weights_do_not_depend_on_the_threads(tmp_path, runs, kind):
    model = dataclasses.replace(MODEL, width=192, stem=kind)  # matrices that several threads would fill
    found = []
    for count in (1, 2, 3):
        with threads(count):
            ready = prepare(runs.config(tmp_path, model=model), (), View(Console(file=io.StringIO())))
        found.append(ready.model.state_dict())
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_a_state_that_records_no_threads_is_refused_in_one_line(tmp_path, runs):
    asked = runs.config(tmp_path / "run")
    runs.broken_off(asked, 3)
    for name in ("last.ckpt", "previous.ckpt"):
        if (tmp_path / "run" / name).exists():
            state = read_state(tmp_path / "run" / name)
            del state["threads"]
            write_state(tmp_path / "run" / name, state)
    with pytest.raises(CheckpointError, match=r"^nothing to go on from: '\S+last.ckpt' .* another version .* threads"):
        runs.train(asked, resume=True)


def test_a_count_that_this_machine_is_too_small_for_is_not_kept_and_that_is_said():
    here = torch.get_num_threads()
    count, told = threads_of(100_000, torch.device("cpu"))
    assert count == here
    assert "the last bits differ" in told
    assert threads_of(None, torch.device("cpu")) == (here, "")
    assert threads_of(here + 1, torch.device("cuda")) == (here, "")


def test_a_limit_of_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    for count in (1, 2):  # PyTorch says 2 under the limit too
        with threads(count), pytest.raises(TrainingError, match="began with 2 threads, and OMP_THREAD_LIMIT is 1"):
            threads_of(2, torch.device("cpu"))
    with threads(2):
        assert threads_of(None, torch.device("cpu"))[0] == 1
