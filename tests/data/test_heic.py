"""HEIC files: real photographs decode, rotated once; damaged and large files are refused with a reason."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.audit.look import look
from vitreous.data.images.reading import inspect_image, read_image
from vitreous.data.sources.scan import scan
from vitreous.errors import DataError

pillow_heif = pytest.importorskip("pillow_heif")


def heic(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    pillow_heif.from_pillow(image).save(buffer, quality=90, **options)
    return buffer.getvalue()


def apart(a: Image.Image, b: Image.Image) -> float:
    assert a.mode == b.mode == "RGB"
    assert a.size == b.size
    return float(np.abs(np.asarray(a, np.int16) - np.asarray(b, np.int16)).mean())


@pytest.mark.parametrize("name", ["coffee.png", "rocket.jpg"])
def test_real_photographs_come_back(photos: Path, name, tmp_path):
    photo = Image.open(photos / name).convert("RGB")
    path = tmp_path / "IMG_0001.HEIC"
    path.write_bytes(heic(photo))
    assert apart(read_image(path), photo) < 4
    assert scan([path])[0].facts.size == (photo.height, photo.width)
    seen = look(str(path))
    assert (seen.reason, seen.form, seen.frames) == ("", "HEIF", 1)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_rotated_photograph_is_rotated_once(photos, orientation):
    """Encoders store the rotation twice: in a box that decoders apply, and in EXIF."""
    cat = Image.open(photos / "chelsea.png").convert("RGB")
    turn = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    stored = cat.transpose(turn[orientation]) if orientation in turn else cat
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    pillow_heif.encode("RGB", stored.size, stored.tobytes(), buffer, quality=90, exif=exif.tobytes())
    content = buffer.getvalue()
    assert (b"irot" in content) == (orientation != 1)
    assert b"Exif" in content
    assert apart(read_image(content), cat) < 4
    assert inspect_image(content).size == (300, 451)


def test_alpha_is_composited_on_white(photos):
    clear = Image.open(photos / "chelsea.png").convert("RGBA")
    clear.putalpha(0)
    assert np.asarray(read_image(heic(clear))).min() == 255


def test_damage_is_named_and_pillow_is_left_as_it_is(photos):
    content = heic(Image.open(photos / "coffee.png").convert("RGB"))
    for damaged in (content[: len(content) // 2], content[:40], b"\0\0\0\x18ftypheic" + bytes(40)):
        with pytest.raises(DataError, match=r"^image: \S"):
            read_image(damaged)
    wide = content.replace(b"ispe\0\0\0\0" + (600).to_bytes(4, "big"), b"ispe\0\0\0\0" + (600_000).to_bytes(4, "big"))
    assert inspect_image(wide).reason == "240,000,000 pixels, the limit for HEIF is 26,000,000: save it smaller"
    assert "HEIF" not in Image.OPEN
