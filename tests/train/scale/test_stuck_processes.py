"""Which process is named as stuck, gone or failed, and when: by what the processes showed and for how long."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Any

import pytest

from vitreous.train.scale.watch import Seen, judge


def shown(now: float, *, beat: float = 0, moved: float = 0, **facts: Any) -> Seen:
    """A process that showed its last beat, and its last move, so many seconds ago."""
    plain = {"pid": os.getpid(), "host": "elsewhere", "epoch": 3, "step": 17, "position": 99, "phase": "training"}
    return Seen(
        plain | {"is_waiting": False, "work": None, "failure": None, "lost": False} | facts, now - beat, now - moved
    )


def verdict(*processes: dict[str, Any]) -> Any:
    return judge({rank: shown(1000.0, **each) for rank, each in enumerate(processes)}, 1000.0)


WAITS = {"is_waiting": True}


@pytest.mark.parametrize(
    "processes",
    [
        ({}, {}, {}),
        (WAITS | {"moved": 21}, {"moved": 21}),  # a slow step of one
        ({"moved": 3000}, {"moved": 3000}),  # a slow step of all
        ({"beat": 39}, {}),
        (WAITS | {"moved": 300, "phase": "selecting"}, {"moved": 300, "phase": "selecting"}),
        (WAITS | {"moved": 300, "position": 3}, {"moved": 300, "position": 3}),  # the first step may compile
        ({"moved": 300, "work": "saving"}, WAITS | {"moved": 300}),
        ({}, {"beat": 100, "phase": "done"}),
    ],
)
def test_slow_processes_raise_no_alarm(processes: tuple[dict[str, Any], ...]) -> None:
    assert verdict(*processes) is None


def test_a_silent_process_is_stuck() -> None:
    found = verdict({}, WAITS | {"moved": 41}, {"beat": 41})
    assert (found.ranks, found.stuck) == ([2], True)
    assert "process 2 (pid" in found.text
    assert "epoch 3, step 17) is stuck: no sign of life for 41 s" in found.text


def test_a_process_that_others_wait_for_is_stuck() -> None:
    found = verdict(WAITS | {"moved": 41}, {"moved": 41}, WAITS | {"moved": 30})
    assert (found.ranks, found.stuck) == ([1], True)
    late = verdict(WAITS | {"moved": 601, "position": 0}, {"moved": 601, "position": 0})
    assert late.ranks == [1]


def test_all_waiting_for_each_other_is_reported() -> None:
    found = verdict(WAITS | {"moved": 50}, WAITS | {"moved": 41})
    assert found.ranks == []
    assert "check the network" in found.text


def test_an_error_of_one_process_is_the_reason_for_lost_connections() -> None:
    found = verdict({"failure": "connection closed", "lost": True}, {"failure": "a.jpg is gone"})
    assert (found.ranks, found.stuck) == ([1], False)
    assert found.text.endswith("failed: a.jpg is gone")


def test_a_killed_process_of_this_machine_is_noticed_at_once() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    found = verdict({"host": platform.node()}, {"host": platform.node(), "pid": child.pid})
    assert (found.ranks, found.stuck) == ([1], False)
