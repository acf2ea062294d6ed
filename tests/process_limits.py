"""Limits of this process that tests set and measures that they take, so that no fresh process has to load torch."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let writing beyond so many bytes of a file fail as on a full disk; Python ignores the signal SIGXFSZ."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def peak_memory() -> Iterator[SimpleNamespace]:
    """Measure by how many bytes this process grows at most within the context; `grown` has it afterwards (Linux)."""
    found = SimpleNamespace(grown=None)
    Path("/proc/self/clear_refs").write_text("5")  # lowers the peak to what is in use
    before = _status("VmRSS")
    yield found
    found.grown = _status("VmHWM") - before


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key + ":"))
    return int(line.split()[1]) << 10
