"""How many threads a run computes with on a CPU. The order of sums, and so their last bits, depends on the number.

A run begins with as many as PyTorch takes: one for each core that it may use, or as OMP_NUM_THREADS says. The number is
written down, and whoever goes on with the run computes with as many, whatever cores there are then.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import torch

from vitreous.errors import TrainingError

__all__ = ["computing_with", "one_thread", "threads_of"]

_PER_CORE, _AT_LEAST = 4, 16  # threads that are kept on a machine with fewer cores: more would take hours to meet


def threads_of(begun: int | None, device: torch.device) -> tuple[int, str]:
    """The number of threads that a run is to compute with, and what is to be said of it.

    Args:
        begun: Of the run that is taken up; None where none is, or where it did not write it down.
        device: Of the run.

    Raises:
        TrainingError: If the environment does not let so many compute.
    """
    limit = os.environ.get("OMP_THREAD_LIMIT", "").strip()  # PyTorch does not count it in
    most = max(int(limit), 1) if limit.isdecimal() and limit.isascii() else sys.maxsize
    here = min(torch.get_num_threads(), most)
    if begun is None or begun == here or device.type != "cpu":
        return here, ""
    cores = os.cpu_count() or 1
    if begun > max(_PER_CORE * cores, _AT_LEAST):
        return here, f", with {_threads(here)} where it had {begun}, too many for {cores} cores: the last bits differ"
    if most < begun:
        raise TrainingError(
            f"the run began with {_threads(begun)}, and OMP_THREAD_LIMIT is {limit}: the end would not be the same. "
            "Unset it"
        )
    return begun, f", with {_threads(begun)}, as it began ({here} would be taken here)"


@contextlib.contextmanager
def computing_with(count: int) -> Iterator[None]:
    """Within, PyTorch computes with so many threads."""
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> contextlib.AbstractContextManager[None]:
    """Within, PyTorch computes with one thread: what comes of it does not depend on how many there are."""
    return computing_with(1)


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"
