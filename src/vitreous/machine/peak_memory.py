"""Measures the memory that a piece of work takes, on CUDA or on the CPU of Linux."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
from pathlib import Path

import torch

from vitreous.machine.free_memory import MEMINFO, STATUS, container_memory, read_bytes

__all__ = ["MemoryMeter"]


class MemoryMeter:
    """Measures memory in bytes: on CUDA what torch has allocated, on the CPU the resident memory of this process.

    `works` says whether this system reports memory; if not, every measurement is 0.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.works = device.type == "cuda" or (device.type == "cpu" and STATUS.exists())

    def begin(self) -> int:
        """Release unused memory, reset the peak, and return the memory in use."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.works:
            if platform.libc_ver()[0] == "glibc":
                ctypes.CDLL(None).malloc_trim(0)
            with contextlib.suppress(OSError):  # the old peak then stays, so that the new one is overestimated
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return self.held()

    def held(self) -> int:
        """Return the memory in use."""
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        return read_bytes(STATUS, "VmRSS") if self.works else 0

    def most(self) -> int:
        """Return the peak since :meth:`begin`."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return read_bytes(STATUS, "VmHWM") if self.works else 0

    def left(self) -> int:
        """Return the memory that is free: on the CPU, that of the system or the container, whichever is less."""
        if self.device.type == "cuda":
            unused, _ = torch.cuda.mem_get_info(self.device)
            return unused + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        if not self.works:
            return 0
        return max(0, min([read_bytes(MEMINFO, "MemAvailable"), *(unused for _, unused in container_memory())]))
