"""What one file may take, and how the system holds a process to it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

__all__ = ["MEMORY", "SECONDS", "bound_memory", "bounded_time", "reason_of"]

SECONDS = 2.0
"""Of processor time, in which a file has to be decoded."""

MEMORY = 480 << 20
"""Bytes of address space beyond those of the idle process."""


@contextlib.contextmanager
def bounded_time(seconds: float = SECONDS) -> Iterator[None]:
    """Have the system end this process where what is done inside takes more processor time, of all threads.

    Windows has no such clock: the watcher's own is all there is.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def bound_memory(more: int = MEMORY) -> None:
    """Have the system refuse this process more memory than it has and ``more`` bytes, from now on."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):  # not Linux
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + more if hard == resource.RLIM_INFINITY else min(now + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def reason_of(code: int, late: bool, seconds: float = SECONDS) -> str:
    """What to say of a file whose process ended, after "its decoder ".

    Args:
        code: How it ended, as ``subprocess`` has it.
        late: Whether it was ended from here, for the time it took.
        seconds: The limit on its time.
    """
    if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
        late, seconds = True, SECONDS
    if late or (hasattr(signal, "SIGXCPU") and code == -signal.SIGXCPU):
        return f"takes more than {seconds:g} s: save it as PNG or JPEG again"
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    if name == "SIGKILL" and os.name != "nt":
        return "ends for lack of memory (SIGKILL): save it smaller"
    return f"ends in a crash ({name}): save it as PNG or JPEG again"
