"""`vitreous watch`: rows for new files, across restarts, crashes and files that are still being written."""

from __future__ import annotations

import csv
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous as package
from forked import Forked
from vitreous.errors import OutputError
from vitreous.serve.folder_watch import FolderWatch, Table, columns


def save_image(path: Path, seed: int) -> Path:
    """Write a small image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 30), dtype=np.uint8)
    Image.fromarray(pixels).save(path, "PNG")
    return path


def rows_of(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def inbox(tmp_path) -> Path:
    """A folder of four images and another file."""
    for n, name in enumerate(("b.png", "deep/a.png", "=1+1.png", "ü, x.png")):
        save_image(tmp_path / "inbox" / name, n)
    (tmp_path / "inbox/notes.txt").write_text("no image")
    return tmp_path / "inbox"


@pytest.fixture(scope="module")
def classifier(model_file):
    """The model of the command-line tests."""
    return package.load(model_file, device="cpu", engine="torch")


WORDS = ("--once", "--settle", "0.05", "--engine", "torch", "--device", "cpu")


def test_rows_are_the_predictions_and_a_second_run_adds_none(vitreous, model_file, inbox, classifier):
    run = vitreous("watch", inbox, "--model", model_file, "--top-k", "2", *WORDS)
    assert run.returncode == 0, run.stderr
    rows = rows_of(inbox / "predictions.csv")
    assert sorted(row["path"] for row in rows) == ["'=1+1.png", "b.png", "deep/a.png", "ü, x.png"]
    for row in rows:
        expected = classifier.predict(inbox / row["path"].lstrip("'"), top_k=2)
        assert (row["label"], row["label_2"]) == tuple(label for label, _ in expected.top)
        assert float(row["probability"]) == pytest.approx(expected.probability, rel=1e-4)
        assert row["error"] == ""
    before = (inbox / "predictions.csv").read_bytes()
    again = vitreous("watch", inbox, "--model", model_file, "--top-k", "2", *WORDS)
    assert "0 rows appended" in again.stderr
    assert (inbox / "predictions.csv").read_bytes() == before


def test_a_replaced_file_and_an_unreadable_one_get_rows(vitreous, model_file, inbox):
    vitreous("watch", inbox, "--model", model_file, *WORDS)
    save_image(inbox / "b.png", 99)
    os.utime(inbox / "b.png", ns=(1, 12345))
    (inbox / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    run = vitreous("watch", inbox, "--model", model_file, *WORDS)
    rows = rows_of(inbox / "predictions.csv")
    assert [row["path"] for row in rows[4:]] == ["b.png", "bad.png"]
    assert rows[4]["changed_ns"] == "12345"
    assert (rows[5]["label"], rows[5]["error"] != "") == ("", True)
    assert "vitreous: bad.png: " in run.stderr or "bad.png: " in run.stderr


def test_a_row_that_a_crash_cut_off_is_written_again(vitreous, model_file, inbox):
    vitreous("watch", inbox, "--model", model_file, *WORDS)
    file = inbox / "predictions.csv"
    whole = file.read_bytes()
    for cut in (1, 10, len(whole.splitlines(keepends=True)[-1]) + 5):
        file.write_bytes(whole[:-cut])
        assert vitreous("watch", inbox, "--model", model_file, *WORDS).returncode == 0
        assert sorted(file.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_every_beginning_of_the_file_is_completed(tmp_path, inbox, classifier):
    """A crash may leave any number of bytes."""
    header = columns(1, [])
    with Table(tmp_path / "a.csv", header) as table:
        FolderWatch(inbox, table, classifier).run(threading.Event(), settle=0.01, once=True)
    whole = (tmp_path / "a.csv").read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "b.csv").write_bytes(whole[:length])
        with Table(tmp_path / "b.csv", header) as table:
            FolderWatch(inbox, table, classifier).run(threading.Event(), settle=0.001, once=True)
        assert sorted((tmp_path / "b.csv").read_bytes().splitlines()) == sorted(whole.splitlines()), length


def test_a_file_is_read_once_it_is_complete(tmp_path, inbox, classifier):
    content = save_image(tmp_path / "late.png", 7).read_bytes()
    ended = threading.Event()
    with Table(tmp_path / "a.csv", columns(1, [])) as table:
        watch = FolderWatch(inbox, table, classifier)
        thread = threading.Thread(target=watch.run, args=(ended,), kwargs={"every": 0.02, "settle": 0.5})
        thread.start()
        with open(inbox / "late.png", "wb") as stream:
            for at in range(0, len(content), 100):
                stream.write(content[at : at + 100])
                stream.flush()
                time.sleep(0.05)
        end = time.monotonic() + 60
        while len(table.done) < 5 and time.monotonic() < end:
            time.sleep(0.02)
        ended.set()
        thread.join()
    rows = [row for row in rows_of(tmp_path / "a.csv") if row["path"] == "late.png"]
    assert [(row["error"], row["bytes"]) for row in rows] == [("", str(len(content)))]


def test_the_table_is_for_one_process_and_one_set_of_columns(tmp_path):
    with Table(tmp_path / "a.csv", columns(1, [])), pytest.raises(OutputError, match="another `vitreous watch`"):
        Table(tmp_path / "a.csv", columns(1, []))
    with pytest.raises(OutputError, match="has other columns"):
        Table(tmp_path / "a.csv", columns(2, []))
    with pytest.raises(OutputError, match="cannot write"):
        Table(tmp_path / "none" / "a.csv", columns(1, []))


@pytest.mark.parametrize("content", ["my only notes, no newline", "x" * 200_000 + "\nmore\n", '"open\n'])
def test_a_file_of_something_else_is_refused_and_kept(tmp_path, content):
    (tmp_path / "notes.txt").write_text(content)
    with pytest.raises(OutputError, match="has other columns"):
        Table(tmp_path / "notes.txt", columns(1, []))
    assert (tmp_path / "notes.txt").read_text() == content


def test_an_interrupt_ends_it_cleanly_and_a_kill_loses_nothing(tmp_path, model_file, inbox):
    def start() -> Forked:
        return Forked(tmp_path, "watch", inbox, "--model", model_file, *WORDS[1:], "--every", "0.05")

    def rows_at_least(count: int) -> None:
        end = time.monotonic() + 120
        while not (file.exists() and file.read_bytes().count(b"\n") > count):
            assert time.monotonic() < end
            time.sleep(0.05)

    file = inbox / "predictions.csv"
    first = start()
    rows_at_least(4)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    save_image(inbox / "new.png", 50)
    second = start()
    rows_at_least(5)
    second.send_signal(signal.SIGINT)
    _, said = second.communicate(timeout=60)
    assert second.returncode == 0, said
    assert "1 row appended" in said
    assert "Traceback" not in said
    assert sorted(row["path"] for row in rows_of(file)) == ["'=1+1.png", "b.png", "deep/a.png", "new.png", "ü, x.png"]


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["gone", "--model", "m"], 1, "'gone' is no folder"),
        (["inbox"], 2, "--model is missing"),
        (["inbox", "--model", "gone.safetensors"], 1, "no model file 'gone.safetensors'"),
        (["inbox", "--model", "m", "-o", "inbox"], 2, "-o is 'inbox', a folder"),
    ],
    ids=["folder", "no model", "model", "output"],
)
def test_what_cannot_be_watched_is_told_in_one_line(vitreous, inbox, words, code, line):
    run = vitreous("watch", *words)
    assert (run.returncode, line in run.stderr.splitlines()[-1]) == (code, True), run.stderr
