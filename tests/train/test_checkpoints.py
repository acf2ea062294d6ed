"""Which of the two checkpoints is kept: a damaged one never replaces a good one."""

from __future__ import annotations

import dataclasses
import os

import pytest

from vitreous.errors import CheckpointError
from vitreous.runs.lock import locked
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.resume.saving import LAST, PREVIOUS, Saver, load_newest


@pytest.fixture(scope="module")
def saved_state(tmp_path_factory):
    """Give the state of one run at any step."""
    made = []

    def state_at(runs, step):
        if not made:
            folder = tmp_path_factory.mktemp("interrupted") / "run"
            runs.broken_off(runs.config(folder), 1)
            made.append(load_newest(folder, pytest.fail)[1])
        return dataclasses.replace(made[0], step=step)

    return state_at


def flip(path):
    data = path.read_bytes()
    path.write_bytes(data[:-99] + bytes([data[-99] ^ 1]) + data[-98:])


def flip_silently(path):
    """Change a byte as a failing disk does: neither the size nor the time of the file changes."""
    times = path.stat()
    flip(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def of_another_run(path):
    state = read_state(path)
    write_state(path, {**state, "identity": {**state["identity"], "fingerprint": "other"}})


SPOILED = [flip, flip_silently, cut, lambda path: os.truncate(path, 0), link, of_another_run]


def step_of(path):
    try:
        return read_state(path)["step"]
    except CheckpointError:
        return None


@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("spoil", SPOILED)
def test_a_damaged_newest_state_never_replaces_the_good_previous_one(tmp_path, runs, saved_state, spoil, same_process):
    with locked(tmp_path) as lock:
        saver = Saver(tmp_path, lock)
        for step in (1, 2):
            saver.save(saved_state(runs, step))
        saver.wait()
        assert (step_of(tmp_path / PREVIOUS), step_of(tmp_path / LAST)) == (1, 2)
        spoil(tmp_path / LAST)
        saver = saver if same_process else Saver(tmp_path, lock)
        saver.save(saved_state(runs, 3))
        saver.wait()
        assert (step_of(tmp_path / PREVIOUS), step_of(tmp_path / LAST)) == (1, 3)
        saver.save(saved_state(runs, 4))
        saver.wait()
        assert (step_of(tmp_path / PREVIOUS), step_of(tmp_path / LAST)) == (3, 4)
        flip(tmp_path / LAST)  # the other one is good
        assert load_newest(tmp_path, lambda line: None)[1].step == 3


def test_a_good_newest_state_of_an_earlier_process_is_kept(tmp_path, runs, saved_state):
    with locked(tmp_path) as lock:
        for step in (1, 2, 3):
            saver = Saver(tmp_path, lock)
            saver.save(saved_state(runs, step))
            saver.wait()
            assert saver.saved == f"epoch 1, step {step}"
        assert (step_of(tmp_path / PREVIOUS), step_of(tmp_path / LAST)) == (2, 3)
