"""What a run says to the person in front of it: what it found, what it will do, how it goes, what it left.

Each epoch is one line that stays. On a terminal a live line below them shows the epoch that runs. Everything goes to
stdout.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from vitreous.data.sources.listing import many
from vitreous.files.shell import shell_line
from vitreous.files.text import printable, visible

__all__ = ["View", "duration"]

_LABEL = 10  # columns of the words on the left
_NAMED_CLASSES = 8
_REFRESH = 0.2  # seconds between two drawings of the live line
_LEAST = 20  # columns in which a text can be wrapped
_SHARE_WIDTH = 10  # columns of its bar


def duration(seconds: float) -> str:
    """Write a time for people: ``0:07``, ``4:10``, ``2:03:00``."""
    minutes, secs = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def _about(seconds: float) -> str:
    """Write an estimate of a time: ``about 40 s``, ``about 6 min``, ``about 2.5 h``."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {round(seconds / 60)} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


class View:
    """Writes the lines of a run.

    Args:
        console: Where to; None means stdout.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
        self._bar: Progress | None = None
        self._drawn = 0.0
        self._score: tuple[float, float] | None = None  # top-1 and macro F1

    def line(self, label: str, text: str, *, whole: bool = False) -> None:
        """Write one line: a word on the left, the rest aligned; control characters in it are shown, not obeyed.

        Args:
            label: The word.
            text: The rest. On a terminal it goes on below itself where it is longer than a line.
            whole: Leave it in one piece all the same: a command, which is to be copied.
        """
        self._print(f"{label:<{_LABEL}}", text, whole)

    def _print(self, begin: str, text: str, whole: bool = False) -> None:
        """Write what begins a line and the rest, which is wrapped between words on a terminal."""
        begin, text = printable(begin), printable(text)
        room = self.console.width - cell_len(begin)
        if self.console.is_terminal and not whole and room >= _LEAST:
            text = f"\n{' ' * cell_len(begin)}".join(map(str, Text(text).wrap(self.console, room)))
        self.console.print(f"{begin}{text}", markup=False, highlight=False, soft_wrap=True, emoji=False)

    @contextlib.contextmanager
    def counting(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """Show a bar, on a terminal, while files are read; what this gives is called with (done, all)."""
        if not self.console.is_terminal:
            yield lambda done, total: None
            return
        columns = (TextColumn(f"{label:<{_LABEL - 1}}"), BarColumn(bar_width=20), MofNCompleteColumn())
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def data(self, name: str, counts: Mapping[str, int]) -> None:
        """Say what was found: pictures in all, and in each class."""
        shown = [f"{visible(label)} {count:,}" for label, count in list(counts.items())[:_NAMED_CLASSES]]
        more = f", and {len(counts) - _NAMED_CLASSES} more" if len(counts) > _NAMED_CLASSES else ""
        total = sum(counts.values())
        self.line(
            "data",
            f"{name}: {many(total, 'picture')}, {many(len(counts), 'class', 'classes')}: {', '.join(shown)}{more}",
        )

    def unreadable(self, files: Sequence[tuple[Path, str]], listed: Path) -> None:
        """Name the files that cannot be read: how many, the first ten, where all are listed."""
        if not files:
            return
        noun = "file cannot" if len(files) == 1 else "files cannot"
        self.line("unreadable", f" {len(files):,} {noun} be read and are left out; list: {listed}")
        for path, reason in files[:10]:
            self.line("", f"  {path}: {reason}")

    def machine(self, where: str, images_per_second: float, planned: str, seconds: float) -> None:
        """Say what the run has and needs, once the first steps are timed."""
        speed = f"about {_two_digits(images_per_second):,} pictures/s"
        self.line("machine", f"{where}; {speed}; {planned}, {_about(seconds)}")

    def step(self, epoch: str, share: float, loss: Callable[[], float], images_per_second: float, left: float) -> None:
        """Move the live line; elsewhere than on a terminal, nothing. The loss is asked for only when it is drawn."""
        now = time.monotonic()
        if not self.console.is_terminal or now - self._drawn < _REFRESH:
            return
        self._drawn = now
        if self._bar is None:
            columns = (TextColumn("{task.description}"), _Share(), TextColumn("{task.fields[text]}"))
            self._bar = Progress(*columns, console=self.console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task("", total=1.0, text="")
            self._bar.start()
        begin = f"epoch {epoch}"
        parts = [
            (0, f"{duration(left)} left"),
            (1, f"loss {loss():.2f}"),
            *self._scores(2),
            (4, _speed(images_per_second)),
        ]
        text = _fitting(parts, self.console.width - len(begin) - 2 - _SHARE_WIDTH)
        self._bar.update(self._task, description=begin, completed=share, text=text, refresh=True)

    def epoch(self, epoch: str, row: Mapping[str, float], left: float) -> None:
        """Report the end of an epoch, a row of metrics.csv, in a line that stays."""
        if "val_top1" in row:
            self._score = row["val_top1"], row["val_macro_f1"]
        begin = f"epoch {epoch}  "
        parts = [
            (0, f"loss {row['train_loss']:.3f}"),
            *self._scores(0),
            (4, _speed(row["images_per_second"])),
            (3, f"{duration(left)} left"),
        ]
        self.line(begin, _fitting(parts, self.console.width - len(begin) if self.console.is_terminal else None))

    def _scores(self, rank: int) -> list[tuple[int, str]]:
        """The scores of the last validation, as parts of a line."""
        if self._score is None:
            return []
        return [(rank, f"val top-1 {100 * self._score[0]:.1f} %"), (rank + 1, f"macro F1 {self._score[1]:.2f}")]

    def stop_bar(self) -> None:
        """End the live line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def result(self, text: str) -> None:
        """Write the scores."""
        self.stop_bar()
        begin = text[:5] if text.startswith(("val  ", "test ", "     ")) else ""
        self._print(begin, text[len(begin) :])

    def files(self, folder: Path) -> None:
        """Name the run's folder and what is in it."""
        order = ["model.safetensors", "report.json", "curves.png", "confusion.png", "mistakes.png", "calibration.png"]
        there = [name for name in [*order, "metrics.csv", "recipe.yaml"] if (folder / name).exists()]
        self.line(f"{folder}/  ", "  ".join(there))

    def next(self, command: Sequence[str]) -> None:
        """Say what to type next, quoted for a shell."""
        self.line("next", shell_line(command), whole=True)

    def advice(self, parts: Sequence[str | list[str]]) -> None:
        """Say what may do better: sentences, and commands as lists of words, each on a line of its own."""
        for part in parts:
            if isinstance(part, str):
                self.line("advice", part)
            else:
                self.line("", shell_line(part), whole=True)


class _Share(BarColumn):
    """A bar of one width, so that what stands beside it can be fitted."""

    def __init__(self) -> None:
        super().__init__(bar_width=_SHARE_WIDTH)


def _fitting(parts: Sequence[tuple[int, str]], width: int | None) -> str:
    """Join the parts of a line, in their order, as many as fit: those with the highest rank are left out first.

    Args:
        parts: A rank and a text each; those of rank 0 are never left out.
        width: In columns; None takes all.
    """
    kept = list(parts)
    while width is not None and len("  ".join(text for _, text in kept)) > width and max(rank for rank, _ in kept):
        kept.remove(max(kept, key=lambda part: part[0]))
    return "  ".join(text for _, text in kept)


def _speed(images_per_second: float) -> str:
    return f"{images_per_second:,.0f} img/s"


def _two_digits(value: float) -> int:
    """Round to two digits: more would claim to know."""
    if value < 10:
        return max(1, round(value))
    scale = 10 ** (len(str(int(value))) - 2)
    return int(round(value / scale) * scale)
