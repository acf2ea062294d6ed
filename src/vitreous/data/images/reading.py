"""One picture, however people have it, as 8-bit RGB in upright orientation.

Which formats there are is :mod:`vitreous.data.images.formats`, how one is decoded :mod:`vitreous.data.images.decoding`, and what is
not decoded in this process :mod:`vitreous.data.images.watched`. The pictures of a folder are :mod:`vitreous.data.sources.finding`;
what a picture becomes for the model (size, mean, std) is :mod:`vitreous.data.preprocess`.
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
from vitreous.data.images.decoding import QUIET_PILLOW, TOO_LARGE, ImageFacts, decode, rgb_of, upright
from vitreous.data.images.exif import orientation_of
from vitreous.data.images.formats import FORMATS, MAX_BYTES
from vitreous.data.images.headers import Claim, UnreadableError, check_size, claim_of
from vitreous.data.images.memory_budget import BUDGET
from vitreous.data.images.watched.limits import bounded_time
from vitreous.data.images.watched.pool import decode_watched
from vitreous.errors import DataError
from vitreous.files.opening import open_descriptor, read_descriptor

__all__ = [
    "EIGHTH",
    "PictureFacts",
    "PictureSource",
    "examine",
    "explain",
    "inspect_picture",
    "opened_file",
    "read_picture",
    "read_reduced",
    "watched_already",
]

PictureSource = str | os.PathLike[str] | IO[bytes] | bytes | Image.Image | npt.NDArray[Any]

EIGHTH = (1, 1)
"""The ``least`` of :func:`examine` for which JPEGs are decoded at an eighth: that reads all of one, and is fast."""

_UNKNOWN = 12_000_000  # pixels that are counted for an image whose header does not say
_here = False


@dataclass(frozen=True, slots=True)
class PictureFacts:
    """What a full decode of a file showed.

    Args:
        size: Height and width in pixels, upright; (0, 0) where it cannot be decoded.
        grey: Whether it is stored without colour.
        reason: Why it cannot be decoded; None where it can.
    """

    size: tuple[int, int]
    grey: bool
    reason: str | None


def watched_already() -> None:
    """Say that this process is itself a watched one: it decodes everything, under the clock of one file."""
    global _here  # noqa: PLW0603 - a property of the process
    _here = True


def read_picture(source: PictureSource) -> Image.Image:
    """Decode one picture to mode RGB, upright, 8 bits a channel.

    EXIF orientation is applied, alpha is composited on white, 16 bits are scaled to 8, and of an animation the first
    frame is taken. The format is decided by content, never by the file's extension. Images of more pixels than
    :attr:`vitreous.data.images.formats.Format.whole_pixels` come at a half of their width and height; JPEGs also at less.

    Args:
        source: A path, the bytes of a file, a binary file object, a PIL image, or an array (H, W), (H, W, 1),
            (H, W, 3) or (H, W, 4): uint8, or float in [0, 1].

    Raises:
        DataError: If it cannot be decoded, naming the file and the reason: missing, no regular file, empty, truncated,
            not a picture, of a format that is not read, larger than :data:`vitreous.data.images.formats.FORMATS` allows, too
            slow, or of a type or shape that is no picture.
    """
    with _naming(source):
        if isinstance(source, np.ndarray):
            return rgb_of(_from_array(source))
        if isinstance(source, Image.Image):
            return _from_pillow(source)
    return _decoded(source)[0]


def read_reduced(path: str | os.PathLike[str], least: int) -> tuple[Image.Image, tuple[int, int]]:
    """Decode a picture, a JPEG at 1/2, 1/4 or 1/8 of its size where both its sides stay at ``least`` pixels or more.

    Returns:
        The picture as :func:`read_picture` has it, and its true height and width.

    Raises:
        DataError: As there.
    """
    image, facts = _decoded(path, (least, least))
    return image, facts.size


def _decoded(source: PictureSource, least: tuple[int, int] | None = None) -> tuple[Image.Image, ImageFacts]:
    """Decode a file or its bytes, and say what was seen; errors as :func:`read_picture`."""
    with _naming(source), _content_of(source) as content:
        facts, image = examine(content, least)
    if image is None:
        raise DataError(f"{_name_of(source)}: {facts.reason}")
    return image, facts


@contextmanager
def _naming(source: PictureSource) -> Iterator[None]:
    """Within, a reason why an image cannot be read becomes an error that names the image."""
    try:
        yield
    except UnreadableError as error:
        raise DataError(f"{_name_of(source)}: {error}") from error
    except MemoryError as error:
        raise DataError(f"{_name_of(source)}: {TOO_LARGE}") from error


def examine(
    content: Content | bytes, least: tuple[int, int] | None = None, pixels: bool = True
) -> tuple[ImageFacts, Image.Image | None]:
    """Decode a file's bytes within the limits of one file: the one place that says what can be used, and why not.

    Args:
        content: The bytes, which may be let go.
        least: Width and height that are enough; larger JPEGs are decoded at 1/2, 1/4 or 1/8 of their size.
        pixels: Whether the image is wanted, and not only what is seen.

    Returns:
        What was seen, and the image, mode RGB and upright; None where it was not wanted or cannot be read.
    """
    content = content if isinstance(content, Content) else Content(content)
    try:
        claim = claim_of(content.data)
    except UnreadableError as error:
        return ImageFacts(reason=str(error)), None
    with BUDGET.image(_space(claim, least)):
        if claim.here:
            return decode(content, claim.form, least)
        if _here:
            with bounded_time():
                return decode(content, claim.form, least)
        return decode_watched(content, claim.form, least, pixels)


def inspect_picture(content: Content | bytes) -> PictureFacts:
    """Decode a file's bytes as far as needed to know that :func:`read_picture` can, and measure it.

    JPEGs are decoded at an eighth of the size, which reads the whole stream, so truncation shows, and is faster.
    """
    facts, _ = examine(content, EIGHTH, pixels=False)
    return PictureFacts((0, 0), False, facts.reason) if facts.reason else PictureFacts(facts.size, facts.grey, None)


@contextmanager
def opened_file(path: str | os.PathLike[str]) -> Iterator[Content]:
    """Give the content of a file that may be a picture, once there is room for it.

    Raises:
        UnreadableError: If it cannot be opened, is no regular file, or is too large.
    """
    try:
        handle, size = open_descriptor(path, MAX_BYTES)
    except OSError as error:
        raise UnreadableError(explain(error)) from error
    except ValueError as error:
        raise UnreadableError("its name holds a NUL, which no file's does") from error
    try:
        with BUDGET.content(size):
            try:
                content = Content(read_descriptor(handle, size))
            except OSError as error:
                raise UnreadableError(explain(error)) from error
            yield content
    finally:
        os.close(handle)


def explain(error: OSError) -> str:
    """The reason, in a few words, why a file could not be read at all."""
    if isinstance(error, FileNotFoundError):
        is_link = error.filename is not None and os.path.islink(error.filename)
        return "a link to a file that is gone" if is_link else "no such file"
    reason = (error.strerror or str(error)).lower()
    return f"{reason}: save it smaller" if error.errno == errno.EFBIG else reason


def _space(claim: Claim, least: tuple[int, int] | None) -> int:
    """Bytes of memory that decoding takes, roughly."""
    pixels = claim.pixels or _UNKNOWN
    if claim.form == "JPEG":
        pixels = pixels // 64 if least == EIGHTH else min(pixels, 40_000_000) // (4 if least is not None else 1)
    return pixels * FORMATS[claim.form].space + claim.held


def _name_of(source: PictureSource) -> str:
    """What to call a source in an error."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, np.ndarray):
        return "array"
    name = getattr(source, "filename", None) or getattr(source, "name", None)
    return str(name) if name else "picture"


