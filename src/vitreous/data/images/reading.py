"""Entry points: one image, as a path, bytes, file object, PIL image or array, to 8-bit RGB in upright orientation.

Files in a folder are found by :mod:`vitreous.data.sources.finding`; :mod:`vitreous.data.preprocess` resizes and
normalises an image for the model.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from vitreous.data.images.content import Content
from vitreous.data.images.decoding import TOO_LARGE, FileFacts, decode, to_rgb, to_upright_rgb
from vitreous.data.images.formats import FORMATS, MAX_BYTES
from vitreous.data.images.headers import Header, UnreadableError, check_size, read_header
from vitreous.data.images.memory_budget import BUDGET
from vitreous.data.images.stored import StoredImage
from vitreous.data.images.watched.limits import cpu_time_limit
from vitreous.data.images.watched.pool import decode_watched
from vitreous.errors import DataError
from vitreous.files.opening import open_descriptor, read_descriptor

__all__ = [
    "ImageFacts",
    "ImageSource",
    "declare_watched",
    "decode_with_limits",
    "inspect_image",
    "open_image_file",
    "read_image",
    "read_reduced",
]

ImageSource = str | os.PathLike[str] | IO[bytes] | bytes | Image.Image | npt.NDArray[Any]
"""What an image is read from."""

_EIGHTH = (1, 1)  # minimum size for which every JPEG is decoded at an eighth
_UNKNOWN_PIXELS = 12_000_000  # assumed where the header does not give the size
_process_is_watched = False


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What a scan keeps of an image."""

    size: tuple[int, int]  # upright height and width in pixels; (0, 0) if it cannot be decoded
    grey: bool  # stored without colour
    reason: str | None  # why it cannot be decoded; None if it can


def declare_watched() -> None:
    """Declare that this process is itself a watched one, so that it decodes every file, within the time limit."""
    global _process_is_watched  # noqa: PLW0603 - a property of the process
    _process_is_watched = True


def read_image(source: ImageSource) -> Image.Image:
    """Decode an image to 8-bit RGB in upright orientation.

    EXIF orientation is applied, alpha is composited on white, 16 bits are scaled to 8, and an animation gives its
    first frame. Images with more than ``full_size_pixels`` (:class:`vitreous.data.images.formats.Format`) are
    returned at half their width and height, JPEGs also at less.

    Args:
        source: A path, the bytes of an image file, a binary file object, a PIL image, or an array (H, W), (H, W, 1),
            (H, W, 3) or (H, W, 4) of uint8, or of floats in [0, 1].

    Raises:
        DataError: If it cannot be read, with its name and the reason.
    """
    with _named_errors(source):
        if isinstance(source, np.ndarray):
            return to_rgb(_from_array(source))
        if isinstance(source, Image.Image):
            return _from_pillow(source)
    return _decode(source)[0]


def read_reduced(path: str | os.PathLike[str] | bytes, min_side: int) -> tuple[Image.Image, tuple[int, int]]:
    """Decode an image, a JPEG at 1/2, 1/4 or 1/8 of its size if both sides keep at least ``min_side`` pixels.

    Return it as :func:`read_image` does, and its full height and width.
    """
    image, facts = _decode(path, (min_side, min_side))
    return image, facts.size


def _decode(source: ImageSource, min_size: tuple[int, int] | None = None) -> tuple[Image.Image, FileFacts]:
    with _named_errors(source), _content_of(source) as content:
        facts, image = decode_with_limits(content, min_size)
    if image is None:
        raise DataError(f"{_name_of(source)}: {facts.reason}")
    return image, facts


@contextmanager
def _named_errors(source: ImageSource) -> Iterator[None]:
    try:
        yield
    except UnreadableError as error:
        raise DataError(f"{_name_of(source)}: {error}") from error
    except MemoryError as error:
        raise DataError(f"{_name_of(source)}: {TOO_LARGE}") from error


def decode_with_limits(
    content: Content | bytes, min_size: tuple[int, int] | None = None, pixels: bool = True
) -> tuple[FileFacts, Image.Image | None]:
    """Decode a file within the limits on time and memory. All readers use this, so they agree on what is readable.

    ``content`` and ``min_size`` are those of :func:`~vitreous.data.images.decoding.decode`. Return the facts, and the
    upright RGB image; None if it cannot be read, or if ``pixels`` is False and a watched process decodes it.
    """
    content = content if isinstance(content, Content) else Content(content)
    try:
        header = read_header(content.data)
    except UnreadableError as error:
        return FileFacts(reason=str(error)), None
    with BUDGET.image(_decoding_bytes(header, min_size)):
        if header.in_process:
            return decode(content, header.format, min_size)
        if _process_is_watched:
            with cpu_time_limit():
                return decode(content, header.format, min_size)
        return decode_watched(content, header.format, min_size, pixels)


