"""How much memory a device has left and how much a piece of work took at most; what is done with it lives elsewhere."""

from __future__ import annotations

import ctypes
import gc
import platform
from pathlib import Path

import torch

__all__ = ["Meter"]

_STATUS, _MEMINFO = Path("/proc/self/status"), Path("/proc/meminfo")
_LIMITS = (  # of a container: its limit and what it uses, in the second and the first version of control groups
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


class Meter:
    """Measures memory in bytes on one device: on CUDA what torch allocates, on the CPU what the process has resident.

    Args:
        device: Where the work takes place.

    Attributes:
        works: Whether the system tells: on CUDA, and on the CPU of Linux.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.works = device.type == "cuda" or (device.type == "cpu" and _STATUS.exists())

    def begin(self) -> int:
        """Let go of what is free, forget the highest mark, and return what is held now."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            return torch.cuda.memory_allocated(self.device)
        if not self.works:
            return 0
        if platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(0)
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:  # the mark stays: too much may be said, never too little
            return self.held()
        return self.held()

    def held(self) -> int:
        """What is held now."""
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        return _kibibytes(_STATUS, "VmRSS") if self.works else 0

    def most(self) -> int:
        """The highest mark since :meth:`begin`."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _kibibytes(_STATUS, "VmHWM") if self.works else 0

    def left(self) -> int:
        """What could be taken besides: on the CPU the least of the system's and the container's memory."""
        if self.device.type == "cuda":
            unused, _ = torch.cuda.mem_get_info(self.device)
            return unused + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        if not self.works:
            return 0
        free = [_kibibytes(_MEMINFO, "MemAvailable")]
        free += [limit - used for limit, used in (map(_number, files) for files in _LIMITS) if limit]
        return max(0, min(free))


def _kibibytes(path: Path, key: str) -> int:
    """A value of one of Linux' lists, in bytes."""
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def _number(path: Path) -> int:
    """The number in a file; 0 where there is none, such as ``max``."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
