"""How feature vectors are written: Parquet, CSV and NumPy, a few at a time where the format lets us.

F numbers a picture.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from vitreous.errors import MissingExtraError
from vitreous.files.text import csv_line, printable
from vitreous.predictor import Embedding

__all__ = ["WRITERS", "require"]

Write = Callable[[Embedding], None]
_ROWS = 4096  # vectors held until they are written as one group


def require(suffix: str) -> None:
    """Check, before any work is done, that what a format needs is installed.

    Raises:
        MissingExtraError: If Parquet is asked for without pyarrow.
    """
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError("Parquet needs pyarrow: pip install 'vitreous[table]', or write .csv or .npz")


@contextmanager
def _parquet(path: Path, length: int) -> Iterator[Write]:
    """Columns path (string) and embedding (list of F floats, all of one length)."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([("path", pa.string()), ("embedding", pa.list_(pa.float32(), length))])
    held: list[Embedding] = []
    with parquet.ParquetWriter(path, schema) as file:

        def flush() -> None:
            if held:
                names = pa.array([_text(each.name) for each in held])
                numbers = pa.array(np.concatenate([each.vector for each in held]))
                vectors = pa.FixedSizeListArray.from_arrays(numbers, length)
                file.write_table(pa.Table.from_arrays([names, vectors], schema=schema))
                held.clear()

        def write(result: Embedding) -> None:
            held.append(result)
            if len(held) == _ROWS:
                flush()

        yield write
        flush()


@contextmanager
def _csv(path: Path, length: int) -> Iterator[Write]:
    """A header, then a row each: path, f0, f1, ...; as many digits as float32 needs to come back the same."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        stream.write(csv_line(["path", *(f"f{n}" for n in range(length))]))

        def write(result: Embedding) -> None:
            stream.write(csv_line([result.name, *result.vector]))

        yield write


@contextmanager
def _npz(path: Path, length: int) -> Iterator[Write]:
    """Arrays path (n) of text and embedding (n, F)."""
    held: list[Embedding] = []
    yield held.append
    names = np.asarray([_text(each.name) for each in held], dtype=np.str_)
    with open(path, "wb") as stream:
        np.savez(stream, path=names, embedding=_stacked(held, length))


@contextmanager
def _npy(path: Path, length: int) -> Iterator[Write]:
    """The array (n, F) alone."""
    held: list[Embedding] = []
    yield held.append
    with open(path, "wb") as stream:
        np.save(stream, _stacked(held, length))


WRITERS: dict[str, Callable[[Path, int], AbstractContextManager[Write]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".npz": _npz,
    ".npy": _npy,
}
"""By file extension: opens a path for vectors of F numbers, and gives a function that writes one."""


def _stacked(held: list[Embedding], length: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.stack([each.vector for each in held]) if held else np.zeros((0, length), np.float32)


def _text(name: str) -> str:
    """A name as valid text: bytes that are none are written in hex, since these formats hold nothing else."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half of a character, which no file system gives
        return printable(name)
