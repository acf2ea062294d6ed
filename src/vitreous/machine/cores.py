"""How many processor cores this process may use. Independent of torch."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["num_cores", "read_cgroup"]


def num_cores() -> int:
    """Return the number of logical processors that the affinity and a container's quota allow, at least 1."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = read_cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        usable = min(usable, max(1, round(int(quota[0]) / int(quota[1]))))
    return usable


def read_cgroup(name: str) -> str:
    """Read a file of the control group (version 2); return an empty string where there is none."""
    try:
        return Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
