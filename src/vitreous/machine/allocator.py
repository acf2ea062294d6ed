"""How the C library's allocator treats memory that a training step frees. Independent of torch and the model."""

from __future__ import annotations

import ctypes
import platform

__all__ = ["keep_freed_memory"]

# Parameters of mallopt(3), from glibc's malloc.h, with their values in bytes; the last is a number of arenas.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_SETTINGS = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 2**26, _MMAP_THRESHOLD: 2**30, _ARENA_MAX: 1}


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next request; return whether it does, as no other C library can.

    A step on a CPU frees and allocates the same hundreds of megabytes each time. Memory that was returned has to be
    mapped and zeroed again page by page, which takes a noticeable share of the step. The peak changes little, but the
    process keeps it until it ends. Threads started from now on share the main arena: an arena of their own could not
    keep blocks above 64 MiB or lend them to other threads.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    accepted = [mallopt(parameter, value) == 1 for parameter, value in _SETTINGS.items()]
    return all(accepted)
