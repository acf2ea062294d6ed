"""A child process that answers requests one at a time, as JSON followed by bytes on standard input and output."""

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

__all__ = ["READY", "Child", "ChildExited", "receive", "send"]

READY = b"ready\n"
"""What the decoder's process writes when it can take images."""
_FRAME = struct.Struct(">IQ")  # length of the JSON, and of the bytes that follow it


class ChildExited(Exception):  # noqa: N818 - a state, not a mistake
    """The process exited before it answered; ``code`` is its return code as ``subprocess`` reports it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def send(stream: IO[bytes], message: Any, parts: Iterable[bytes] = (), size: int = 0) -> None:
    """Write a message: JSON, and ``size`` bytes that come in parts, each made only when it is written."""
    text = json.dumps(message).encode("ascii")
    stream.write(_FRAME.pack(len(text), size) + text)
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[Any, int] | None:
    """Read a message's JSON; return it with the number of bytes that follow, or None at the end of the stream."""
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, size = _FRAME.unpack(head)
    text = stream.read(length)
    return (json.loads(text), size) if len(text) == length else None


class Child:
    """A running child process of Python, with arguments such as ``-m`` and a module; OSError if it does not start."""

    def __init__(self, command: tuple[str, ...]) -> None:
        source_folder = os.fspath(Path(__file__).parents[4])
        paths = [source_folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        # One malloc arena: each arena reserves address space, which the memory limit counts.
        added = {"PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "1"}
        self.process = subprocess.Popen(
            # -P: a file in the current folder, which may hold untrusted data, must not shadow a module.
            [sys.executable, "-P", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | added,
        )
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None or stdout.readline() != READY:
            self.end()
            raise OSError(f"{' '.join(command)} exited with code {self.process.returncode}")
        self.stdin, self.stdout = stdin, stdout

    def ask(self, request: Any, parts: Iterable[bytes] = (), size: int = 0) -> tuple[Any, int]:
        """Send a request and ``size`` bytes; return the answer, and how many bytes of :attr:`stdout` follow it."""
        try:
            send(self.stdin, request, parts, size)
            answer = receive(self.stdout)
        except (BrokenPipeError, ConnectionError, ValueError):  # ValueError: closed by end()
            answer = None
        if answer is None:
            raise ChildExited(self.end())
        return answer

    def kill(self) -> None:
        """Kill the process; may be called from any thread."""
        self.process.kill()

    def end(self) -> int:
        """Kill the process if it still runs, wait for it, and return its return code."""
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # unsent bytes
                    stream.close()
        return self.process.wait()
