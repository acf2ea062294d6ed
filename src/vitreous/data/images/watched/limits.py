"""The limits on decoding one file, and how the operating system enforces them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

__all__ = ["CPU_SECONDS", "MEMORY_BYTES", "cpu_time_limit", "exit_reason", "limit_memory"]

CPU_SECONDS = 2.0
"""Processor time for decoding a file, of all threads together."""

MEMORY_BYTES = 480 << 20
"""Address space for decoding a file, beyond that of the idle process."""


@contextlib.contextmanager
def cpu_time_limit() -> Iterator[None]:
    """Let the operating system kill this process if the block takes more than :data:`CPU_SECONDS`.

    Windows has no such timer; there the parent process limits the wall-clock time.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def limit_memory() -> None:
    """Limit this process to its present address space and :data:`MEMORY_BYTES` more; only Linux supports this."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            present = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):  # not Linux
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = present + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def exit_reason(code: int, late: bool, seconds: float = CPU_SECONDS) -> str:
    """Explain why a decoder process exited, in words that follow "its decoder ".

    ``code`` is its return code, as ``subprocess`` reports it. If ``late``, the parent killed it after ``seconds``.
    """
    if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
        late, seconds = True, CPU_SECONDS
    if late or (hasattr(signal, "SIGXCPU") and code == -signal.SIGXCPU):
        return f"takes more than {seconds:g} s: save it as PNG or JPEG again"
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    if name == "SIGKILL" and os.name != "nt":
        return "runs out of memory (SIGKILL): save it smaller"
    return f"crashes ({name}): save it as PNG or JPEG again"
