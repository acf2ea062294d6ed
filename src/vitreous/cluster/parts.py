"""Finished parts of the results of a command, as Parquet files: what a command that is started again need not repeat.

A part holds the results of consecutive images, in their order. F is the length of a vector.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.files.text import json_text, printable
from vitreous.files.writing import atomic_write
from vitreous.predictions import Embedding, Failure, Prediction

__all__ = ["JOB", "PartFolder", "decode", "discard", "encode", "part_size"]

JOB = "_job.json"
"""Name of the file that says what the parts beside it are results of; readers of Parquet skip names with ``_``."""

_SMALLEST, _LARGEST, _PARTS = 64, 2048, 32  # images of a part; number of parts of a small job


def part_size(images: int) -> int:
    """Return the images of a part. It depends on nothing else, so any number of workers continues with the parts."""
    return min(_LARGEST, max(_SMALLEST, -(-images // _PARTS)))


_VECTORS = {"embed": "embedding", "logits": "logits"}  # kind of result -> its column


def encode(results: Sequence[Any], names: Sequence[str], kind: str) -> Any:
    """Return results as a table with columns path and error, and those of a prediction without images; or vectors."""
    import pyarrow as pa

    failures = [each if isinstance(each, Failure) else None for each in results]
    columns: dict[str, Any] = {"path": pa.array([_text(name) for name in names], pa.string())}
    if kind == "predict":
        found = [each if isinstance(each, Prediction) else None for each in results]
        top = [[{"label": _text(a), "probability": b} for a, b in each.top] if each else None for each in found]
        columns |= {
            "label": pa.array([_text(each.label) if each else None for each in found], pa.string()),
            "probability": pa.array([each.probability if each else None for each in found], pa.float32()),
            "top": pa.array(top, pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float32())]))),
            "unsure": pa.array([each.unsure if each else None for each in found], pa.bool_()),
            "set": pa.array(
                [[*map(_text, each.set)] if each and each.set is not None else None for each in found],
                pa.list_(pa.string()),
            ),
            "labels": pa.array(
                [[*map(_text, each.labels)] if each and each.labels is not None else None for each in found],
                pa.list_(pa.string()),
            ),
            "set_coverage": pa.array([each.set_coverage if each else None for each in found], pa.float64()),
        }
    else:
        vectors = [None if isinstance(each, Failure) else getattr(each, "vector", each) for each in results]
        columns[_VECTORS[kind]] = pa.array(vectors, pa.list_(pa.float32()))
    columns["error"] = pa.array([each.reason if each else None for each in failures], pa.string())
    return pa.table(columns)


def decode(table: Any, names: Sequence[str], classes: Iterable[str], kind: str) -> Iterator[Any]:
    """Yield the results of a table, under these names, as the classifier's method of this kind yields them."""
    spelt = {_text(name): name for name in classes}
    columns = {name: table.column(name) for name in table.column_names}
    errors = columns["error"].to_pylist()
    if kind == "predict":
        for name, error, row in zip(names, errors, table.to_pylist(), strict=True):
            yield Failure(name, error) if error is not None else _prediction(name, row, spelt)
        return
    vectors = columns[_VECTORS[kind]].combine_chunks()
    numbers, ends = np.asarray(vectors.values), np.asarray(vectors.offsets)
    for n, (name, error) in enumerate(zip(names, errors, strict=True)):
        vector = numbers[ends[n] : ends[n + 1]]
        yield Failure(name, error) if error is not None else Embedding(vector, name) if kind == "embed" else vector


def _prediction(name: str, row: Mapping[str, Any], spelt: Mapping[str, str]) -> Prediction:
    top = tuple((spelt[each["label"]], each["probability"]) for each in row["top"])
    held, labels = (
        None if row[name] is None else tuple(spelt[each] for each in row[name]) for name in ("set", "labels")
    )
    coverage = row["set_coverage"]
    return Prediction(*top[0], top, name, unsure=row["unsure"], set=held, set_coverage=coverage, labels=labels)


class PartFolder:
    """The parts of one job in a folder of their own, named after what the job computes.

    Args:
        root: The folder of all jobs of a command.
        job: What determines the results, as plain values.
        names: The names of its images.
    """

    def __init__(self, root: Path, job: Mapping[str, Any], names: Sequence[str]) -> None:
        self.names, self.size = names, part_size(len(names))
        listed = hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()
        described = {**job, "images": len(names), "images_sha256": listed, "images_per_part": self.size}
        digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()
        self.path = root / f"{job['kind']}-{digest[:12]}"
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / JOB).exists():
            with atomic_write(self.path / JOB, follow=False) as path:
                path.write_text(json_text(described, indent=2, ascii_only=True) + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(range(0, len(self.names), self.size))

    def names_of(self, part: int) -> Sequence[str]:
        """Return the names of the images of a part."""
        return self.names[part * self.size : (part + 1) * self.size]

    def missing(self) -> list[int]:
        """Return the numbers of the parts that are not finished, or damaged."""
        return [part for part in range(len(self)) if not self._is_whole(part)]

    def write(self, part: int, table: Any) -> None:
        """Write a part, completely or not at all."""
        from pyarrow import parquet

        with atomic_write(self._file(part), follow=False) as path:
            parquet.write_table(table, path)

    def read(self, part: int) -> Any:
        """Return the table of a finished part."""
        from pyarrow import parquet

        return parquet.ParquetFile(self._file(part)).read()

    def _file(self, part: int) -> Path:
        return self.path / f"part-{part:07d}.parquet"

    def _is_whole(self, part: int) -> bool:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            rows: int = parquet.read_metadata(self._file(part)).num_rows
        except (OSError, pa.ArrowException):
            return False
        return rows == len(self.names_of(part))


def discard(root: Path) -> None:
    """Remove the parts of all jobs in a folder, and the folder if nothing else is in it."""
    for job in root.glob(f"*/{JOB}"):
        shutil.rmtree(job.parent, ignore_errors=True)
    with contextlib.suppress(OSError):
        root.rmdir()


def _text(name: str) -> str:
    """Return a name as valid Unicode, as Parquet requires: other bytes become hex escapes."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone surrogate, which no file system returns
        return printable(name)
