"""One picture, however people have it, as 8-bit RGB in upright orientation.

The pictures of a folder are :mod:`vitreous.data.finding`; what a picture becomes for the model (size, mean, std) is
:mod:`vitreous.data.preprocess`.
"""

from __future__ import annotations

import io
import os
import re
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from vitreous.errors import DataError

__all__ = [
    "MAX_PIXELS",
    "PictureFacts",
    "PictureSource",
    "explain",
    "inspect_picture",
    "open_picture",
    "orientation_of",
    "read_picture",
    "starts_like_picture",
]

PictureSource = str | os.PathLike[str] | IO[bytes] | bytes | Image.Image | npt.NDArray[Any]

MAX_PIXELS = 178_956_970
"""Pixels above which a picture is refused before it is decoded: the limit at which Pillow calls it a bomb."""

# Pixels times passes over them: a progressive JPEG of 300 kB can ask for thousands and keep a decoder busy for minutes.
# So many take about 2 s; encoders make 10 passes or so, which this allows at any size up to the limit above.
_MAX_PASSES = 5_000_000_000

# Formats with a signature. Pillow decides by content among these alone: EPS and PDF would start other programs, and
# TGA and PCX accept random bytes.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "DIB", "AVIF", "HEIF", "JPEG2000", "MPO", "PPM", "ICO", "QOI")
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ")
_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIF", b"heix": "HEIF", b"mif1": "HEIF"}

# EXIF tag 0x0112: how to turn the stored pixels so that they stand upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class _UnreadableError(Exception):
    """Why a picture cannot be decoded, without its name."""


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


def read_picture(source: PictureSource) -> Image.Image:
    """Decode one picture to mode RGB, upright, 8 bits a channel.

    EXIF orientation is applied, alpha is composited on white, 16 bits are scaled to 8, and of an animation the first
    frame is taken. The format is decided by content, never by the file's extension.

    Args:
        source: A path, the bytes of a file, a binary file object, a PIL image, or an array (H, W), (H, W, 1),
            (H, W, 3) or (H, W, 4): uint8, or float in [0, 1].

    Raises:
        DataError: If it cannot be decoded, naming the file and the reason: missing, empty, truncated, not a picture,
            more than :data:`MAX_PIXELS` pixels, or of a type or shape that is no picture.
    """
    try:
        if isinstance(source, np.ndarray):
            return _to_rgb(_from_array(source))
        with _QUIET_PILLOW:
            if isinstance(source, Image.Image):
                return _to_rgb(_decode(source))
            return _to_rgb(_decode(_open(_content(source))))
    except _UnreadableError as error:
        raise DataError(f"{_name_of(source)}: {error}") from error


def open_picture(content: bytes) -> Image.Image:
    """Read the header of a file's bytes: format, mode and size; :func:`read_picture` takes it from there.

    Raises:
        DataError: If it is no picture, or one of too many pixels; the reason alone.
    """
    try:
        with _QUIET_PILLOW:
            return _open(content)
    except _UnreadableError as error:
        raise DataError(str(error)) from error


