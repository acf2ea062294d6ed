"""Images in Parquet as Hugging Face's datasets store them: a column of bytes, a column of labels, class names beside.

A row group is read at once, so it is what a shard is: training mixes the images of a few row groups at a time, and each
process keeps those that it read last.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from vitreous.data.images.headers import UnreadableError
from vitreous.data.images.stored import Container, StoredImage
from vitreous.data.shards.reader import ContainerReader
from vitreous.errors import DataError, MissingExtraError, first_line

__all__ = ["PARQUET_SUFFIXES", "has_images", "read_parquet"]

PARQUET_SUFFIXES = (".parquet", ".pq")
"""How the names of Parquet files end."""
_IMAGES = ("image", "img", "jpg", "png")
_LABELS = ("label", "labels", "fine_label", "class", "cls")
_HELD_BYTES = 512 << 20  # of the row groups that a process keeps
_MOST_GROUP_BYTES = 4 << 30  # unpacked; a file of a few hundred bytes can claim any number


class _RowGroup:
    """One row group of a table; its images are addressed by their row."""

    def __init__(self, file: Container, size: int, group: int, column: str) -> None:
        self.file, self.size, self.group, self.column = file, size, group, column
        self.name = file.name

    def read(self, offset: int, length: int) -> bytes:
        """Return the image in the row ``offset`` of the group."""
        content = _HELD.rows(self)[offset].as_py()
        content = content.get("bytes") if isinstance(content, dict) else content
        if not isinstance(content, bytes) or not content:
            raise UnreadableError(f"row {offset:,} of group {self.group:,} has no bytes: the table refers to a file")
        return content


class _Row(StoredImage):
    """An image whose length is known once it is read."""

    __slots__ = ()

    def read(self) -> bytes:
        """Return the bytes of the image."""
        content = self.container.read(self.offset, 0)
        self.length = len(content)
        return content


class _Held:
    """The row groups that were read last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.groups: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def rows(self, group: _RowGroup) -> Any:
        """Return the images of a row group, one for each row."""
        key = (group.name, group.group)
        with self.lock:
            if key not in self.groups:
                table = _open(group.file, group.size).read_row_group(group.group, [group.column], use_threads=False)
                self.groups[key] = table.column(0).combine_chunks()
                while len(self.groups) > 1 and sum(each.nbytes for each in self.groups.values()) > _HELD_BYTES:
                    self.groups.popitem(last=False)
            self.groups.move_to_end(key)
            return self.groups[key]


_HELD = _Held()


def has_images(file: Container, size: int) -> bool:
    """Return whether a Parquet file can be read and has a column of images, not of paths."""
    with contextlib.suppress(DataError, MissingExtraError):  # it may be a manifest, whose errors say more
        return _columns(_open(file, size).schema_arrow)[0] is not None
    return False


def read_parquet(file: Container, size: int) -> Iterator[tuple[str, str | None, StoredImage]]:
    """Yield name, label and image of each row of a Parquet file, in its order."""
    table = _open(file, size)
    schema = table.schema_arrow
    column, label_column = _columns(schema)
    if column is None:
        raise DataError(
            f"{file.name} has no column of images ({', '.join(_IMAGES)}) with their bytes: its columns are "
            f"{', '.join(schema.names)[:200]}"
        )
    names = _class_names(schema, label_column)
    row = 0
    for number in range(table.num_row_groups):
        count = table.metadata.row_group(number).num_rows
        if table.metadata.row_group(number).total_byte_size > _MOST_GROUP_BYTES:
            raise DataError(f"{file.name}: row group {number:,} unpacks to more than {_MOST_GROUP_BYTES:,} bytes")
        group = _RowGroup(file, size, number, column)
        labels: list[Any] = [None] * count
        if label_column is not None:
            labels = table.read_row_group(number, [label_column], use_threads=False).column(0).to_pylist()
        for place, label in enumerate(labels):
            name = f"{row:09d}"
            yield name, _label(label, names), _Row(group, name, place, 0)
            row += 1


def _open(file: Container, size: int) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            f"{file.name} is a Parquet file, and pyarrow is not installed: pip install 'vitreous[table]'"
        ) from error
    try:
        return pyarrow.parquet.ParquetFile(pyarrow.PythonFile(ContainerReader(file, size), mode="r"))
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DataError(f"{file.name} cannot be read as a Parquet file: {first_line(error)}") from error


def _columns(schema: Any) -> tuple[str | None, str | None]:
    """Return the names of the columns of images and of labels."""
    from pyarrow import types

    def is_image(kind: Any) -> bool:
        if types.is_struct(kind):
            return bool(kind.get_field_index("bytes") >= 0)
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    image = next((name for name in _IMAGES if name in schema.names and is_image(schema.field(name).type)), None)
    label = next((name for name in _LABELS if name in schema.names and name != image), None)
    return image, label


def _class_names(schema: Any, label_column: str | None) -> list[str]:
    """Return the class names that Hugging Face's datasets keep in the metadata; empty if there are none."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label_column]["names"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return []
    return names if isinstance(names, list) and all(isinstance(name, str) and name for name in names) else []


def _label(value: Any, names: list[str]) -> str | None:
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return str(value) if isinstance(value, int | str) and value not in ("", -1) else None
