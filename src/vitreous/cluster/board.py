"""Where the workers of a run and the command that started it leave each other word: output, signals, exit codes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

__all__ = ["Board", "BoardActor"]


class BoardActor:
    """The process that keeps the word of all; it computes nothing."""

    def __init__(self) -> None:
        self._output: list[tuple[int, bytes]] = []
        self._signals: list[int] = []
        self._attempt = 0
        self._codes: dict[int, dict[int, int]] = defaultdict(dict)
        self._sessions: dict[str, list[int]] = defaultdict(list)
        self._refusal = ""

    def begin(self) -> int:
        """Count a new attempt, and return its number from 1."""
        self._attempt += 1
        return self._attempt

    def started(self, host: str, session: int) -> None:
        """Note the session of a process of the run on a machine."""
        self._sessions[host].append(session)

    def sessions(self, host: str) -> list[int]:
        """Return the sessions that all attempts so far have started on a machine."""
        return self._sessions[host]

    def ended(self, attempt: int, rank: int, code: int) -> None:
        """Note the exit code of a process."""
        self._codes[attempt][rank] = code

    def codes(self, attempt: int) -> list[int]:
        """Return the exit codes of an attempt by rank, or of the last one for 0."""
        return [code for _, code in sorted(self._codes[attempt or self._attempt].items())]

    def write(self, stream: int, text: bytes) -> None:
        """Take output for stream 1 or 2."""
        self._output.append((stream, text))

    def take(self) -> list[tuple[int, bytes]]:
        """Return the output since the last call."""
        taken, self._output = self._output, []
        return taken

    def send(self, number: int) -> None:
        """Take a signal for all processes."""
        self._signals.append(number)

    def signals(self) -> list[int]:
        """Return all signals so far."""
        return self._signals

    def refuse(self, reason: str) -> None:
        """Note why a worker cannot begin."""
        self._refusal = reason

    def refusal(self) -> str:
        """Return why a worker cannot begin, or nothing."""
        return self._refusal


class Board:
    """The methods of the actor as plain calls, each of which waits for its result."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self.actor = ray, actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.actor, name)
        return lambda *arguments: self._ray.get(method.remote(*arguments))
