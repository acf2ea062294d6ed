"""Ctrl-C and SIGTERM: while a run trains they wait for the step to end; else they end what is going on, which is short.

A run that they end leaves a checkpoint and the exit code that shells expect: 128 and the signal's number.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["Signals", "Stopped"]


_LATER = 0.02  # seconds


class Stopped(BaseException):
    """The user or a scheduler ended the run. Not an Exception, so that nothing on the way takes it for a failure.

    Attributes:
        number: Of the signal.
        at_once: Whether Ctrl-C came twice: nothing more is to be saved.
    """

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
    """Handles Ctrl-C and SIGTERM while it is entered, in the main thread; elsewhere signals are not seen.

    Attributes:
        asked: The signal that came first, which :meth:`obey` raises; None while none came.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._waiting = False

    @contextlib.contextmanager
    def handled(self) -> Iterator[Signals]:
        """Within, a signal raises :class:`Stopped`."""
        if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
            yield self
            return
        before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Within, a signal is only remembered, for the next :meth:`obey`; a second Ctrl-C is not."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False
        self.obey()

    def obey(self) -> None:
        """Raise what came.

        Raises:
            Stopped: If a signal came.
        """
        if self.asked is not None:
            raise Stopped(self.asked)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if _in_destructor(frame):  # Python prints what is raised there, and goes on
            threading.Timer(_LATER, os.kill, (os.getpid(), number)).start()
            return
        again = self.asked is not None
        if again and number != signal.SIGINT:  # schedulers repeat themselves
            return
        self.asked = self.asked or number
        if again or not self._waiting:
            raise Stopped(self.asked, at_once=again)


def _in_destructor(frame: FrameType | None) -> bool:
    """Whether a signal came while an object is being taken apart."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
