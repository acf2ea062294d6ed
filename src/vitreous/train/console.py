"""Prints the lines of a run to stdout: data, model, epochs, scores, files, and the next command.

Each epoch leaves one line. On a terminal, a live line below them shows the progress of the current epoch.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from vitreous.errors import pluralize
from vitreous.files.shell import shell_line
from vitreous.files.text import printable, visible

__all__ = ["Display", "duration"]

_LABEL = 10  # columns of the labels on the left
_NAMED_CLASSES = 8
_REFRESH = 0.2  # seconds between two updates of the live line
_MIN_WRAP = 20  # columns; narrower text is not wrapped
_BAR_WIDTH = 10  # columns of the bar in the live line
_MAIN_SCORES = {"val_top1": "top-1", "val_mean_ap": "mAP"}
_PROBES = {
    "val_knn": "k-NN",
    "val_linear": "linear",
    "val_knn_map": "k-NN mAP",
    "val_linear_map": "linear mAP",
}


def duration(seconds: float) -> str:
    """Format a time such as ``0:07``, ``4:10`` or ``2:03:00``."""
    minutes, secs = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def _about(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


class _PipedConsole(Console):
    """Raises BrokenPipeError when the reader of the output has exited, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 (rich calls this while it handles the error)


class Display:
    """Prints the lines of a run to a console; None is stdout."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _PipedConsole(soft_wrap=True, highlight=False, markup=False, emoji=False)
        self._bar: Progress | None = None
        self._drawn = 0.0
        self._score: tuple[str, float, float] | None = None  # name and value of the main score, macro F1

    def line(self, label: str, text: str, *, whole: bool = False) -> None:
        """Print a label and a text, with control characters escaped.

        A terminal wraps the text beside its label, unless `whole` is set, as for a command to copy.
        """
        self._print(f"{label:<{_LABEL}}", text, whole)

    def _print(self, prefix: str, text: str, whole: bool = False) -> None:
        prefix, text = printable(prefix), printable(text)
        width = self.console.width - cell_len(prefix)
        if self.console.is_terminal and not whole and width >= _MIN_WRAP:
            text = f"\n{' ' * cell_len(prefix)}".join(map(str, Text(text).wrap(self.console, width)))
        self.console.print(f"{prefix}{text}", markup=False, highlight=False, soft_wrap=True, emoji=False)

    @contextlib.contextmanager
    def counting(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """Show a progress bar on a terminal; the yielded function updates it with (done, total)."""
        if not self.console.is_terminal:
            yield lambda done, total: None
            return
        columns = (TextColumn(f"{label:<{_LABEL - 1}}"), BarColumn(bar_width=20), MofNCompleteColumn())
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def data(self, name: str, counts: Mapping[str, int], images: int, unlabelled: int = 0) -> None:
        """Print the numbers of images and classes, and the sizes of the first classes, if there are any."""
        if not counts:
            self.line("data", f"{name}: {pluralize(images, 'image')}")
            return
        shown = [f"{visible(label)} {count:,}" for label, count in list(counts.items())[:_NAMED_CLASSES]]
        more = f", and {len(counts) - _NAMED_CLASSES} more" if len(counts) > _NAMED_CLASSES else ""
        sizes = f"{pluralize(images, 'image')}, {pluralize(len(counts), 'class', 'classes')}"
        without = f"; {unlabelled:,} without a label" if unlabelled else ""
        self.line("data", f"{name}: {sizes}: {', '.join(shown)}{more}{without}")

    def unreadable(self, files: Sequence[tuple[os.PathLike[str], str]], listed: Path) -> None:
        """Print the number of unreadable files, the first ten, and the file that lists all of them."""
        what = "file cannot be read and is" if len(files) == 1 else "files cannot be read and are"
        self.line("unreadable", f" {len(files):,} {what} left out; list: {listed}")
        for path, reason in files[:10]:
            self.line("", f"  {path}: {reason}")

    def machine(self, where: str, images_per_second: float, planned: str, seconds: float) -> None:
        """Print the hardware, the speed and the estimated training time, once the first steps are timed."""
        speed = f"about {_two_digits(images_per_second):,} images/s"
        self.line("machine", f"{where}; {speed}; {planned}, {_about(seconds)}")

    def step(self, epoch: str, share: float, loss: Callable[[], float], images_per_second: float, left: float) -> None:
        """Update the live line on a terminal. `loss` is called only if the line is drawn."""
        now = time.monotonic()
        if not self.console.is_terminal or now - self._drawn < _REFRESH:
            return
        self._drawn = now
        if self._bar is None:
            bar = BarColumn(bar_width=_BAR_WIDTH)
            columns = (TextColumn("{task.description}"), bar, TextColumn("{task.fields[text]}"))
            self._bar = Progress(*columns, console=self.console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task("", total=1.0, text="")
            self._bar.start()
        prefix = f"epoch {epoch}"
        losses = [(1, f"loss {loss():.2f}"), *self._scores(2)]
        parts = [(0, f"{duration(left)} left"), *losses, (4, f"{images_per_second:,.0f} img/s")]
        text = _fit_parts(parts, self.console.width - len(prefix) - 2 - _BAR_WIDTH)
        self._bar.update(self._task, description=prefix, completed=share, text=text, refresh=True)

    def epoch(self, epoch: str, row: Mapping[str, float], left: float) -> None:
        """Print the line of a finished epoch from its row of metrics.csv."""
        for column, label in _MAIN_SCORES.items():
            if column in row:
                self._score = label, row[column], row["val_macro_f1"]
        prefix = f"epoch {epoch}  "
        losses = [(0, f"loss {row['train_loss']:.3f}"), *self._scores(0), *_feature_parts(row)]
        parts = [*losses, (4, f"{row['images_per_second']:,.0f} img/s"), (3, f"{duration(left)} left")]
        self.line(prefix, _fit_parts(parts, self.console.width - len(prefix) if self.console.is_terminal else None))

    def _scores(self, rank: int) -> list[tuple[int, str]]:
        if self._score is None:
            return []
        label, share, macro_f1 = self._score
        return [(rank, f"val {label} {100 * share:.1f} %"), (rank + 1, f"macro F1 {macro_f1:.2f}")]

    def stop_bar(self) -> None:
        """Remove the live line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def result(self, text: str) -> None:
        """Remove the live line and print a result; a line of scores is wrapped beside its label."""
        self.stop_bar()
        label = text[:5] if text.startswith(("val  ", "test ", "     ")) else ""
        self._print(label, text[len(label) :])

    def files(self, folder: Path) -> None:
        """Print the run directory and the files in it."""
        order = [
            "model.safetensors",
            "report.html",
            "report.json",
            "curves.png",
            "reconstructions.png",
            "neighbours.png",
        ]
        found = [name for name in [*order, "metrics.csv", "recipe.yaml"] if (folder / name).exists()]
        self.line(f"{folder}/  ", "  ".join(found))

    def next(self, command: Sequence[str]) -> None:
        """Print the next command, quoted for a shell."""
        self.line("next", shell_line(command), whole=True)

    def advice(self, parts: Sequence[str | list[str]]) -> None:
        """Print advice: sentences, and commands as lists of words, each on its own line."""
        for part in parts:
            if isinstance(part, str):
                self.line("advice", part)
            else:
                self.line("", shell_line(part), whole=True)


