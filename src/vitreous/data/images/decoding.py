"""From a file's bytes to an upright 8-bit RGB image, in this process and with little memory.

:mod:`vitreous.data.images.reading` decides whether a file is decoded here or in a watched process, which runs this too.
"""

from __future__ import annotations

import importlib.util
import io
import math
import re
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from vitreous.data.images.content import Content
from vitreous.data.images.exif import TRANSPOSES, read_orientation
from vitreous.data.images.formats import FORMATS
from vitreous.data.images.headers import UnreadableError, check_size, count_frames

__all__ = [
    "BAND_PIXELS",
    "QUIET_PILLOW",
    "TOO_LARGE",
    "FileFacts",
    "decode",
    "iter_row_bytes",
    "to_rgb",
    "to_upright_rgb",
]

Size = tuple[int, int]

TOO_LARGE = "needs more than the memory limit of 480 MB per image, or more than is free: save it smaller"
"""Why an image that ran out of memory is not read."""

BAND_PIXELS = 2_000_000
"""Pixels that are converted or sent at a time."""

_DEEP = re.compile(r"(^I|^F|;16[BLNRS]*$)")  # Pillow's modes, and its raw modes of PNG and TIFF, of more than 8 bits
_HEIF_DECODERS = ("pi_heif", "pillow_heif")  # preferred first: wheels of pillow_heif contain a GPL encoder
_ALPHA_MODES = ("RGBA", "RGBa", "LA", "La", "PA")

_OPENERS: dict[str, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,  # also the first image of an MPO file, as phones write
    "PNG": PngImagePlugin.PngImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
}


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What decoding a file showed."""

    reason: str = ""  # why it cannot be read; empty if it can
    form: str = ""  # format by content, such as `JPEG`
    mode: str = ""  # Pillow's mode of the stored pixels, such as `CMYK`
    size: Size = (0, 0)  # upright height and width in pixels; those of the header if it cannot be decoded
    frames: int = 1  # or pages
    orientation: int = 1  # EXIF's, 1 to 8; 1 is upright
    alpha: bool = False
    deep: bool = False  # more than 8 bits per channel

    @property
    def grey(self) -> bool:
        """Whether it is stored without colour."""
        return self.mode in ("1", "L", "LA", "La", "F") or self.mode.startswith("I")


class _QuietPillow:
    """Suppresses Pillow's warnings while any thread decodes; what matters in them becomes a reason.

    ``warnings.catch_warnings`` replaces a list of the whole process, so the first thread to enter replaces it and the
    last to leave restores it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads = 0
        self.caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self.lock:
            self.threads += 1
            if self.threads == 1:
                self.caught = warnings.catch_warnings()
                self.caught.__enter__()
                warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
                warnings.filterwarnings("ignore", module=r"PIL\.")

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.threads -= 1
            if self.threads == 0:
                self.caught.__exit__(None, None, None)


QUIET_PILLOW = _QuietPillow()
"""The context in which Pillow decodes without warnings."""


def decode(content: Content, format: str, min_size: Size | None = None) -> tuple[FileFacts, Image.Image | None]:
    """Decode a file to an upright RGB image, or None if it cannot be read; ``content`` is released.

    ``min_size`` are the width and height that suffice: a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if that is at
    least as large. None: full size, except that very large images are decoded at half size or less.
    """
    mode, size, alpha, deep = "", (0, 0), False, False
    try:
        with QUIET_PILLOW:
            image = _open_heif(content.data) if format == "HEIF" else _open(content.data, format)
            width, height = image.size
            check_size(format, width, height)
            mode, size = image.mode, (height, width)
            alpha, deep = mode in _ALPHA_MODES or "transparency" in image.info, _is_deep(image, format)
            _draft(image, min_size)
            with _DECODER_ERRORS:
                image.load()
            orientation = 1 if format == "HEIF" else read_orientation(image)  # after load: a PNG may end with its EXIF
            size = (width, height) if orientation in (5, 6, 7, 8) else (height, width)
            frames = _frames(image, content.data, format)
            facts = FileFacts("", format, mode, size, frames, orientation, alpha, deep)
            rgb = to_rgb(image, copy=False)
            del image
            content.release()  # before more memory is taken
            if format != "JPEG" and rgb.width * rgb.height > FORMATS[format].full_size_pixels:
                rgb = rgb.reduce(2)
            return facts, _transpose(rgb, orientation)
    except (UnreadableError, MemoryError) as error:
        reason = TOO_LARGE if isinstance(error, MemoryError) else str(error)
        return FileFacts(reason, format, mode, size, alpha=alpha, deep=deep), None


class _DecoderErrors:
    """Turns what a decoder raises on damaged data, any of a dozen built-in errors, into an ``UnreadableError``."""

    def __init__(self, verb: str = "decoded") -> None:
        self.verb = verb

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, UnreadableError | MemoryError):
            raise UnreadableError(_failure_reason(error, self.verb)) from error


_DECODER_ERRORS = _DecoderErrors()


def _failure_reason(error: Exception, verb: str) -> str:
    text = str(error)
    if isinstance(error, EOFError) or re.search(r"truncated|not enough|unrecognized data", text, re.IGNORECASE):
        return "truncated"
    if re.search(r"broken|could not create decoder", text, re.IGNORECASE):
        return "damaged or truncated"
    plain = "".join(char if char.isprintable() else " " for char in text)[:200]
    return f"cannot be {verb}: {plain or type(error).__name__}"


def _open(content: bytes, format: str) -> Image.Image:
    with _DECODER_ERRORS:
        try:
            return _OPENERS[format](io.BytesIO(content))
        except (SyntaxError, IndexError, TypeError, struct.error) as error:  # Pillow takes these as "another format"
            raise UnreadableError("damaged or truncated") from error


