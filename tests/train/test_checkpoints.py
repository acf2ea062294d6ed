"""Which of two checkpoints is kept: a damaged one never takes the place of a good one."""

from __future__ import annotations

import dataclasses
import os

import pytest

from vitreous.errors import CheckpointError
from vitreous.runs.lock import locked
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.resume.saving import LAST, PREVIOUS, Saver, newest


@pytest.fixture(scope="module")
def some_state(tmp_path_factory):
    """The state of a run, with another step each time."""
    made = []

    def of(runs, step):
        if not made:
            folder = tmp_path_factory.mktemp("some") / "run"
            runs.broken_off(runs.config(folder), 1)
            made.append(newest(folder, pytest.fail)[1])
        return dataclasses.replace(made[0], step=step)

    return of


def flip(path):
    data = path.read_bytes()
    path.write_bytes(data[:-99] + bytes([data[-99] ^ 1]) + data[-98:])


def flip_in_silence(path):
    """As a disk does it: neither the size nor the time of the file changes."""
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


SPOILED = [flip, flip_in_silence, cut, lambda path: os.truncate(path, 0), link, of_another_run]


def step_of(path):
    try:
        return read_state(path)["step"]
    except CheckpointError:
        return None


@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("spoil", SPOILED)
def test_a_damaged_newest_state_never_takes_the_place_of_the_good_one_before(
    tmp_path, runs, some_state, spoil, same_process
):
    with locked(tmp_path) as lock:
        saver = Saver(tmp_path, lock)
        for step in (1, 2):
            saver.save(some_state(runs, step))
        saver.wait()
        assert (step_of(tmp_path / PREVIOUS), step_of(tmp_path / LAST)) == (1, 2)
        spoil(tmp_path / LAST)
        saver = saver if same_process else Saver(tmp_path, lock)
        saver.save(some_state(runs, 3))
        saver.wait()
        assert (step_of(tmp_path / PREVIOUS), step_of(tmp_path / LAST)) == (1, 3)
        saver.save(some_state(runs, 4))
        saver.wait()
        assert (step_of(tmp_path / PREVIOUS), step_of(tmp_path / LAST)) == (3, 4)
        flip(tmp_path / LAST)  # the other one is good, so nothing is lost
        assert newest(tmp_path, lambda line: None)[1].step == 3


def test_a_good_newest_state_of_an_earlier_process_is_kept(tmp_path, runs, some_state):
    with locked(tmp_path) as lock:
        for step in (1, 2, 3):
            saver = Saver(tmp_path, lock)
            saver.save(some_state(runs, step))
            saver.wait()
            assert saver.saved == f"epoch 1, step {step}"
        assert (step_of(tmp_path / PREVIOUS), step_of(tmp_path / LAST)) == (2, 3)