def _feature_parts(row: Mapping[str, float]) -> list[tuple[int, str]]:
    """Return the terms and the measures of a pretraining epoch as parts of its line."""
    if "effective_rank" not in row:
        return []
    scores = [(0, f"{label} {100 * row[name]:.1f} %") for name, label in _PROBES.items() if name in row]
    others = [name for name in row if name.startswith("val_") and name not in (*_PROBES, "val_loss")]
    terms = [(2, f"{name.removeprefix('val_').replace('_', ' ')} {row[name]:.3g}") for name in others]
    rank = [(1, f"rank {row['effective_rank']:.1f}")]
    return [(1, f"val {row['val_loss']:.3f}"), *terms, *scores, *rank]


def _fit_parts(parts: Sequence[tuple[int, str]], width: int | None) -> str:
    """Join the parts of a line, pairs of rank and text; what does not fit is left out, highest rank first, 0 never."""
    kept = list(parts)
    while width is not None and len("  ".join(text for _, text in kept)) > width and max(rank for rank, _ in kept):
        kept.remove(max(kept, key=lambda part: part[0]))
    return "  ".join(text for _, text in kept)


def _two_digits(value: float) -> int:
    """Round to the two digits that an estimate is worth."""
    if value < 10:
        return max(1, round(value))
    scale = 10 ** (len(str(int(value))) - 2)
    return int(round(value / scale) * scale)
