"""Ctrl-C and SIGTERM: during training they take effect after the current step, at any other time at once.

The run leaves a checkpoint and exits with the code that shells expect, 128 plus the number of the signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

__all__ = ["Signals", "Stopped"]

_RETRY = 0.02  # seconds after which a signal that arrived inside a destructor is sent again


class Stopped(BaseException):
    """A signal ended the run; `at_once` if Ctrl-C was pressed twice. Not an Exception, so no handler catches it."""

    def __init__(self, number: int, at_once: bool = False) -> None:
        super().__init__(number)
        self.number, self.at_once = number, at_once

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.number

    def __str__(self) -> str:
        return "terminated" if self.number == signal.SIGTERM else "interrupted"


class Signals:
    """Handles Ctrl-C and SIGTERM within :meth:`handled`."""

    def __init__(self) -> None:
        self.received: int | None = None  # the first signal that arrived
        self._waiting = False

    @contextlib.contextmanager
    def handled(self) -> Iterator[Signals]:
        """Raise :class:`Stopped` when a signal arrives within this context; does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():  # Python allows handlers only there
            yield self
            return
        before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold back a signal until the context ends; a second Ctrl-C still takes effect at once."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False
        self.raise_if_received()

    def raise_if_received(self) -> None:
        """Raise :class:`Stopped` if a signal has arrived."""
        if self.received is not None:
            raise Stopped(self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if any(each.f_code.co_name == "__del__" for each, _ in traceback.walk_stack(frame)):
            # Python only prints an exception that is raised in a destructor.
            threading.Timer(_RETRY, os.kill, (os.getpid(), number)).start()
            return
        again = self.received is not None
        if again and number != signal.SIGINT:  # schedulers send SIGTERM repeatedly
            return
        self.received = self.received or number
        if again or not self._waiting:
            raise Stopped(self.received, at_once=again)
