"""The number of CPU threads of a run. The order of sums depends on it, and with it the last bits of the result.

A run starts with PyTorch's default: one thread per available core, or what OMP_NUM_THREADS says. The number is
recorded, and a resume uses the same number on any machine.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import torch
from threadpoolctl import threadpool_limits

from vitreous.errors import TrainingError, pluralize

__all__ = ["choose_threads", "one_thread", "one_thread_with_blas", "torch_threads"]

_PER_CORE, _AT_LEAST = 4, 16  # a resume uses at most this many threads; more would spend hours waiting for each other


def choose_threads(recorded: int | None, device: torch.device) -> tuple[int, str]:
    """Choose the number of threads of a run; also return a clause for the line that announces a resume.

    `recorded` is the number that the run started with; None for a new run, or if it was not recorded.
    """
    limit = os.environ.get("OMP_THREAD_LIMIT", "").strip()  # torch.get_num_threads() ignores it
    most = max(int(limit), 1) if limit.isdecimal() and limit.isascii() else sys.maxsize
    default = min(torch.get_num_threads(), most)
    if recorded is None or recorded == default or device.type != "cpu":
        return default, ""
    cores = os.cpu_count() or 1
    if recorded > max(_PER_CORE * cores, _AT_LEAST):
        return default, (
            f", with {_threads(default)} instead of {recorded}, too many for {pluralize(cores, 'core')}: "
            "the last bits differ"
        )
    if most < recorded:
        raise TrainingError(
            f"the run began with {_threads(recorded)}, and OMP_THREAD_LIMIT is {limit}: the result would differ. Unset "
            "it"
        )
    return recorded, f", with {_threads(recorded)}, as it began (the default here is {default})"


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Make PyTorch use this many threads in the context."""
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> contextlib.AbstractContextManager[None]:
    """Make PyTorch use one thread in the context, so that the result does not depend on the number of cores."""
    return torch_threads(1)


def _threads(count: int) -> str:
    return f"{count} thread" if count == 1 else f"{count} threads"


@contextlib.contextmanager
def one_thread_with_blas() -> Iterator[None]:
    """Make PyTorch, and the BLAS libraries of numpy and scipy, use one thread in the context.

    For work of many small products: the threads of each library wait for the others' at every product, which on a busy
    machine takes far longer than the product. Import numpy and scipy before; libraries loaded later are not limited.
    """
    with one_thread(), threadpool_limits(1, "blas"):
        yield