def inspect_picture(content: bytes) -> PictureFacts:
    """Decode a file's bytes as far as needed to know that :func:`read_picture` can, and measure it.

    JPEGs are decoded at an eighth of the size, which reads the whole stream, so truncation shows, and is faster.
    """
    try:
        with _QUIET_PILLOW:
            image = _open(content)
            width, height = image.size
            if image.format in ("JPEG", "MPO"):
                image.draft(image.mode, (max(1, width // 8), max(1, height // 8)))
                _decode(image)
                if orientation_of(image) in (5, 6, 7, 8):
                    width, height = height, width
            else:
                upright = _decode(image)
                _to_rgb(upright)
                width, height = upright.size
            return PictureFacts((height, width), _is_grey(image), None)
    except _UnreadableError as error:
        return PictureFacts((0, 0), False, str(error))


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; a damaged EXIF block does not make a picture unreadable."""
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # whatever a damaged block raises
        return 1


def starts_like_picture(start: bytes) -> bool:
    """Whether a file's first 16 bytes are those of a picture."""
    return start.startswith(_SIGNATURES) or (start[:4] == b"RIFF" and start[8:12] == b"WEBP") or _brand(start) != ""


def _brand(start: bytes) -> str:
    """AVIF or HEIC where the first bytes are of an ISO media file of that brand, else an empty string."""
    return _BRANDS.get(start[8:12], "") if start[4:8] == b"ftyp" else ""


class _QuietPillow:
    """Silences Pillow's own warnings while any thread decodes: what matters in them becomes a reason here.

    ``warnings.catch_warnings`` swaps a list of the whole process, so the first thread in swaps and the last one out
    swaps back.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.caught = warnings.catch_warnings()
                self.caught.__enter__()
                warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
                warnings.filterwarnings("ignore", module=r"PIL\.")

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.caught.__exit__(None, None, None)


_QUIET_PILLOW = _QuietPillow()


def _name_of(source: PictureSource) -> str:
    """What to call a source in an error."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, np.ndarray):
        return "array"
    name = getattr(source, "filename", None) or getattr(source, "name", None)
    return str(name) if name else "picture"


def _content(source: PictureSource) -> bytes:
    """The bytes of a path or a file object."""
    if isinstance(source, bytes):
        return source
    try:
        if isinstance(source, (str, os.PathLike)):
            return Path(source).read_bytes()
        if hasattr(source, "read"):
            data = source.read()
            if isinstance(data, bytes):
                return data
            raise _UnreadableError("the file is opened as text, open it as binary (mode 'rb')")
    except OSError as error:
        raise _UnreadableError(explain(error)) from error
    raise _UnreadableError(
        f"a {type(source).__name__} is no picture: give a path, a binary file, a PIL image or a NumPy array (H, W, 3)"
    )


def explain(error: OSError) -> str:
    """The reason, in a few words, why a file could not be read at all."""
    if isinstance(error, FileNotFoundError):
        is_link = error.filename is not None and os.path.islink(error.filename)
        return "a link to a file that is gone" if is_link else "no such file"
    return (error.strerror or str(error)).lower()


def _open(content: bytes) -> Image.Image:
    """Read the header: what kind of picture, and how large."""
    if not content:
        raise _UnreadableError("empty, 0 bytes")
    Image.init()
    try:
        image = Image.open(io.BytesIO(content), formats=[name for name in _FORMATS if name in Image.OPEN])
    except UnidentifiedImageError as error:
        brand = _brand(content[:16])
        if brand and brand not in Image.OPEN:
            raise _UnreadableError(f"{brand} pictures cannot be read here, save it as JPEG") from error
        is_known = brand or content.startswith(_SIGNATURES)
        raise _UnreadableError("damaged or truncated" if is_known else "not a picture") from error
    except Image.DecompressionBombError as error:
        raise _UnreadableError(_too_many(int(re.findall(r"\d+", str(error))[0]))) from error
    except Exception as error:  # a decoder meets damaged bytes with any of a dozen built-in errors
        raise _UnreadableError(_why_not(error)) from error
    if image.format in ("JPEG", "MPO"):
        passes = content.count(b"\xff\xda")  # each begins with this marker
        pixels = image.width * image.height
        if passes * pixels > _MAX_PASSES:
            asked = f"{passes:,} passes over {image.width} x {image.height} pixels"
            raise _UnreadableError(f"asks for {asked}, the limit is {_MAX_PASSES // pixels:,}")
    return image


def _why_not(error: Exception) -> str:
    """A decoder's error in the words used here."""
    text = str(error)
    if isinstance(error, EOFError) or re.search(r"truncated|not enough|unrecognized data", text, re.IGNORECASE):
        return "truncated"
    if re.search(r"broken|could not create decoder", text, re.IGNORECASE):
        return "damaged or truncated"
    return f"cannot be decoded: {text}"


def _too_many(pixels: int) -> str:
    return f"{pixels:,} pixels, the limit is {MAX_PIXELS:,}"


def _decode(image: Image.Image) -> Image.Image:
    """Decode the pixels and turn them upright."""
    if image.width * image.height > MAX_PIXELS:
        raise _UnreadableError(_too_many(image.width * image.height))
    try:
        image.load()
        turn = _UPRIGHT.get(orientation_of(image))
        return image if turn is None else image.transpose(turn)
    except Exception as error:  # as above: OSError, SyntaxError, EOFError, struct.error, zlib.error ...
        raise _UnreadableError(_why_not(error)) from error


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("1", "L", "LA", "La", "F") or image.mode.startswith("I")


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB: deep greys scaled to 8 bits, alpha composited on white."""
    try:
        if image.mode == "F" or image.mode.startswith("I"):
            return Image.fromarray(_deep_to_8_bits(np.asarray(image))).convert("RGB")
        if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, (255, 255, 255, 255))
            return Image.alpha_composite(white, image).convert("RGB")
        return image.convert("RGB")
    except Exception as error:  # a mode without a conversion, a damaged palette
        raise _UnreadableError(f"cannot be converted to RGB: {error}") from error


def _deep_to_8_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Scale grey values (H, W) of more than 8 bits to 0..255.

    16 bits keep their scale (65535 becomes 255). 32-bit integers in that range count as 16 bits, floats in [0, 1]
    or [0, 255] keep theirs; anything else is stretched from its least to its greatest value.
    """
    deep = values.astype(np.float64)
    if not np.isfinite(deep).all():
        raise ValueError("it has values that are not finite")
    least, most = deep.min(), deep.max()
    if values.dtype.kind in "iu" and least >= 0 and most <= 65535:
        deep *= 255 / 65535
    elif values.dtype.kind == "f" and least >= 0 and most <= 255:
        deep *= 255 if most <= 1 else 1
    else:
        deep = (deep - least) * (255 / max(most - least, 1e-12))
    return np.rint(deep).astype(np.uint8)


def _from_array(array: npt.NDArray[Any]) -> Image.Image:
    """A PIL image of an array in memory."""
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if 0 in array.shape or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        hint = ", move the channels last" if array.ndim == 3 and array.shape[0] in (1, 3, 4) else ""
        raise _UnreadableError(f"shape {array.shape} is no picture: it must be (H, W), (H, W, 3) or (H, W, 4){hint}")
    if array.dtype.kind == "f":
        least, most = float(array.min()), float(array.max())
        if not (least >= 0 and most <= 1):
            raise _UnreadableError(f"float values lie in [{least:g}, {most:g}], they must lie in [0, 1]")
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise _UnreadableError(f"values are {array.dtype}, they must be uint8, or float in [0, 1]")
    return Image.fromarray(np.ascontiguousarray(array))
