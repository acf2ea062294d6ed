"""Runs one process of a run for the worker of Ray Train PID: `python -m vitreous.cluster.keeper PID WORDS...`.

Ray kills the processes that a worker has started when it ends the worker. It kills this one; on Linux the process of
the run then receives SIGTERM, on which it ends in good order with a checkpoint.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

__all__ = ["main"]

_TIE = 1  # prctl's PR_SET_PDEATHSIG: a signal when the parent ends

# The tie is set in the new process, since a fork clears it, before this becomes the command, since exec keeps it.
_TIED = (
    f"import ctypes, os, signal, sys; ctypes.CDLL(None).prctl({_TIE}, signal.SIGTERM); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(143); "
    "os.execv(sys.executable, [sys.executable, '-m', 'vitreous', *sys.argv[2:]])"
)


def main(arguments: Sequence[str]) -> int:
    """Run the command, pass signals on to it, and return its exit code: 128 plus the signal if one killed it."""
    worker, words = int(arguments[0]), arguments[1:]
    is_linux = sys.platform == "linux"
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # workers of Ray block Ctrl-C, which processes inherit
    command = ["-c", _TIED, str(os.getpid()), *words] if is_linux else ["-m", "vitreous", *words]
    process = subprocess.Popen([sys.executable, *command])

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    if is_linux:
        ctypes.CDLL(None).prctl(_TIE, signal.SIGTERM)
        if os.getppid() != worker:  # it ended before it was tied
            process.terminate()
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
