"""A process that answers requests, one after another: a line of JSON and bytes on its standard input and output."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

__all__ = ["READY", "Child", "Gone", "receive", "send"]

READY = b"ready\n"
_FRAME = struct.Struct(">IQ")  # bytes of the JSON, and of what follows it


class Gone(Exception):  # noqa: N818 - a state, not a mistake
    """The process ended while it was asked; ``code`` says how."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def send(stream: IO[bytes], said: Any, parts: Iterable[bytes] = (), size: int = 0) -> None:
    """Write one message: JSON, and ``size`` bytes in parts, which are made as they are written."""
    text = json.dumps(said).encode("ascii")
    stream.write(_FRAME.pack(len(text), size) + text)
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[Any, int] | None:
    """Read a message but for its data, whose length is returned with it; None at the end of the stream."""
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, size = _FRAME.unpack(head)
    text = stream.read(length)
    return (json.loads(text), size) if len(text) == length else None


class Child:
    """A process that is there to be asked.

    Args:
        command: What Python runs: its own options, such as ``-m`` and a module.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        home = os.fspath(Path(__file__).parents[4])
        paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        # One arena: those of threads would count against the limit of memory with space that they never use.
        more = {"PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "1"}
        self.process = subprocess.Popen(
            # -P: a file in the current folder, which may be the data's, must not stand in for a module.
            [sys.executable, "-P", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | more,
        )
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None or stdout.readline() != READY:
            self.end()
            raise OSError(f"{' '.join(command)} ends with exit code {self.process.returncode}")
        self.stdin, self.stdout = stdin, stdout

    def ask(self, request: Any, parts: Iterable[bytes] = (), size: int = 0) -> tuple[Any, int]:
        """Send a request and ``size`` bytes; return the answer, and how many bytes of :attr:`stdout` follow it.

        Raises:
            Gone: If the process ends instead.
        """
        try:
            send(self.stdin, request, parts, size)
            answer = receive(self.stdout)
        except (BrokenPipeError, ConnectionError, ValueError):  # ValueError: closed by end()
            answer = None
        if answer is None:
            raise Gone(self.end())
        return answer

    def kill(self) -> None:
        """End the process at once, from any thread."""
        self.process.kill()

    def end(self) -> int:
        """End the process and wait for it; return how it had ended, or ends."""
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what could not be written any more
                    stream.close()
        return self.process.wait()
