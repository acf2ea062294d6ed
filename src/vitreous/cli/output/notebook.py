"""Progress in a notebook: one line of HTML, updated in place by IPython."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from vitreous.files.text import html_text
from vitreous.train.console import Display, duration

__all__ = ["NotebookBar", "NotebookDisplay", "in_notebook"]

_REFRESH = 0.3  # seconds between updates, each of which is a message to the browser


def in_notebook() -> bool:
    """Whether output goes to a notebook, such as Jupyter or Colab."""
    return "IPython" in sys.modules and Console().is_jupyter


class NotebookBar:
    """A progress bar with text in the output of a notebook cell."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = 0.0

    def draw(self, text: str, share: float) -> None:
        """Show text and a share in [0, 1], unless the last update was a moment ago."""
        now = time.monotonic()
        if now - self._drawn >= _REFRESH:
            self._drawn = now
            self._show(f'<progress max="1" value="{share:.4f}"></progress> <span>{html_text(text)}</span>')

    def clear(self) -> None:
        """Remove the bar."""
        if self._handle is not None:
            self._show("")
            self._handle = None

    def _show(self, markup: str) -> None:
        ipython = importlib.import_module("IPython.display")  # by name, because it is not a dependency
        if self._handle is None:
            self._handle = ipython.display(ipython.HTML(markup), display_id=True)
        else:
            self._handle.update(ipython.HTML(markup))


class NotebookDisplay(Display):
    """The output of a training run in a notebook: lines of text, and a bar for the step."""

    def __init__(self) -> None:
        super().__init__(Console(force_jupyter=False, soft_wrap=True, highlight=False, markup=False, emoji=False))
        self._notebook_bar = NotebookBar()

    def step(self, epoch: str, share: float, loss: Callable[[], float], images_per_second: float, left: float) -> None:
        """Update the bar."""
        self._notebook_bar.draw(f"epoch {epoch}, {images_per_second:,.0f} images/s, {duration(left)} left", share)

    def epoch(self, epoch: str, row: Mapping[str, float], left: float) -> None:
        """Print the metrics of an epoch: a row of metrics.csv."""
        self._notebook_bar.clear()
        super().epoch(epoch, row, left)

    def stop_bar(self) -> None:
        """Remove the bar."""
        self._notebook_bar.clear()
        super().stop_bar()
