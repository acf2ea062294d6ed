"""Progress in a notebook: one line of HTML that is rewritten in place. It needs IPython, which a notebook has."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from vitreous.files.text import html_text
from vitreous.train.console import View, duration

__all__ = ["Line", "NotebookView", "in_notebook"]

_REFRESH = 0.3  # seconds between two drawings: each is a message to the browser


def in_notebook() -> bool:
    """Whether output goes to a notebook of Jupyter, Colab or the like."""
    return "IPython" in sys.modules and Console().is_jupyter


class Line:
    """A bar and some text, which replace each other at one place of a notebook's output."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = 0.0

    def draw(self, text: str, share: float) -> None:
        """Show text and a share in [0, 1], but no more often than an eye follows."""
        now = time.monotonic()
        if now - self._drawn >= _REFRESH:
            self._drawn = now
            self._show(f'<progress max="1" value="{share:.4f}"></progress> <span>{html_text(text)}</span>')

    def clear(self) -> None:
        """Leave nothing behind."""
        if self._handle is not None:
            self._show("")
            self._handle = None

    def _show(self, markup: str) -> None:
        ipython = importlib.import_module("IPython.display")  # by name: a notebook has it, nobody else needs it
        if self._handle is None:
            self._handle = ipython.display(ipython.HTML(markup), display_id=True)
        else:
            self._handle.update(ipython.HTML(markup))


class NotebookView(View):
    """What a run says in a notebook: its lines as text, and the step that it is at as a bar."""

    def __init__(self) -> None:
        super().__init__(Console(force_jupyter=False, soft_wrap=True, highlight=False, markup=False, emoji=False))
        self._line = Line()

    def step(self, epoch: str, share: float, loss: Callable[[], float], images_per_second: float, left: float) -> None:
        """Move the bar."""
        self._line.draw(f"epoch {epoch}, {images_per_second:,.0f} images/s, {duration(left)} left", share)

    def epoch(self, epoch: str, row: Mapping[str, float], left: float) -> None:
        """Report the end of an epoch: a row of metrics.csv."""
        self._line.clear()
        super().epoch(epoch, row, left)

    def stop_bar(self) -> None:
        """End the bar."""
        self._line.clear()
        super().stop_bar()
