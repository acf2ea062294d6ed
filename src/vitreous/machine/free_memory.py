"""How much main memory there is, and how much the system, the container and the process' limits leave to allocate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MEMINFO", "STATUS", "container_memory", "memory_left", "read_bytes", "total_memory"]

STATUS, MEMINFO = Path("/proc/self/status"), Path("/proc/meminfo")
"""Where Linux reports the memory of this process and of the system."""

_CGROUPS = (  # control groups, version 2 and version 1: folder, limit, usage
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def total_memory() -> int | None:
    """Return the bytes of main memory; None if the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def memory_left() -> int | None:
    """Return the bytes of main memory that this process may still allocate; None if the system does not say."""
    if not MEMINFO.exists():
        return None
    free = [read_bytes(MEMINFO, "MemAvailable"), *_process_limits()]
    free += [unused + _reclaimable(folder) for folder, unused in container_memory()]
    return max(0, min(free))


def container_memory() -> Iterator[tuple[Path, int]]:
    """Yield the folder of each control group that limits memory, and the bytes that it has left."""
    for folder, limit, usage in _CGROUPS:
        if maximum := _read_number(folder / limit):
            yield folder, maximum - _read_number(folder / usage)


def read_bytes(path: Path, key: str) -> int:
    """Return the value of a key in :data:`STATUS` or :data:`MEMINFO`, which give kibibytes; 0 if it is missing."""
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), 0)


def _process_limits() -> list[int]:
    """Return what is left of the process' limits on address space and data, which `ulimit -v` and `-d` set."""
    import resource

    limits = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
    soft = ((resource.getrlimit(kind)[0], key) for kind, key in limits)
    return [limit - read_bytes(STATUS, key) for limit, key in soft if limit != resource.RLIM_INFINITY]


def _reclaimable(folder: Path) -> int:
    """Return the bytes of the page cache that count as a container's usage, but are freed on demand."""
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "total_inactive_file ")))


def _read_number(path: Path) -> int:
    """Return the number in a file; 0 if there is none, as in ``max``, or if it is so large that it means no limit."""
    try:
        number = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    return number if number < 1 << 60 else 0
