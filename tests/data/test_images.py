"""Unusual image files, written by Pillow from real photographs, decode correctly or are refused with a reason."""

from __future__ import annotations

import io
import os
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile

from vitreous.cli.options.inputs import expand
from vitreous.data.images.reading import inspect_image, read_image
from vitreous.data.sources.finding import find_images
from vitreous.data.sources.scan import content_hash, scan
from vitreous.errors import DataError


@pytest.fixture(scope="module")
def cat(photos: Path) -> Image.Image:
    """A photograph of a cat, 451 x 300 pixels."""
    return Image.open(photos / "chelsea.png").convert("RGB")


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def distance(image: Image.Image, other: Image.Image) -> float:
    """Return the mean absolute difference of pixels in 0..255."""
    assert image.mode == other.mode == "RGB"
    assert image.size == other.size
    return float(np.abs(np.asarray(image, np.int16) - np.asarray(other, np.int16)).mean())


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_come_back_exactly(cat, kind):
    content = encoded(cat, kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert distance(read_image(content), cat) == 0


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied_as_pillow_does(cat, kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(cat, kind, exif=exif)
    from PIL import ImageOps

    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    upright = read_image(content)
    assert distance(upright, expected) == 0
    assert upright.size == ((300, 451) if orientation >= 5 else (451, 300))
    assert inspect_image(content).size == (upright.height, upright.width)


def test_every_orientation_restores_the_same_upright_cat(cat):
    stored = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    for orientation, turn in stored.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        assert distance(read_image(encoded(cat.transpose(turn), "PNG", exif=exif)), cat) == 0


def test_a_damaged_exif_block_does_not_make_an_image_unreadable(cat):
    content = encoded(cat, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff\x01")
    assert read_image(content).size == cat.size


def test_grey_palette_and_bilevel(cat):
    grey = cat.convert("L")
    assert distance(read_image(encoded(grey, "PNG")), grey.convert("RGB")) == 0
    palette = cat.quantize(64)
    assert distance(read_image(encoded(palette, "PNG")), palette.convert("RGB")) == 0
    assert distance(read_image(encoded(cat.convert("1"), "PNG")), cat.convert("1").convert("RGB")) == 0
    assert inspect_image(encoded(grey, "PNG")).grey
    assert inspect_image(encoded(grey, "JPEG")).grey
    assert not inspect_image(encoded(cat, "JPEG")).grey
    assert not inspect_image(encoded(palette, "PNG")).grey


def test_alpha_is_composited_on_white(cat):
    half = cat.copy()
    half.putalpha(Image.new("L", cat.size, 128))
    pixels = np.asarray(cat, np.float64)
    expected = pixels * (128 / 255) + 255 * (1 - 128 / 255)
    for kind in ("PNG", "TIFF"):
        assert np.abs(np.asarray(read_image(encoded(half, kind)), np.float64) - expected).max() <= 1
    clear = cat.copy()
    clear.putalpha(0)
    assert np.asarray(read_image(encoded(clear, "PNG"))).min() == 255
    grey_alpha = Image.merge("LA", (cat.convert("L"), Image.new("L", cat.size, 0)))
    assert np.asarray(read_image(encoded(grey_alpha, "PNG"))).min() == 255


def test_transparent_colour_of_palette_grey_and_rgb_pngs_becomes_white():
    ramp = np.tile(np.arange(256, dtype=np.uint8), (4, 1))
    grey = Image.fromarray(ramp)
    shown = np.asarray(read_image(encoded(grey, "PNG", transparency=7)))
    assert shown[0, 7].tolist() == [255] * 3
    assert shown[0, 8].tolist() == [8] * 3
    palette = grey.convert("P")
    shown = np.asarray(read_image(encoded(palette, "PNG", transparency=bytes([0] + [255] * 255))))
    assert shown[0, 0].tolist() == [255] * 3
    shown = np.asarray(read_image(encoded(grey.convert("RGB"), "PNG", transparency=(9, 9, 9))))
    assert shown[0, 9].tolist() == [255] * 3
    assert shown[0, 10].tolist() == [10] * 3


def test_cmyk(cat):
    cmyk = cat.convert("CMYK")
    assert distance(read_image(encoded(cmyk, "TIFF")), cat) == 0
    assert distance(read_image(encoded(cmyk, "JPEG", quality=95)), cat) < 4


def test_16_bit_grey_is_scaled_not_clipped(cat):
    grey = np.asarray(cat.convert("L"))
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    for kind in ("PNG", "TIFF"):
        assert (np.asarray(read_image(encoded(deep, kind)))[..., 0] == grey).all()
        assert inspect_image(encoded(deep, kind)).grey
    dark = Image.fromarray(grey.astype(np.uint16))  # a nearly black 16-bit image stays nearly black
    assert np.asarray(read_image(encoded(dark, "PNG"))).max() <= 1


def test_16_bit_colour_png():
    """Written by hand: Pillow can read such files but not write them."""
    rows = np.zeros((2, 3, 3), ">u2")
    rows[..., 0], rows[..., 1], rows[..., 2] = 65535, 32896, 257
    raw = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(tag: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    header = struct.pack(">IIBBBBB", 3, 2, 16, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    assert np.asarray(read_image(content))[1, 2].tolist() == [255, 128, 1]


def test_32_bit_integers_and_floats():
    ramp = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    whole = np.arange(256).reshape(16, 16)
    for deep in (ramp, ramp * 255, ramp * 4000 - 500, (whole * 257).astype(np.int32), (whole * 65537).astype(np.int32)):
        shown = np.asarray(read_image(encoded(Image.fromarray(deep), "TIFF")))[..., 0]
        assert (shown == whole).all()


def test_first_frame_of_an_animation(cat):
    red = Image.new("RGB", cat.size, "red")
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        content = encoded(red, kind, save_all=True, append_images=[Image.new("RGB", cat.size, "blue")])
        colour = np.asarray(read_image(content)).reshape(-1, 3).mean(0)
        assert colour[0] > 240
        assert colour[2] < 15


def test_wrong_extension_is_decided_by_content(cat, tmp_path):
    for name, kind in (("a.jpg", "PNG"), ("b.png", "JPEG"), ("c.gif", "WEBP"), ("d.txt", "PNG"), ("e", "JPEG")):
        (tmp_path / name).write_bytes(encoded(cat, kind))
        assert read_image(tmp_path / name).size == cat.size
    assert len(find_images(tmp_path)[0]) == 5


KINDS = {
    "jpeg": ("JPEG", {}),
    "progressive jpeg": ("JPEG", {"progressive": True}),
    "png": ("PNG", {}),
    "gif": ("GIF", {}),
    "webp": ("WEBP", {}),
    "tiff": ("TIFF", {}),
    "lzw tiff": ("TIFF", {"compression": "tiff_lzw"}),
    "bmp": ("BMP", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_truncation_is_noticed_at_every_point_by_reading_and_by_scanning(cat, kind):
    name, options = KINDS[kind]
    content = encoded(cat, name, **options)
    assert inspect_image(content).reason is None
    for fraction in (0.001, 0.01, 0.2, 0.5, 0.8, 0.95):
        cut = content[: int(fraction * len(content))]
        reason = inspect_image(cut).reason
        assert reason is not None
        with pytest.raises(DataError, match="truncated") as error:
            read_image(cut)
        assert str(error.value) == f"image: {reason}"
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_a_jpeg_without_its_last_bytes_is_truncated(flowers):
    for path in sorted((flowers / "val" / "roses").iterdir())[:20]:
        content = path.read_bytes()
        assert inspect_image(content).reason is None
        for lost in (3, 40, 400):
            assert inspect_image(content[:-lost]).reason == "truncated"


def test_a_file_that_is_not_an_image(tmp_path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "words.png").write_text("these are words, not an image")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    for name, reason in (
        ("empty.jpg", "empty, 0 bytes"),
        ("words.png", "not an image"),
        ("gone.jpg", "a link to a file that is gone"),
        ("nowhere.jpg", "no such file"),
        ("", "a folder, not a regular file"),
    ):
        with pytest.raises(DataError) as error:
            read_image(tmp_path / name)
        assert str(error.value) == f"{tmp_path / name}: {reason}"


def png_header(width: int, height: int) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    idat = b"IDAT" + zlib.compress(b"")
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (body, idat)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_too_many_pixels_are_refused_before_decoding():
    with pytest.raises(
        DataError, match=r"^image: 400,000,000 pixels, the limit for PNG is 50,000,000: save it smaller$"
    ):
        read_image(png_header(20_000, 20_000))
    assert inspect_image(png_header(7_000, 7_000)).reason == "truncated"


def test_a_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded(endless_jpeg, cat):
    reason = "3,006 scans of 6000 x 6000 pixels, the limit is 138: save it as PNG or JPEG again"
    with pytest.raises(DataError, match=f"^image: {reason}$"):
        read_image(endless_jpeg)
    assert inspect_image(endless_jpeg).reason == reason
    progressive = encoded(cat, "JPEG", progressive=True)
    assert progressive.count(b"\xff\xda") == 10
    assert read_image(progressive).size == (451, 300)


def test_the_pixel_limit_does_not_depend_on_pillows(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert (
        inspect_image(png_header(20_000, 20_000)).reason
        == "400,000,000 pixels, the limit for PNG is 50,000,000: save it smaller"
    )


def test_images_in_memory(cat, tmp_path):
    pixels = np.asarray(cat)
    assert distance(read_image(pixels), cat) == 0
    assert distance(read_image(pixels / 255), cat) == 0
    assert distance(read_image((pixels / 255).astype(np.float32)), cat) == 0
    grey = cat.convert("L").convert("RGB")
    assert distance(read_image(np.asarray(grey)[..., 0]), grey) == 0
    assert distance(read_image(np.asarray(grey)[..., :1]), grey) == 0
    opaque = np.concatenate([pixels, np.full_like(pixels[..., :1], 255)], axis=2)
    assert distance(read_image(opaque), cat) == 0
    assert distance(read_image(pixels[::-1, ::-1]), cat.transpose(Image.Transpose.ROTATE_180)) == 0
    path = tmp_path / "cat.png"
    cat.save(path)
    with path.open("rb") as file:
        assert distance(read_image(file), cat) == 0
    with Image.open(path) as image:
        assert distance(read_image(image), cat) == 0
    assert distance(read_image(str(path)), cat) == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((3, 8, 8), np.uint8), r"array: shape \(3, 8, 8\) is not an image.*move the channels last"),
        (np.zeros((8, 8, 2), np.uint8), r"shape \(8, 8, 2\)"),
        (np.zeros((0, 8), np.uint8), r"shape \(0, 8\)"),
        (np.zeros((8, 8), np.int64), "values are int64, they must be uint8, or float in"),
        (np.full((8, 8), 2.0), r"float values are in \[2, 2\]"),
        (np.full((8, 8), np.nan), r"float values are in \[nan, nan\]"),
        (17, "cannot read an image from int"),
        (io.StringIO("text"), "open in text mode"),
    ],
)
def test_a_source_that_cannot_be_an_image_is_refused_by_name(source, message):
    with pytest.raises(DataError, match=message):
        read_image(source)


def test_lab(cat):
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    content = encoded(ImageCms.profileToProfile(cat, srgb, lab, outputMode="LAB"), "TIFF")
    assert distance(read_image(content), cat) < 2


def test_threads_leave_the_warning_filters_as_they_were(cat):
    before = list(warnings.filters)
    content = encoded(cat, "JPEG")
    barrier = threading.Barrier(4)

    def read() -> None:
        barrier.wait()
        for _ in range(20):
            read_image(content)

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(read) for _ in range(4)]:
            job.result()
    assert warnings.filters == before


def test_images_are_found_in_any_alphabet_case_and_depth(cat, tmp_path):
    names = [
        "b.JPG",
        "IMG 12.jpeg",
        "цветы/Blüte №1.Png",
        "深い/花/a.webp",
        ".hidden.jpg",
        ".cache/x.jpg",
        "__MACOSX/y.jpg",
    ]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cat.save(path) if path.suffix != ".webp" else path.write_bytes(encoded(cat, "WEBP"))
    (tmp_path / "notes.txt").write_text("RIFFRAFF")
    (tmp_path / "deep.csv").write_text("path,label")
    images, others, notes, _ = find_images(tmp_path)
    assert notes == []
    assert images == sorted(tmp_path / name for name in names[:4])
    assert others == [tmp_path / "deep.csv", tmp_path / "notes.txt"]


def test_symlinks_are_followed_and_loops_end(cat, tmp_path):
    real, root = tmp_path / "real", tmp_path / "root"
    (real / "inner").mkdir(parents=True)
    (root / "a").mkdir(parents=True)
    cat.save(real / "1.png")
    cat.save(real / "inner" / "2.png")
    (root / "linked").symlink_to(real)
    (root / "twice").symlink_to(real)
    (root / "a" / "up").symlink_to(root)
    (real / "inner" / "loop").symlink_to(real)
    (root / "file.png").symlink_to(real / "1.png")
    images, _, notes, _ = find_images(root)
    assert [path.relative_to(root).as_posix() for path in images] == [
        "file.png",
        "linked/1.png",
        "linked/inner/2.png",
    ]
    assert notes == [
        "3 links lead to folders already listed, whose images count once: "
        "twice is linked; a/up is .; linked/inner/loop is linked"
    ]


@pytest.mark.parametrize(("folders", "links"), [(26, 50), (12, 12)])
def test_folders_with_links_to_each_other_are_visited_once(cat, tmp_path, folders, links):
    names = [f"{n:02}" for n in range(folders)]
    for n, name in enumerate(names):
        (tmp_path / name).mkdir()
        cat.resize((4, 4)).save(tmp_path / name / "1.png")
        for k in range(links):
            (tmp_path / name / f"link{k:02}").symlink_to(tmp_path / names[(n + k) % folders])
    images, others, notes, _ = find_images(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in images] == [f"{name}/1.png" for name in names]
    assert others == []
    count = f"{folders * links:,} links lead to folders already listed, whose images count once: "
    assert notes[0].startswith(count + "00/link00 is 00; 00/link01 is 01; ")
    assert len(notes) == 1
    assert expand([f"{tmp_path}/**/*.p[mn]g"]) == list(map(str, images))


def test_the_shortest_path_over_links_names_a_folder(cat, tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (root / "a" / "b").mkdir(parents=True)
    cat.save(outside / "inner" / "1.png")
    (root / "a" / "b" / "deep").symlink_to(outside)
    (root / "z").symlink_to(outside)
    (root / "y").symlink_to(outside)
    images, _, notes, _ = find_images(root)
    assert images == [root / "y" / "inner" / "1.png"]
    assert notes[0].endswith("z is y; a/b/deep is y")


def test_images_of_unsupported_formats_are_listed_and_named(cat, tmp_path):
    cat.save(tmp_path / "a.ppm")
    cat.save(tmp_path / "b.ICO")
    cat.save(tmp_path / "c.jp2")
    (tmp_path / "c.jp2").rename(tmp_path / "no-extension")
    (tmp_path / "notes.txt").write_text("BMW and P6 are words")
    images, others, _, _ = find_images(tmp_path)
    assert [path.name for path in images] == ["a.ppm", "b.ICO", "no-extension"]
    assert [path.name for path in others] == ["notes.txt"]
    reasons = [result.facts.reason for result in scan(images)]
    assert reasons == [
        f"{name} images are not supported: save it as PNG or JPEG" for name in ("PNM", "ICO", "JPEG 2000")
    ]


def test_a_pipe_is_not_an_image_and_does_not_block(cat, tmp_path):
    cat.save(tmp_path / "1.png")
    os.mkfifo(tmp_path / "pipe.jpg")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing")
    images, others, _, _ = find_images(tmp_path)
    assert [path.name for path in images] == ["1.png", "gone.jpg"]
    assert [path.name for path in others] == ["pipe", "pipe.jpg"]


def test_a_missing_folder_cannot_be_listed(tmp_path):
    with pytest.raises(DataError, match="nowhere cannot be listed: No such file"):
        find_images(tmp_path / "nowhere")


def test_scan_reads_in_order_hashes_bytes_and_reports_progress(flowers, tmp_path):
    paths = sorted((flowers / "val" / "daisy").iterdir())
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(paths[0].read_bytes()[:-100])
    paths[5:5] = [broken, tmp_path / "missing.jpg"]
    calls: list[tuple[int, int]] = []
    results = scan(paths, workers=3, progress=lambda done, total: calls.append((done, total)))
    assert [n for n, result in enumerate(results) if result.facts.reason] == [5, 6]
    assert [results[n].facts.reason for n in (5, 6)] == ["truncated", "no such file"]
    assert calls[-1] == (len(paths), len(paths))
    for path, result in list(zip(paths, results, strict=True))[10:20]:
        assert result.digest == content_hash(path.read_bytes())
        assert result.facts.size == read_image(path).size[::-1]
    assert scan([]) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read everything")
def test_a_forbidden_file_is_named(cat, tmp_path):
    path = tmp_path / "secret.png"
    cat.save(path)
    path.chmod(0)
    with pytest.raises(DataError, match=r"secret.png: permission denied"):
        read_image(path)
