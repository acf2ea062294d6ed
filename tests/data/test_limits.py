"""Files that ask for much time or memory, and special files: every reader refuses them soon, with the same reason."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import struct
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.audit.watch import look_at
from vitreous.data.config import DataConfig
from vitreous.data.images.formats import FORMATS, UNSUPPORTED_EXTENSIONS
from vitreous.data.images.memory_budget import Budget
from vitreous.data.images.reading import decode_with_limits, inspect_image, read_image
from vitreous.data.images.watched.child import Child
from vitreous.data.images.watched.pool import _COMMAND, _pool
from vitreous.data.sources.opening import open_source
from vitreous.data.sources.scan import scan
from vitreous.errors import DataError, VitreousError
from vitreous.files.text import printable

MB = 1 << 20


def seconds() -> float:
    """Return the processor time of this process and of the children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@contextlib.contextmanager
def at_once(limit: float = 3.0):
    """Check the processor time: by default 2 s for a file, and the start of a process."""
    began = seconds()
    yield
    assert seconds() - began < limit


def reason_of(content: bytes) -> str:
    """Return the reason of a refusal, which reading and scanning must agree on."""
    with pytest.raises(DataError) as error:
        read_image(content)
    reason = str(error.value).removeprefix("image: ")
    assert "\n" not in reason
    assert inspect_image(content).reason == reason
    return reason


def rle4(width: int, height: int) -> bytes:
    body = b"\xff\x11" * 4 + b"\0\1"
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 4, 2, len(body), 0, 0, 2, 0)
    return b"BM" + struct.pack("<IHHI", 70, 0, 0, 62) + info + b"\0" * 8 + body


def gif(width: int, height: int) -> bytes:
    size = struct.pack("<HH", width, height)
    return b"GIF89a" + size + b"\x80\0\0" + b"\0" * 6 + b"," + b"\0" * 4 + size + b"\0\2\2\x4c\1\0;"


def png(width: int, height: int, *chunks: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"P4\n" + b"# a comment\n" * 80_000 + b"8 8\n" + bytes(8), "PNM"),
        (b"P1\n8 8\n" + b"0 " * 500_000, "PNM"),
        (b"P6 4000 3000 255\n", "PNM"),
        (b"qoif" + struct.pack(">IIBB", 4000, 3000, 3, 0) + b"\xfd" * 200_000, "QOI"),
        (b"\0\0\1\0\1\0\0\0\0\0\1\0\x20\0" + bytes(60), "ICO"),
        (b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(60), "JPEG 2000"),
        (b"\xff\x4f\xff\x51" + bytes(60), "JPEG 2000"),
        (b"8BPS\0\1" + bytes(60), "Photoshop"),
    ],
)
def test_other_formats_are_refused_by_name_and_with_a_remedy(content, name):
    with at_once(0.5):
        assert reason_of(content) == f"{name} images are not supported: save it as PNG or JPEG"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            rle4(3000, 3000),
            "9,000,000 pixels, the limit for run-length encoded BMP is 2,000,000: save it as PNG or JPEG",
        ),
        (gif(13_370, 13_370), "178,756,900 pixels, the limit for GIF is 50,000,000: save it smaller"),
        (png(1, 50_000_000), "1 x 50,000,000 pixels, the limit for a side is 65,535: crop it"),
    ],
)
def test_a_header_that_claims_too_much_is_refused_before_decoding(content, reason):
    with at_once(0.5):
        assert reason_of(content) == reason


def exif_bomb(entries: int) -> bytes:
    rows = b"".join(struct.pack("<HHII", n + 1, 7, 60_000, 8) for n in range(entries))
    return b"II*\0" + struct.pack("<IH", 8, entries) + rows + bytes(4)


@pytest.fixture(scope="module")
def photo(photos: Path) -> bytes:
    return (photos / "rocket.jpg").read_bytes()