def inspect_image(content: Content | bytes) -> ImageFacts:
    """Check that :func:`read_image` can decode a file, and measure it.

    JPEGs are decoded at an eighth of their size, which still reads the whole stream and so detects truncation.
    """
    facts, _ = decode_with_limits(content, _EIGHTH, pixels=False)
    return ImageFacts((0, 0), False, facts.reason) if facts.reason else ImageFacts(facts.size, facts.grey, None)


@contextmanager
def open_image_file(path: str | os.PathLike[str]) -> Iterator[Content]:
    """Read a file that may be an image, once the memory budget has room; raise UnreadableError if it cannot be."""
    if isinstance(path, StoredImage):
        with BUDGET.content(path.length):
            yield Content(path.read())
        return
    try:
        handle, size = open_descriptor(path, MAX_BYTES)
    except OSError as error:
        raise UnreadableError(_explain(error)) from error
    except ValueError as error:
        raise UnreadableError("the path contains a NUL character") from error
    try:
        with BUDGET.content(size):
            try:
                content = Content(read_descriptor(handle, size))
            except OSError as error:
                raise UnreadableError(_explain(error)) from error
            yield content
    finally:
        os.close(handle)


def _explain(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        is_link = error.filename is not None and os.path.islink(error.filename)
        return "a link to a file that is gone" if is_link else "no such file"
    reason = (error.strerror or str(error)).lower()
    return f"{reason}: save it smaller" if error.errno == errno.EFBIG else reason


def _decoding_bytes(header: Header, min_size: tuple[int, int] | None) -> int:
    pixels = header.pixels or _UNKNOWN_PIXELS
    if header.format == "JPEG":
        pixels = pixels // 64 if min_size == _EIGHTH else min(pixels, 40_000_000) // (4 if min_size is not None else 1)
    return pixels * FORMATS[header.format].bytes_per_pixel + header.extra_bytes


def _name_of(source: ImageSource) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, np.ndarray):
        return "array"
    name = getattr(source, "filename", None) or getattr(source, "name", None)
    return str(name) if name else "image"


@contextmanager
def _content_of(source: ImageSource) -> Iterator[Content]:
    if isinstance(source, bytes):
        yield Content(source)
    elif isinstance(source, (str, os.PathLike)):
        with open_image_file(source) as content:
            yield content
    elif hasattr(source, "read"):
        yield _read_file(source)  # type: ignore[arg-type]
    else:
        expected = "a path, bytes, a binary file, a PIL image or a NumPy array (H, W, 3)"
        raise UnreadableError(f"cannot read an image from {type(source).__name__}, expected {expected}")


def _read_file(file: IO[bytes]) -> Content:
    """Read the rest of a file object, up to the limit on a file's size."""
    try:
        content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableError(_explain(error)) from error
    if not isinstance(content, bytes):
        raise UnreadableError("the file is open in text mode, open it in binary mode ('rb')")
    if len(content) > MAX_BYTES:
        raise UnreadableError(f"more than {MAX_BYTES:,} bytes, the limit of a file: save it smaller")
    return Content(content)


def _from_pillow(image: Image.Image) -> Image.Image:
    """Convert a PIL image. One that is not decoded yet, and may be expensive, is read from its file with limits."""
    if isinstance(image, ImageFile.ImageFile) and image.tile and image.fp is not None and _is_first_frame(image):
        position = image.fp.tell()
        try:
            image.fp.seek(0)
            content = _read_file(image.fp)
        finally:
            image.fp.seek(position)
        if not read_header(content.data).in_process:
            facts, decoded = decode_with_limits(content)
            if decoded is None:
                raise UnreadableError(facts.reason)
            return decoded
    if getattr(image, "tile", None):
        check_size(image.format or "", *image.size)
    return to_upright_rgb(image)


def _is_first_frame(image: ImageFile.ImageFile) -> bool:
    """Return whether :func:`decode_with_limits` would decode the same frame: the first one, of a supported format."""
    try:
        return image.format in (*FORMATS, "MPO", "HEIF") and image.tell() == 0 and image.fp.seekable()  # type: ignore[union-attr]
    except Exception:  # closed, or an unusual file object
        return False


def _from_array(array: npt.NDArray[Any]) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if 0 in array.shape or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        hint = "; move the channels last" if array.ndim == 3 and array.shape[0] in (1, 3, 4) else ""
        raise UnreadableError(f"shape {array.shape} is not an image, expected (H, W), (H, W, 3) or (H, W, 4){hint}")
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):
            raise UnreadableError(f"float values are in [{low:g}, {high:g}], they must be in [0, 1]")
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise UnreadableError(f"values are {array.dtype}, they must be uint8, or float in [0, 1]")
    return Image.fromarray(np.ascontiguousarray(array))
