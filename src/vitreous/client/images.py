"""Images in the forms that `predict` takes, as the bytes of files to send. Needs no torch."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vitreous.errors import DataError
from vitreous.files.opening import read_regular
from vitreous.predictions import Failure, input_name, raise_failures

__all__ = ["chunks", "one_or_all", "to_bytes"]

_CHUNK_BYTES = 8 << 20  # in a request, unless one image is larger
_MAX_BYTES = 152 << 20  # of one image file, as elsewhere


def to_bytes(item: Any) -> bytes:
    """Return an image as the bytes of a file.

    Raises:
        DataError: If it is no image, or cannot be read.
    """
    if isinstance(item, str | os.PathLike):
        return _read(os.fspath(item))
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    if hasattr(item, "read"):
        content = item.read(_MAX_BYTES + 1)
        if not isinstance(content, bytes):
            raise DataError("the file is open in text mode, open it in binary mode ('rb')")
        return content
    return _encode(item)


def _read(path: str) -> bytes:
    from vitreous.data.sources.urls import refuse_url

    refuse_url(path)
    try:
        content = read_regular(path, _MAX_BYTES)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from None
    if not content:
        raise DataError(f"{path}: empty, 0 bytes")
    return content


def _encode(item: Any) -> bytes:
    """Return an array, a tensor or a PIL image as a PNG file, which loses nothing."""
    import numpy as np
    from PIL import Image

    from vitreous.data.images.reading import read_image

    if hasattr(item, "detach"):  # a tensor (H, W) or (C, H, W)
        item = item.detach().cpu().numpy()
        item = item.transpose(1, 2, 0) if item.ndim == 3 else item
    if not isinstance(item, np.ndarray | Image.Image):
        raise DataError(
            f"a value of type {type(item).__name__} is not an image: pass a path, the bytes of an image file, a binary "
            "file, a PIL image, an array H x W x C or a tensor C x H x W; or a list of these"
        )
    memory = io.BytesIO()
    read_image(item).save(memory, "PNG", compress_level=1)
    return memory.getvalue()


def chunks(items: Iterable[Any], most: int) -> Iterator[list[tuple[str, bytes | Failure]]]:
    """Yield names and contents of up to ``most`` images that are small enough together."""
    chunk: list[tuple[str, bytes | Failure]] = []
    size = 0
    for position, item in enumerate(_split(items)[1]):
        name = input_name(item, position)
        try:
            content: bytes | Failure = to_bytes(item)
        except DataError as error:
            content = Failure(name, str(error).removeprefix(f"{name}: ").removeprefix("array: "))
        length = len(content) if isinstance(content, bytes) else 0
        if chunk and (len(chunk) == most or size + length > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append((name, content))
        size += length
    if chunk:
        yield chunk


def _split(x: Any) -> tuple[bool, Iterable[Any]]:
    """Return whether the input is a single image, and its images."""
    shape = getattr(x, "shape", None)
    if shape is not None:
        return (False, list(x)) if len(shape) == 4 else (True, [x])
    if isinstance(x, str | os.PathLike | bytes | bytearray | memoryview) or hasattr(x, "read") or hasattr(x, "getbbox"):
        return True, [x]
    if isinstance(x, Mapping) or not isinstance(x, Iterable):
        to_bytes(x)  # raises with what an image may be
    return False, x


def one_or_all(x: Any, stream: Callable[[Iterable[Any]], Iterator[Any]]) -> Any:
    """Return the result for a single image, or a list for several; raise one error for all failures."""
    is_single, items = _split(x)
    results = list(stream(items))
    raise_failures(results, is_single)
    return results[0] if is_single else results
