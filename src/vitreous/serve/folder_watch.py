"""Predictions of the files that arrive in a folder, appended to a CSV file: for people without a server.

The CSV file is the only memory: what has a row is done. Each row has the file's size and time of change, so a file that
is replaced is classified again. Rows are appended one batch at a time and flushed to the disk; after a crash, a row
that was cut off is removed and written again.
"""

from __future__ import annotations

import csv
import io
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.data.sources.finding import find_images
from vitreous.errors import DataError, OutputError
from vitreous.files.text import csv_cell, csv_line, json_text, printable, visible
from vitreous.predictions import Failure, Prediction

if TYPE_CHECKING:
    from vitreous.predictor import Classifier

__all__ = ["FolderWatch", "Table", "columns"]

Key = tuple[str, int, int]  # path below the folder, bytes, time of change in nanoseconds


def columns(top_k: int, thresholds: Sequence[str]) -> list[str]:
    """Return the columns of the file: those of `vitreous predict --format csv`, and what identifies a file."""
    further = [f"{field}_{rank}" for rank in range(2, top_k + 1) for field in ("label", "probability")]
    return ["path", "label", "probability", *further, *thresholds, "error", "bytes", "changed_ns"]


class Table:
    """A CSV file that is appended to, by one process at a time.

    Args:
        file: The file; created with its header if it does not exist.
        header: Its columns.

    Raises:
        OutputError: If it cannot be written, has other columns, or another process appends to it.
    """

    def __init__(self, file: Path, header: Sequence[str]) -> None:
        self.file, self.header = file, list(header)
        self.done: set[Key] = set()
        try:
            self._stream = open(file, "r+b" if file.exists() else "w+b")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise self._problem(error) from error
        try:
            self._lock()
            self._read()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def append(self, rows: Collection[tuple[Key, Sequence[str | float | list[str]]]]) -> None:
        """Append rows, each without bytes and changed_ns, and flush them to the disk."""
        text = "".join(csv_line([*cells, key[1], key[2]]) for key, cells in rows)
        try:
            self._stream.write(text.encode("utf-8"))
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise self._problem(error) from error
        self.done.update(key for key, _ in rows)

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OutputError(
                f"another `vitreous watch` appends to '{visible(str(self.file))}': end it, or name another file with -o"
            ) from error

    def _read(self) -> None:
        """Read the keys of all rows, and go to the end of the last complete one."""
        content, head = self._stream.read(), csv_line(self.header).encode("utf-8")
        end = content.rfind(b"\n") + 1
        if head.startswith(content):  # empty, or our own header cut off
            self._stream.seek(0)
            self._stream.truncate()
            self._stream.write(head)
            return
        text = content[:end].decode("utf-8", "replace")
        try:
            first, *rows = csv.reader(io.StringIO(text, newline="")) if end else [[content.decode("utf-8", "replace")]]
        except csv.Error:  # a field that is too long for a table
            first, rows = [text.partition("\n")[0]], []
        if first != self.header:
            raise OutputError(
                f"'{visible(str(self.file))}' has other columns, {printable(','.join(first), 200)}: these would be "
                f"{','.join(self.header)}; name another file with -o"
            )
        for row in rows:
            if len(row) == len(self.header) and row[-1].isdecimal() and row[-2].isdecimal():
                self.done.add((row[0], int(row[-2]), int(row[-1])))
        self._stream.seek(end)
        self._stream.truncate()

    def _problem(self, error: OSError) -> OutputError:
        return OutputError(f"cannot write '{visible(str(self.file))}': {error.strerror or error}; name another with -o")


class FolderWatch:
    """Looks at a folder again and again, and classifies what is new.

    Args:
        folder: The folder.
        table: Where rows go, and what is done.
        classifier: The model.
        top_k: Classes per row.
        batch_size: Images per forward pass, and rows that are written at a time.
    """

    def __init__(
        self, folder: Path, table: Table, classifier: Classifier, *, top_k: int = 1, batch_size: int = 32
    ) -> None:
        self.folder, self.table, self.classifier = folder, table, classifier
        self.top_k, self.batch_size = top_k, batch_size
        self._seen: dict[str, tuple[Key, float]] = {}  # each file's state, and when that was first seen
        self._gone: set[Key] = set()  # files that vanished before they were read

    def run(
        self,
        ended: threading.Event,
        *,
        every: float = 1.0,
        settle: float = 1.0,
        once: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ) -> int:
        """Classify until the event is set, or with ``once`` until nothing is left; return the number of rows.

        Args:
            ended: Set from outside to end; a batch that is computed is written before.
            every: Seconds between looks.
            settle: Seconds that a file must not have changed.
            once: Whether to end once every file is done.
            tell: Called with a line for each file that cannot be read, and each look that fails.
        """
        written = 0
        while not ended.is_set():
            try:
                settled, waiting = self._look(settle)
            except DataError as error:  # the folder is not there now, as on a disk that was removed
                tell(str(error))
                settled, waiting = [], True
            for start in range(0, len(settled), self.batch_size):
                if ended.is_set():
                    break
                written += self._classify(settled[start : start + self.batch_size], tell)
            if once and not waiting and not settled:
                break
            if not settled:
                ended.wait(min(every, settle) if once else every)
        return written

    def _look(self, settle: float) -> tuple[list[tuple[Path, Key]], bool]:
        """Return the files that are new and have settled, and whether others have not."""
        now, present, settled, waiting = time.monotonic(), {}, [], False
        for path in find_images(self.folder).pictures:
            key = self._key(path)
            if key is None or self._shown(key) in self.table.done or key in self._gone:
                continue
            before, since = self._seen.get(key[0], (None, now))
            since = since if before == key else now
            present[key[0]] = (key, since)
            age = time.time() - key[2] / 1e9
            if now - since >= settle or age > max(60.0, 10 * settle):  # files that lay there are complete
                settled.append((path, key))
            else:
                waiting = True
        self._seen = present
        return settled, waiting

    def _key(self, path: Path) -> Key | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        return os.path.relpath(path, self.folder), status.st_size, status.st_mtime_ns

    def _shown(self, key: Key) -> Key:
        """Return a key with its path as a CSV cell has it."""
        return (csv_cell(key[0]), *key[1:])

    def _classify(self, files: list[tuple[Path, Key]], tell: Callable[[str], None]) -> int:
        """Classify a batch and write its rows; a file that changed meanwhile is left for the next look."""
        rows = []
        results = self.classifier.predict_stream([path for path, _ in files], self.top_k, len(files))
        for (path, key), result in zip(files, results, strict=True):
            if (now := self._key(path)) != key:
                if now is None:
                    self._gone.add(key)
                continue
            if isinstance(result, Failure):
                tell(f"{visible(key[0])}: {result.reason}")
            rows.append((self._shown(key), list(self._cells(key[0], result))))
        self.table.append(rows)
        return len(rows)

    def _cells(self, path: str, result: Prediction | Failure) -> Iterator[str | float | list[str]]:
        between = len(self.table.header) - 4  # all but path, error, bytes and changed_ns
        yield path
        if isinstance(result, Failure):
            yield from ("" for _ in range(between))
            yield result.reason
            return
        for label, probability in result.top:
            yield from (label, float(f"{probability:.6g}"))
        decided: dict[str, str | list[str]] = {
            "unsure": json_text(result.unsure),
            "set": list(result.set or ()),
            "labels": list(result.labels or ()),
        }
        yield from (decided[name] for name in self.table.header if name in decided)
        yield ""
