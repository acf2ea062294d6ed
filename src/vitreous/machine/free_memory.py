"""How much main memory this process may still take: of the system, of its container, and of its own limits."""

from __future__ import annotations

from pathlib import Path

__all__ = ["kibibytes", "memory_left"]

_STATUS, _MEMINFO = Path("/proc/self/status"), Path("/proc/meminfo")
_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))  # of control groups' second and first version
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def memory_left() -> int | None:
    """Return the bytes of main memory that may be taken besides; None where the system does not tell."""
    if not _MEMINFO.exists():
        return None
    free = [kibibytes(_MEMINFO, "MemAvailable")]
    for root, (limit, used) in zip(_ROOTS, _FILES, strict=True):
        most = _number(root / limit)
        if most:
            free.append(most - _number(root / used) + _reclaimable(root))
    free += _own_limits()
    return max(0, min(free))


def kibibytes(path: Path, key: str) -> int:
    """Return a value of one of Linux' lists, in bytes."""
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:")), 0)


def _own_limits() -> list[int]:
    """What is left of the limits on the process' address space and data, as `ulimit -v` and `-d` set them."""
    import resource

    limits = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
    found = ((resource.getrlimit(kind)[0], key) for kind, key in limits)
    return [limit - kibibytes(_STATUS, key) for limit, key in found if limit != resource.RLIM_INFINITY]


def _reclaimable(root: Path) -> int:
    """Pages of files that a container is charged for, which the system takes back first."""
    try:
        lines = (root / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "total_inactive_file ")))


def _number(path: Path) -> int:
    """The number in a file; 0 where there is none, such as ``max``, or where it means no limit."""
    try:
        number = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    return number if number < 1 << 60 else 0
