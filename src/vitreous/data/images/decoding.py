"""From a file's bytes to an upright 8-bit RGB image, in this process and with little memory.

Which files may be decoded so is decided in :mod:`vitreous.data.images.headers`; all others come here in a watched process.
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
from vitreous.data.images.exif import UPRIGHT, orientation_of
from vitreous.data.images.formats import FORMATS
from vitreous.data.images.headers import UnreadableError, check_size, frames_of

__all__ = ["BAND", "QUIET_PILLOW", "TOO_LARGE", "ImageFacts", "decode", "rgb_of", "rows_of", "upright"]

Size = tuple[int, int]

TOO_LARGE = "needs more memory than the limit for an image, 480 MB, or than there is: save it smaller"
"""The reason of an image that met either limit."""

BAND = 2_000_000
"""Pixels that are converted or sent at a time."""

_DEEP = re.compile(r"(^I|^F|;16[BLNRS]*$)")  # how Pillow names more than 8 bits: in modes, and in PNG's and TIFF's rows
_HEIF_DECODERS = ("pi_heif", "pillow_heif")  # the first is the decoder alone; the other's wheels bring a GPL encoder
_ALPHA = ("RGBA", "RGBa", "LA", "La", "PA")

_OPENERS: dict[str, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,  # the first image of phones' MPO files too
    "PNG": PngImagePlugin.PngImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
}


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What a full decode of a file showed.

    Args:
        reason: Why it cannot be read; empty where it can.
        form: Its format by content, such as `JPEG`.
        mode: How Pillow calls the way its pixels are stored, such as `CMYK`.
        size: Height and width in pixels, upright; as its header says it where it cannot be decoded.
        frames: Images in the file.
        orientation: EXIF's, 1 to 8; 1 is upright.
        alpha: Whether it has transparency.
        deep: Whether it has more than 8 bits a channel.
    """

    reason: str = ""
    form: str = ""
    mode: str = ""
    size: Size = (0, 0)
    frames: int = 1
    orientation: int = 1
    alpha: bool = False
    deep: bool = False

    @property
    def grey(self) -> bool:
        """Whether it is stored without colour."""
        return self.mode in ("1", "L", "LA", "La", "F") or self.mode.startswith("I")


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


QUIET_PILLOW = _QuietPillow()


def decode(content: Content, form: str, least: Size | None = None) -> tuple[ImageFacts, Image.Image | None]:
    """Decode a file's bytes to mode RGB, upright.

    Args:
        content: The bytes, which are let go.
        form: Its format, as in :data:`vitreous.data.images.formats.FORMATS`.
        least: Width and height that are enough: a JPEG is decoded at 1/2, 1/4 or 1/8 of its size where that is as
            large. None: at its own size, except for images of many pixels, which come at a half or less.

    Returns:
        What was seen, and the image; None where there is a reason why not.
    """
    mode, size, alpha, deep = "", (0, 0), False, False
    try:
        with QUIET_PILLOW:
            image = _heif(content.data) if form == "HEIF" else _opened(content.data, form)
            width, height = image.size
            check_size(form, width, height)
            mode, size = image.mode, (height, width)
            alpha, deep = mode in _ALPHA or "transparency" in image.info, _is_deep(image, form)
            _shrink(image, least)
            try:
                image.load()
            except MemoryError:
                raise
            except Exception as error:  # OSError, SyntaxError, EOFError, struct.error, zlib.error ...
                raise UnreadableError(_why_not(error)) from error
            turn = 1 if form == "HEIF" else orientation_of(image)  # a PNG may have its EXIF at the end
            size = (width, height) if turn in (5, 6, 7, 8) else (height, width)
            facts = ImageFacts("", form, mode, size, _frames(image, content.data, form), turn, alpha, deep)
            plain = rgb_of(image, own=True)
            del image
            content.release()  # before there is more of the image
            return facts, upright(_halved(plain, form), turn)
    except (UnreadableError, MemoryError) as error:
        reason = TOO_LARGE if isinstance(error, MemoryError) else str(error)
        return ImageFacts(reason, form, mode, size, 1, 1, alpha, deep), None


def _opened(content: bytes, form: str) -> Image.Image:
    """Read the header with the one decoder of the format."""
    try:
        return _OPENERS[form](io.BytesIO(content))
    except (SyntaxError, IndexError, TypeError, struct.error) as error:  # what Pillow takes as "not of this format"
        raise UnreadableError("damaged or truncated") from error
    except MemoryError:
        raise
    except Exception as error:  # a decoder meets damaged bytes with any of a dozen built-in errors
        raise UnreadableError(_why_not(error)) from error


def _heif(content: bytes) -> Image.Image:
    """Decode a HEIC file's primary image; libheif turns it as its own boxes say, and EXIF's orientation is for others.

    In a watched process, and without registering anything with Pillow.
    """
    name = next((name for name in _HEIF_DECODERS if importlib.util.find_spec(name) is not None), None)
    if name is None:
        raise UnreadableError("HEIC images need a decoder: pip install pi-heif, or save it as JPEG")
    library: Any = importlib.import_module(name)
    library.options.DECODE_THREADS = 1  # the address space of more threads would count against the limit
    library.options.THUMBNAILS = library.options.DEPTH_IMAGES = library.options.AUX_IMAGES = False
    try:
        opened = library.open_heif(io.BytesIO(content), convert_hdr_to_8bit=True)
        stored = opened[opened.primary_index]
        check_size("HEIF", *stored.size)
        image: Image.Image = stored.to_pillow()
        image.info = {"bit_depth": stored.info.get("bit_depth", 8)}
        image.n_frames = len(opened)  # type: ignore[attr-defined]
    except (UnreadableError, MemoryError):
        raise
    except Exception as error:
        text = str(error)
        if re.search("memory|allocat", text, re.IGNORECASE):
            raise MemoryError from error
        raise UnreadableError(_why_not(error)) from error
    return image