def test_expensive_metadata_is_read_in_a_watched_process(photo, tmp_path):
    """Endless segments, junk, EXIF entries and chunks: read or refused within 2 s each, alike by scan and audit."""
    exif = (b"Exif\0\0" + exif_bomb(4500)).ljust(65_000, b"\0")
    block = chunk(b"eXIf", exif_bomb(60_000) + bytes(MB))
    row = chunk(b"IDAT", zlib.compress(b"\0" * 5))
    files = {
        "segments.jpg": photo[:2] + b"\xff\xe1\0\2" * 3_000_000 + photo[2:],
        "junk.jpg": photo[:2] + bytes(2 * MB) + photo[2:],
        "exif.jpg": photo[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + photo[2:],
        "exif.png": png(1, 1, block, row),
        "chunks.png": png(1, 1, chunk(b"prVt", b"") * 100_000, row),
        "comment.gif": gif(8, 8)[:19] + b"!\xfe" + (b"\xff" + b"c" * 255) * 2_000 + b"\0" + gif(8, 8)[19:],
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in files]
    began = seconds()
    scanned = [one.facts.reason or "" for one in scan(paths)]
    took = seconds() - began
    assert took < 2 * len(files) + 3
    assert scanned == [one.reason for one in look_at(paths)]
    reasons = dict(zip(files, scanned, strict=True))
    assert reasons["segments.jpg"].startswith("its decoder takes more than 2 s")
    assert reasons["exif.png"] == ""
    assert all(len(reason) < 200 for reason in scanned)


def test_a_file_that_ends_its_process_does_not_affect_others(photo, endless_jpeg):
    slow = endless_jpeg[:2] + b"\xff\xe1\0\2" * 300 + endless_jpeg[2:]  # so unusual that its scans are not counted
    assert inspect_image(slow).reason == "its decoder takes more than 2 s: save it as PNG or JPEG again"
    assert decode_with_limits(photo)[1] is not None
    assert read_image(Image.open(io.BytesIO(photo))).size == (640, 427)


def special(folder: Path) -> dict[str, str]:
    """Create special files; return the reason for each by name."""
    os.mkfifo(folder / "pipe.jpg")
    (folder / "zero.jpg").symlink_to("/dev/zero")
    (folder / "folder.jpg").mkdir()
    with (folder / "sparse.jpg").open("wb") as file:
        file.truncate(1 << 40)
    (folder / "loop.jpg").symlink_to(folder / "loop.jpg")
    return {
        "pipe.jpg": "a pipe, not a regular file",
        "zero.jpg": "a device, not a regular file",
        "folder.jpg": "a folder, not a regular file",
        "sparse.jpg": "1,099,511,627,776 bytes, the limit is 159,383,552: save it smaller",
        "loop.jpg": "too many levels of symbolic links",
        "nul\0.jpg": "the path contains a NUL character",
    }


def test_only_regular_files_of_a_bounded_size_are_opened(tmp_path):
    reasons = special(tmp_path)
    paths = [tmp_path / name for name in reasons]
    with at_once(0.5):
        assert [one.facts.reason for one in scan(paths)] == list(reasons.values())
        for path, reason in zip(paths, reasons.values(), strict=True):
            with pytest.raises(DataError) as error:
                read_image(path)
            assert str(error.value) == f"{printable(str(path))}: {reason}"
    assert [one.reason for one in look_at(paths)] == list(reasons.values())


def test_manifests_and_lists_must_be_regular_files(tmp_path, photo):
    (tmp_path / "good.jpg").write_bytes(photo)
    special(tmp_path)
    os.mkfifo(tmp_path / "pipe.csv")
    os.mkfifo(tmp_path / "out.txt")
    table = tmp_path / "table.csv"
    table.write_text("path,label\n" + "".join(f"{name}.jpg,{name}\n" for name in ("good", "pipe", "zero", "sparse")))
    with pytest.raises(VitreousError, match=r"pipe.csv is neither a folder nor a regular file"):
        open_source(DataConfig(str(tmp_path / "pipe.csv")))
    with pytest.raises(DataError, match=r"out.txt, cannot be read: a pipe, not a regular file"):
        open_source(DataConfig(str(table), exclude=str(tmp_path / "out.txt")))
    data = open_source(DataConfig(str(table)), hold_out=False)
    assert {path.name for path, _ in data.unreadable} == {"pipe.jpg", "zero.jpg", "sparse.jpg"}


def test_unsupported_extensions_are_not_those_of_supported_formats():
    read = {extension for row in FORMATS.values() for extension in row.extensions}
    assert not read & set(UNSUPPORTED_EXTENSIONS)
    assert {".ppm", ".pbm", ".qoi", ".ico", ".jp2", ".dib"} <= set(UNSUPPORTED_EXTENSIONS)


def test_a_photograph_of_48_megapixels_is_read_upright(photo):
    stored = Image.open(io.BytesIO(photo)).resize((8064, 6048))
    exif = Image.Exif()
    exif[0x0112] = 6
    target = io.BytesIO()
    stored.save(target, "JPEG", exif=exif)
    read = read_image(target.getvalue())
    assert read.size == (3024, 4032)  # decoded at a half
    assert inspect_image(target.getvalue()).size == (8064, 6048)
    upright = stored.transpose(Image.Transpose.ROTATE_270).resize((300, 400))
    apart = np.asarray(read.resize((300, 400)), np.int16) - np.asarray(upright, np.int16)
    assert np.abs(apart).mean() < 3


def peak_of(process: int) -> int:
    """Return the peak memory of a process in bytes since the last call, and reset it."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux reports and resets peak memory")
def test_a_large_file_is_not_held_beside_its_image(tmp_path):
    """For an uncompressed TIFF of 48 megapixels, both processes together stay within 512 MB."""
    path = tmp_path / "large.tif"
    Image.new("RGB", (8064, 6048), (200, 100, 50)).save(path)
    _pool.close()
    _pool.idle.append(Child(_COMMAND))
    processes = (os.getpid(), _pool.idle[0].process.pid)
    for process in processes:
        peak_of(process)
    idle = sum(map(peak_of, processes))
    image = read_image(path)
    assert sum(map(peak_of, processes)) - idle < 512 * MB
    assert image.size == (4032, 3024)  # a half
    assert image.getpixel((4031, 3023)) == (200, 100, 50)
    path.unlink()


def test_conversion_in_bands_equals_conversion_at_once(photos):
    from vitreous.data.images import decoding

    cat = Image.open(photos / "chelsea.png").convert("RGB")
    clear = cat.copy()
    clear.putalpha(cat.convert("L"))
    deep = Image.fromarray(np.asarray(cat.convert("L")).astype(np.uint16) * 200 + 3)
    stretched = Image.fromarray(np.asarray(cat.convert("L")).astype(np.float32) * 9 - 50)
    for image in (clear, deep, stretched, cat.quantize(16)):
        whole = np.asarray(decoding.to_rgb(image))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding, "BAND_PIXELS", 451 * 7)
            assert (np.asarray(decoding.to_rgb(image)) == whole).all()


def test_threads_share_a_budget_without_deadlock():
    budget = Budget(contents=10, total=30)
    most, lock = [0], threading.Lock()

    def read(content: int, image: int) -> None:
        with budget.content(content), budget.image(image):
            with lock:
                most[0] = max(most[0], budget.held + budget.decoding)
            time.sleep(0.005)

    sizes = [(3, 8), (9, 25), (1, 1), (5, 20), (100, 50), (2, 28)] * 4
    threads = [threading.Thread(target=read, args=size) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] <= 150
    assert (budget.held, budget.decoding) == (0, 0)