@contextmanager
def _content_of(source: PictureSource) -> Iterator[Content]:
    """The bytes of a path or a file object."""
    if isinstance(source, bytes):
        yield Content(source)
    elif isinstance(source, (str, os.PathLike)):
        with opened_file(source) as content:
            yield content
    elif hasattr(source, "read"):
        yield _read_from(source)  # type: ignore[arg-type]
    else:
        kinds = "a path, a binary file, a PIL image or a NumPy array (H, W, 3)"
        raise UnreadableError(f"a {type(source).__name__} is no picture: give {kinds}")


def _read_from(file: IO[bytes]) -> Content:
    """What a file object holds, up to the limit of a file."""
    try:
        content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableError(explain(error)) from error
    if not isinstance(content, bytes):
        raise UnreadableError("the file is opened as text, open it as binary (mode 'rb')")
    if len(content) > MAX_BYTES:
        raise UnreadableError(f"more than {MAX_BYTES:,} bytes, the limit of a file: save it smaller")
    return Content(content)


def _from_pillow(image: Image.Image) -> Image.Image:
    """An image of the caller's; where it was not decoded yet, and that may take too much, its file is read here."""
    if isinstance(image, ImageFile.ImageFile) and image.tile and image.fp is not None and _first_frame(image):
        at = image.fp.tell()
        try:
            image.fp.seek(0)
            content = _read_from(image.fp)
        finally:
            image.fp.seek(at)
        if not claim_of(content.data).here:
            facts, read = examine(content)
            if read is None:
                raise UnreadableError(facts.reason)
            return read
    if getattr(image, "tile", None):
        check_size(image.format or "", *image.size)
    with QUIET_PILLOW:
        try:
            image.load()
        except MemoryError:
            raise
        except Exception as error:
            raise UnreadableError(f"cannot be decoded: {error!s:.200}") from error
        return upright(rgb_of(image), orientation_of(image))


def _first_frame(image: ImageFile.ImageFile) -> bool:
    """Whether an image stands where :func:`examine` would read, at its file's beginning, in a format that is read."""
    try:
        return image.format in (*FORMATS, "MPO", "HEIF") and image.tell() == 0 and image.fp.seekable()  # type: ignore[union-attr]
    except Exception:  # closed, or a file object of another kind
        return False


def _from_array(array: npt.NDArray[Any]) -> Image.Image:
    """A PIL image of an array in memory."""
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if 0 in array.shape or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        hint = ", move the channels last" if array.ndim == 3 and array.shape[0] in (1, 3, 4) else ""
        raise UnreadableError(f"shape {array.shape} is no picture: it must be (H, W), (H, W, 3) or (H, W, 4){hint}")
    if array.dtype.kind == "f":
        least, most = float(array.min()), float(array.max())
        if not (least >= 0 and most <= 1):
            raise UnreadableError(f"float values lie in [{least:g}, {most:g}], they must lie in [0, 1]")
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise UnreadableError(f"values are {array.dtype}, they must be uint8, or float in [0, 1]")
    return Image.fromarray(np.ascontiguousarray(array))
