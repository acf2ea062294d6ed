"""Starts a run in several processes, forked from one that has imported the libraries already: seconds less per run."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")  # this process forks, so it must have no threads

import vitreous.report.run_report
import vitreous.train.scale.run  # noqa: F401
from vitreous.cli.main import main
from vitreous.train.scale.launch import rank_environment
from vitreous.train.scale.place import Place

__all__ = ["SMALL", "fork", "start", "wait"]

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
    """Wait for processes, and return their exit codes, negative after a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
