"""Files that hang, crash or starve a decoder are named, and the others are looked at all the same."""

from __future__ import annotations

import os
import signal
import time

import pytest
from PIL import Image

from vitreous.audit import watch
from vitreous.audit.look import look
from vitreous.audit.watch import hash_pixels, look_at
from vitreous.data.sources.scan import content_hash


@pytest.fixture
def unlimited_passes(monkeypatch):
    """Processes that would decode any number of passes, as a slow file of a kind that nobody thought of would meet."""
    lift = "import vitreous.data.images.headers as h; h._JPEG_MOST_PASSES = 10**18"
    monkeypatch.setattr(watch, "_WORKER", ("-c", f"{lift}; from vitreous.audit.worker import main; main()"))


@pytest.mark.skipif(not hasattr(signal, "SIGXCPU"), reason="needs a limit on processor time")
def test_an_image_that_takes_too_long_is_ended_and_named(photos, tmp_path, endless_jpeg, unlimited_passes):
    (tmp_path / "slow.jpg").write_bytes(endless_jpeg)
    good = sorted(photos.iterdir())
    looks = look_at([good[0], tmp_path / "slow.jpg", *good[1:]], workers=1)
    assert looks[1].reason == "its decoder takes more than 2 s: save it as PNG or JPEG again"
    assert [one.reason for one in looks[:1] + looks[2:]] == [""] * len(good)


def test_a_process_that_dies_costs_one_file(photos, tmp_path, monkeypatch, endless_jpeg, unlimited_passes):
    (tmp_path / "slow.jpg").write_bytes(endless_jpeg)
    good = sorted(photos.iterdir())
    started = []
    start = watch._start
    monkeypatch.setattr(watch, "_start", lambda: started.append(start()) or started[-1])

    def kill_at_the_second(done: int, total: int) -> None:
        if done == 1:  # one process: it is at the slow one now
            time.sleep(0.3)
            os.kill(started[0].process.pid, signal.SIGSEGV)

    looks = look_at([good[0], tmp_path / "slow.jpg", *good[1:]], workers=1, progress=kill_at_the_second)
    assert looks[1].reason == "its decoder crashes (SIGSEGV): save it as PNG or JPEG again"
    assert [one.reason for one in looks[:1] + looks[2:]] == [""] * len(good)
    assert len(started) == 2


def test_in_a_process_the_same_is_seen_as_here(photos):
    files = sorted(photos.iterdir())
    seen: list[tuple[int, int]] = []
    assert look_at(files, progress=lambda done, total: seen.append((done, total))) == [
        look(str(file)) for file in files
    ]
    assert seen == [(n + 1, len(files)) for n in range(len(files))]
    assert look_at([]) == []


def test_pixels_are_told_apart_by_shape_and_value(photos, tmp_path):
    rocket = Image.open(photos / "rocket.jpg").convert("RGB")
    rocket.save(tmp_path / "a.png")
    rocket.save(tmp_path / "b.tiff")
    rocket.rotate(90, expand=True).save(tmp_path / "turned.png")
    (tmp_path / "bad.png").write_bytes(b"no")
    a, b, turned, bad = hash_pixels([tmp_path / name for name in ("a.png", "b.tiff", "turned.png", "bad.png")])
    assert a == b == content_hash(b"%d %d " % rocket.size + rocket.tobytes())
    assert turned != a
    assert bad == ""


def test_what_is_in_the_current_folder_is_not_run(photos, tmp_path, monkeypatch):
    for name in ("PIL.py", "json.py", "numpy.py"):
        (tmp_path / name).write_text("raise SystemExit('a stranger ran')")
    monkeypatch.chdir(tmp_path)
    assert look_at([photos / "rocket.jpg"])[0].reason == ""


def test_no_process_is_left_and_an_interrupt_passes(photos, monkeypatch):
    files = sorted(photos.iterdir()) * 20
    started = []
    start = watch._start
    monkeypatch.setattr(watch, "_start", lambda: started.append(start()) or started[-1])

    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look_at(files, workers=2, progress=interrupt)
    assert started
    assert all(child.process.poll() is not None for child in started)
