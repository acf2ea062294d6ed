"""How the C library's allocator treats the memory of a training step. Independent of torch and the model."""

from __future__ import annotations

import ctypes
import mmap
import platform
from functools import cache

__all__ = ["keep_freed_memory"]

# Parameters of mallopt(3), from glibc's malloc.h, with their values in bytes; the last is a number of arenas.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_SETTINGS = {_TRIM_THRESHOLD: -1, _TOP_PAD: 2**26, _MMAP_THRESHOLD: 2**30, _ARENA_MAX: 1}
_MMAP_MAX, _MMAP_MAX_DEFAULT = -4, 65_536  # how many blocks lie outside the heap
_RESERVED = 2**33  # addresses, not memory: a page takes memory when it is first written
_HUGE_PAGE = 2**21


@cache  # a process needs it once
def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for the next request; return whether it does, as no other C library can.

    A step on a CPU frees and allocates the same hundreds of megabytes each time. Memory that was returned has to be
    mapped and zeroed again page by page, which takes a noticeable share of the step. The peak changes little, but the
    process keeps it until it ends. Threads started from now on share the main arena: an arena of their own could not
    keep blocks above 64 MiB or lend them to other threads.

    The heap is also advised to use huge pages: a step reads and writes more memory than the processor has addresses of
    4-KiB pages for.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    accepted = [libc.mallopt(parameter, value) == 1 for parameter, value in _SETTINGS.items()]
    if not _addresses_are_limited():
        _advise_huge_pages(libc)
    return all(accepted)


def _addresses_are_limited() -> bool:
    """Return whether `ulimit -v` or `-d` is set: reserved addresses would count against it."""
    import resource  # POSIX alone has it

    kinds = resource.RLIMIT_AS, resource.RLIMIT_DATA
    return any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in kinds)


def _advise_huge_pages(libc: ctypes.CDLL) -> None:
    """Advise the kernel to use huge pages in what the heap grows into. A kernel without them ignores it."""
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mallopt(_MMAP_MAX, 0)  # in the heap
    block = libc.malloc(_RESERVED)  # None where the kernel does not promise more memory than it has
    libc.mallopt(_MMAP_MAX, _MMAP_MAX_DEFAULT)
    if block is not None:
        begin = -(-block // _HUGE_PAGE) * _HUGE_PAGE
        libc.madvise(begin, block + _RESERVED - begin, mmap.MADV_HUGEPAGE)
        libc.free(block)
