"""Starts a run in several processes, forked from one that has imported the libraries already: seconds less per run."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # this process forks, so it must have no threads

import sklearn.datasets  # noqa: F401
import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401

import vitreous.report.run_report
import vitreous.train.scale.run  # noqa: F401
from vitreous.cli.main import main
from vitreous.train.scale.launch import rank_environment
from vitreous.train.scale.place import Place

__all__ = ["SMALL", "fork", "start", "wait", "wait_for_file"]

_LONGEST = 900.0  # seconds that a run may take: it should end long before, or be ended by its processes

SMALL = (
    *("--device", "cpu", "--precision", "float32", "--model.width", "32", "--model.depth", "2"),
    *("--model.heads", "2", "--model.mlp_dim", "64", "--augment.mixup", "0.2", "--augment.cutmix", "1.0"),
)
"""A model of the digits whose steps take milliseconds, with batch norm in its stem, and both kinds of mixing."""


def start(words: Sequence[str], world: int, before: Callable[[int], None] = lambda rank: None) -> list[int]:
    """Start `vitreous` with these words in so many processes; `before` is called in each. Return their ids."""

    def run() -> int:
        return main(list(words))

    return fork(run, world, before)


def fork(function: Callable[[], int], world: int, before: Callable[[int], None] = lambda rank: None) -> list[int]:
    """Call a function in so many processes that have the environment of a run's; return their ids."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = Place(world, 1, 0, "127.0.0.1", probe.getsockname()[1])
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if world > 1:
                    os.environ.update(rank_environment(place, place.port, rank))
                before(rank)
                code = function()
            except SystemExit as ended:
                code = int(ended.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        pids.append(pid)
    return pids


def wait(pids: Sequence[int]) -> list[int]:
    """Wait for processes, and return their exit codes, negative after a signal. Those that hang are killed."""
    deadline = time.monotonic() + _LONGEST
    while not all(map(_has_ended, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    hanging = [pid for pid in pids if not _has_ended(pid)]
    for pid in hanging:
        os.kill(pid, signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if hanging:
        raise SystemExit(f"processes {hanging} did not end within {_LONGEST:.0f} s: {codes}")
    return codes


def wait_for_file(path: Path, pids: Sequence[int], log: Path) -> None:
    """Wait until a run writes a file; end with its log if a process ends before."""
    deadline = time.monotonic() + _LONGEST
    while not path.exists():
        if any(map(_has_ended, pids)) or time.monotonic() > deadline:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            told = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            raise SystemExit(f"the run ended with {wait(pids)} and without {path}: {told}")
        time.sleep(0.02)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
