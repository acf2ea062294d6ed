"""A resumed run uses the number of threads that it began with, because the last bits depend on it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from threadpoolctl import threadpool_info, threadpool_limits

from vitreous.errors import CheckpointError, TrainingError
from vitreous.machine.threads import choose_threads, one_thread_with_blas, torch_threads
from vitreous.model.config import ViTConfig
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.console import Display
from vitreous.train.setup import prepare

# Enough work in a step for several threads, and enough patches for each to take a share.
MODEL = ViTConfig(image_size=16, patch_size=4, in_channels=1, num_classes=10, width=128, depth=1, heads=2, mlp_dim=256)
LONG = {"model": MODEL, "batch_size": 600, "epochs": 2}


@contextlib.contextmanager
def threads(count):
    """Set the number of threads, as if it were PyTorch's default."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
        assert torch.get_num_threads() == count  # a run restores it
    finally:
        torch.set_num_threads(before)


def end_of(runs, run_config, selected, resume=False):
    """Return what training and scoring end with, except times; and the printed lines."""
    output = []
    with pytest.raises(runs.Killed):
        runs.train(run_config, resume, output)
    state = read_state(Path(run_config.out, "last.ckpt"))
    assert state["trained"]
    names = ("model", "optimizer", "best", "loss_sum", "threads")
    return {name: state[name] for name in names} | {"logits": selected[-1]}, output[0]


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_resumed_run_uses_the_threads_that_it_began_with(tmp_path, runs, selected, monkeypatch):
    wholes = {}
    for count in (1, 2):
        with threads(count):
            wholes[count], _ = end_of(runs, runs.config(tmp_path / f"whole-{count}", **LONG), selected)
    assert not same(wholes[1]["model"], wholes[2]["model"])  # otherwise this test shows nothing
    for begun, then, killed in ((2, 1, 3), (2, 3, 1), (1, 2, 2), (2, 1, 0)):
        run_config = runs.config(tmp_path / f"broken-{begun}-{then}-{killed}", **LONG)
        with threads(begun):
            _break_off(runs, run_config, killed, monkeypatch)
        with threads(then):
            end, output = end_of(runs, run_config, selected, resume=True)
        assert same(end, wholes[begun]), (begun, then, killed)
        kept = f", with {begun} {'thread' if begun == 1 else 'threads'}, as it began (the default here is {then})\n"
        assert kept in output
        assert f"\n# threads: {begun} " in Path(run_config.out, "recipe.yaml").read_text()


def _break_off(runs, run_config, steps, monkeypatch):
    """End a run after a number of steps as if killed; after 0 steps, before there is a checkpoint."""
    if steps:
        runs.broken_off(run_config, steps)
        return

    def end(this):
        raise runs.Killed

    with monkeypatch.context() as patched:
        patched.setattr("vitreous.train.run.fit", end)
        with pytest.raises(runs.Killed):
            runs.train(run_config)
    assert not Path(run_config.out, "last.ckpt").exists()


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_fresh_weights_do_not_depend_on_the_threads(tmp_path, runs, kind):
    model = dataclasses.replace(MODEL, width=192, stem=kind)  # matrices that several threads would initialise
    found = []
    for count in (1, 2, 3):
        with threads(count):
            setup = prepare(runs.config(tmp_path, model=model), (), Display(Console(file=io.StringIO())))
        found.append(setup.model.state_dict())
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_a_state_without_the_number_of_threads_is_refused(tmp_path, runs):
    run_config = runs.config(tmp_path / "run")
    runs.broken_off(run_config, 3)
    for name in ("last.ckpt", "previous.ckpt"):
        if (tmp_path / "run" / name).exists():
            state = read_state(tmp_path / "run" / name)
            del state["threads"]
            write_state(tmp_path / "run" / name, state)
    with pytest.raises(CheckpointError, match=r"^no usable checkpoint: '\S+last.ckpt' .* another version .* threads"):
        runs.train(run_config, resume=True)


def test_a_number_too_large_for_this_machine_is_not_used_and_that_is_reported():
    default = torch.get_num_threads()
    count, message = choose_threads(100_000, torch.device("cpu"))
    assert count == default
    assert "the last bits differ" in message
    assert choose_threads(None, torch.device("cpu")) == (default, "")
    assert choose_threads(default + 1, torch.device("cuda")) == (default, "")


def test_a_lower_thread_limit_of_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    for count in (1, 2):  # torch.get_num_threads() ignores the limit
        with threads(count), pytest.raises(TrainingError, match="began with 2 threads, and OMP_THREAD_LIMIT is 1"):
            choose_threads(2, torch.device("cpu"))
    with threads(2):
        assert choose_threads(None, torch.device("cpu"))[0] == 1


def test_a_block_on_one_thread_limits_every_library_and_restores_it():
    before = torch.get_num_threads()
    with torch_threads(2), threadpool_limits(2, "blas"):
        blas = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
        assert blas
        with one_thread_with_blas():
            assert torch.get_num_threads() == 1
            assert {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"} == {1}
        assert torch.get_num_threads() == 2
        assert [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"] == blas
    assert torch.get_num_threads() == before
