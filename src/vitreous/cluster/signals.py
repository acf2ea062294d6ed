"""Ctrl-C and SIGTERM of a command whose work is done elsewhere: they are collected, and the work ends in order."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["collected_signals"]


@contextlib.contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collect the numbers of the signals that arrive; a third Ctrl-C ends the command at once."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if received.count(signal.SIGINT) > 2:
            raise KeyboardInterrupt

    before: dict[int, Any] = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