def _open_heif(content: bytes) -> Image.Image:
    """Decode the primary image of a HEIC file.

    libheif applies the rotation stored in the file's boxes, so EXIF orientation is ignored. The decoder is not
    registered with Pillow.
    """
    name = next((name for name in _HEIF_DECODERS if importlib.util.find_spec(name) is not None), None)
    if name is None:
        raise UnreadableError("HEIC images need a decoder: pip install pi-heif, or save it as JPEG")
    library: Any = importlib.import_module(name)
    library.options.DECODE_THREADS = 1  # each thread reserves address space, which the memory limit counts
    library.options.THUMBNAILS = library.options.DEPTH_IMAGES = library.options.AUX_IMAGES = False
    with _DECODER_ERRORS:
        try:
            opened = library.open_heif(io.BytesIO(content), convert_hdr_to_8bit=True)
            stored = opened[opened.primary_index]
            check_size("HEIF", *stored.size)
            image: Image.Image = stored.to_pillow()
            image.info = {"bit_depth": stored.info.get("bit_depth", 8)}
            image.n_frames = len(opened)  # type: ignore[attr-defined]
        except Exception as error:
            if re.search("memory|allocat", str(error), re.IGNORECASE):
                raise MemoryError from error
            raise
    return image


def _is_deep(image: Image.Image, format: str) -> bool:
    if image.mode in ("RGB", "L", "P") and format == "JPEG":
        return False
    tiles = [] if format == "BMP" else getattr(image, "tile", [])
    args = (tiles[0].args if tiles else None) or ()
    raw_mode = args if isinstance(args, str) else next((part for part in args if isinstance(part, str)), "")
    return bool(_DEEP.search(image.mode) or _DEEP.search(raw_mode)) or image.info.get("bit_depth", 8) > 8


def _draft(image: Image.Image, min_size: Size | None) -> None:
    """Let a JPEG be decoded at a reduced size if that suffices, or if the full size would take too much memory."""
    if not isinstance(image, JpegImagePlugin.JpegImageFile):
        return
    limit = FORMATS["JPEG"].full_size_pixels
    scale = next((n for n in (1, 2, 4) if image.width * image.height <= n * n * limit), 8)
    if min_size is not None or scale > 1:
        width, height = max(1, image.width // scale), max(1, image.height // scale)
        min_width, min_height = min_size or (width, height)
        image.draft(image.mode, (min(min_width, width), min(min_height, height)))


def _frames(image: Image.Image, content: bytes, format: str) -> int:
    """Return the number of frames or pages, without seeking through them: a file may claim millions."""
    if format in ("GIF", "TIFF"):
        return count_frames(content, format)
    return int(getattr(image, "n_frames", 1)) if format != "JPEG" else 1


def to_upright_rgb(image: Image.Image) -> Image.Image:
    """Decode a PIL image that the caller opened; errors as :func:`to_rgb`."""
    with QUIET_PILLOW:
        with _DECODER_ERRORS:
            image.load()
        return _transpose(to_rgb(image), read_orientation(image))


def _transpose(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(TRANSPOSES[orientation]) if orientation in TRANSPOSES else image


def to_rgb(image: Image.Image, copy: bool = True) -> Image.Image:
    """Convert any mode to RGB: more than 8 bits are scaled to 8, alpha is composited on white.

    With ``copy``, the result does not share its pixels with ``image``.
    """
    with _DecoderErrors("converted to RGB"):
        if image.mode == "F" or image.mode.startswith("I"):
            to_uint8 = _uint8_scaling(image)
            return _convert_in_bands(image, lambda band: Image.fromarray(to_uint8(np.asarray(band))).convert("RGB"))
        if image.mode in _ALPHA_MODES or "transparency" in image.info:
            return _convert_in_bands(image, _on_white)
        if image.mode == "RGB" and not copy:
            return image._new(image.im)  # the pixels without the file object, so that the file's bytes can be freed
        return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield bands of full width and about ``BAND_PIXELS`` pixels, each with its top row."""
    rows = max(1, BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(image.height, top + rows)))


def iter_row_bytes(image: Image.Image) -> Iterator[bytes]:
    """Yield the bytes of an RGB image band by band, so that they are never held twice."""
    return (band.tobytes() for _, band in _bands(image))


def _convert_in_bands(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    if image.width * image.height <= BAND_PIXELS:
        return convert(image)
    rgb = Image.new("RGB", image.size)
    for top, band in _bands(image):
        rgb.paste(convert(band), (0, top))
    return rgb


def _uint8_scaling(image: Image.Image) -> Callable[[npt.NDArray[Any]], npt.NDArray[np.uint8]]:
    """Return the function that maps grey values of more than 8 bits to 0..255.

    16-bit values are divided by 257, and so are 32-bit integers in the 16-bit range. Floats in [0, 1] are multiplied by
    255, floats in [0, 255] are kept. Other values are stretched from their minimum and maximum to 0 and 255.
    """
    low, high, kind = math.inf, -math.inf, "u"
    for _, band in _bands(image):
        values = np.asarray(band)
        low, high, kind = min(low, float(values.min())), max(high, float(values.max())), values.dtype.kind
        if kind == "f" and not np.isfinite(values).all():
            raise ValueError("it contains NaN or infinite values")
    offset = 0.0
    if kind in "iu" and low >= 0 and high <= 65535:
        scale = 255 / 65535
    elif kind == "f" and low >= 0 and high <= 255:
        scale = 255.0 if high <= 1 else 1.0
    else:
        offset, scale = low, 255 / max(high - low, 1e-12)
    return lambda values: np.rint((values.astype(np.float64) - offset) * scale).astype(np.uint8)