def _is_deep(image: Image.Image, form: str) -> bool:
    """Whether it has more than 8 bits a channel, as its header says it."""
    if image.mode in ("RGB", "L", "P") and form == "JPEG":
        return False
    rows = "" if form == "BMP" else _stored_rows(image)
    return bool(_DEEP.search(image.mode) or _DEEP.search(rows)) or image.info.get("bit_depth", 8) > 8


def _stored_rows(image: Image.Image) -> str:
    """How Pillow calls the rows that it is going to decode, such as `RGB;16B`; empty where it does not say."""
    tiles = getattr(image, "tile", [])
    said = tiles[0].args if tiles else ""
    return said if isinstance(said, str) else next((part for part in said or () if isinstance(part, str)), "")


def _shrink(image: Image.Image, least: Size | None) -> None:
    """Have a JPEG decoded smaller, where less is enough, or more would take too much memory."""
    if not isinstance(image, JpegImagePlugin.JpegImageFile):
        return
    times = next((n for n in (1, 2, 4) if image.width * image.height <= n * n * FORMATS["JPEG"].whole_pixels), 8)
    if least is not None or times > 1:
        width, height = max(1, image.width // times), max(1, image.height // times)
        wide, tall = least or (width, height)
        image.draft(image.mode, (min(wide, width), min(tall, height)))


def _halved(image: Image.Image, form: str) -> Image.Image:
    """An RGB image at half of its width and height, where more is not held; a JPEG was decoded smaller at once."""
    whole = FORMATS[form].whole_pixels
    return image.reduce(2) if form != "JPEG" and image.width * image.height > whole else image


def _frames(image: Image.Image, content: bytes, form: str) -> int:
    """Frames or pages, without moving through them: a file may claim millions."""
    if form in ("GIF", "TIFF"):
        return frames_of(content, form)
    return int(getattr(image, "n_frames", 1)) if form != "JPEG" else 1


def _why_not(error: Exception) -> str:
    """A decoder's error in the words used here."""
    text = str(error)
    if isinstance(error, EOFError) or re.search(r"truncated|not enough|unrecognized data", text, re.IGNORECASE):
        return "truncated"
    if re.search(r"broken|could not create decoder", text, re.IGNORECASE):
        return "damaged or truncated"
    plain = "".join(char if char.isprintable() else " " for char in text)[:200]
    return f"cannot be decoded: {plain or type(error).__name__}"


def upright(image: Image.Image, turn: int) -> Image.Image:
    """Turn an image as an EXIF orientation says."""
    return image.transpose(UPRIGHT[turn]) if turn in UPRIGHT else image


def rgb_of(image: Image.Image, own: bool = False) -> Image.Image:
    """Convert any mode to RGB: deep greys scaled to 8 bits, alpha composited on white.

    Args:
        image: Decoded.
        own: Whether nobody else has it, so that it need not be copied.

    Raises:
        UnreadableError: If it cannot be converted.
    """
    try:
        if image.mode == "F" or image.mode.startswith("I"):
            to_8_bits = _scale_of(image)
            return _banded(image, lambda band: Image.fromarray(to_8_bits(np.asarray(band))).convert("RGB"))
        if image.mode in _ALPHA or "transparency" in image.info:
            return _banded(image, _on_white)
        if image.mode == "RGB" and own:
            return image._new(image.im)  # the pixels alone: the file's bytes can go
        return image.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:  # a mode without a conversion, a damaged palette
        raise UnreadableError(f"cannot be converted to RGB: {error!s:.200}") from error


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def _bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Cut an image into bands of full width, each with its top."""
    rows = max(1, BAND // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(image.height, top + rows)))


def rows_of(image: Image.Image) -> Iterator[bytes]:
    """The bytes of an RGB image's rows, band by band, so that they are never there twice."""
    return (band.tobytes() for _, band in _bands(image))


def _banded(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Convert an image band by band: the steps in between then take little memory."""
    if image.width * image.height <= BAND:
        return convert(image)
    whole = Image.new("RGB", image.size)
    for top, band in _bands(image):
        whole.paste(convert(band), (0, top))
    return whole


def _scale_of(image: Image.Image) -> Callable[[npt.NDArray[Any]], npt.NDArray[np.uint8]]:
    """How grey values of more than 8 bits become 0..255.

    16 bits keep their scale (65535 becomes 255). 32-bit integers in that range count as 16 bits, floats in [0, 1]
    or [0, 255] keep theirs; anything else is stretched from its least to its greatest value.
    """
    least, most, kind = math.inf, -math.inf, "u"
    for _, band in _bands(image):
        values = np.asarray(band)
        least, most, kind = min(least, float(values.min())), max(most, float(values.max())), values.dtype.kind
        if kind == "f" and not np.isfinite(values).all():
            raise ValueError("it has values that are not finite")
    shift = 0.0
    if kind in "iu" and least >= 0 and most <= 65535:
        factor = 255 / 65535
    elif kind == "f" and least >= 0 and most <= 255:
        factor = 255.0 if most <= 1 else 1.0
    else:
        shift, factor = least, 255 / max(most - least, 1e-12)
    return lambda values: np.rint((values.astype(np.float64) - shift) * factor).astype(np.uint8)
