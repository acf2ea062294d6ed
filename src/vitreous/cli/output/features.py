"""Writers of feature vectors, F numbers per image: Parquet, CSV and NumPy. Parquet and CSV are written as a stream."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from vitreous.errors import MissingExtraError
from vitreous.files.text import csv_line, printable
from vitreous.predictions import Embedding

__all__ = ["WRITERS", "require_packages"]

Write = Callable[[Embedding], None]
_ROWS = 4096  # vectors per row group of a Parquet file


def require_packages(suffix: str) -> None:
    """Check that the packages of a format are installed."""
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError("Parquet needs pyarrow: pip install 'vitreous[table]', or write .csv or .npz")


@contextmanager
def _parquet(path: Path, length: int) -> Iterator[Write]:
    """Write columns path (string) and embedding (fixed-size list of F floats)."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([("path", pa.string()), ("embedding", pa.list_(pa.float32(), length))])
    pending: list[Embedding] = []
    with parquet.ParquetWriter(path, schema) as file:

        def flush() -> None:
            if pending:
                names = pa.array([_text(each.name) for each in pending])
                numbers = pa.array(np.concatenate([each.vector for each in pending]))
                vectors = pa.FixedSizeListArray.from_arrays(numbers, length)
                file.write_table(pa.Table.from_arrays([names, vectors], schema=schema))
                pending.clear()

        def write(result: Embedding) -> None:
            pending.append(result)
            if len(pending) == _ROWS:
                flush()

        yield write
        flush()


@contextmanager
def _csv(path: Path, length: int) -> Iterator[Write]:
    """Write a header, then one row per image: path, f0, f1, ..., with the digits that restore float32 exactly."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        stream.write(csv_line(["path", *(f"f{n}" for n in range(length))]))

        def write(result: Embedding) -> None:
            stream.write(csv_line([result.name, *result.vector]))

        yield write


@contextmanager
def _numpy(path: Path, length: int, with_paths: bool) -> Iterator[Write]:
    """Write arrays path (n) and embedding (n, F) as .npz, or the array (n, F) alone as .npy."""
    results: list[Embedding] = []
    yield results.append
    vectors = np.stack([each.vector for each in results]) if results else np.zeros((0, length), np.float32)
    with open(path, "wb") as stream:
        if with_paths:
            names = np.asarray([_text(each.name) for each in results], dtype=np.str_)
            np.savez(stream, path=names, embedding=vectors)
        else:
            np.save(stream, vectors)


WRITERS: dict[str, Callable[[Path, int], AbstractContextManager[Write]]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".npz": partial(_numpy, with_paths=True),
    ".npy": partial(_numpy, with_paths=False),
}
"""Writer by file extension: opens a path for vectors of F numbers and yields a function that writes one."""


def _text(name: str) -> str:
    """Return a name as valid Unicode, as these formats require: other bytes become hex escapes."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate, which no file system returns
        return printable(name)
