"""The list of images to leave out: any name there can be, written by audit or by hand, for every kind of source."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from vitreous.cli.verbs.finetune import configure as configure_finetune
from vitreous.cli.verbs.train import configure as configure_train
from vitreous.data.config import DataConfig
from vitreous.data.sources.listing import exclusion_line, match_exclusions
from vitreous.data.sources.opening import open_source
from vitreous.files.text import visible

ODD = [
    'quo"te.png',
    '"quoted".png',
    "new\nline.png",
    "trailing .png ",
    " leading.png",
    "#comment.png",
    "a: b.png",
    "<b onclick=x>bold&amp;.png",
    "\u202egnp.elif.png",
    "\u05e9\u05dc\u05d5\u05dd.png",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f33b.png",
    "tab\tand\x1b[31mred.png",
    os.fsdecode(b"latin-1 \xe9.png"),
    "back\\slash.png",
    "~user.png",
    "line\u2028separator.png",
]


@pytest.fixture
def odd(tmp_path) -> Path:
    """Handwritten digits under names that break lists, terminals and pages, in two classes."""
    images = load_digits().images
    for n, name in enumerate(ODD):
        folder = tmp_path / "odd" / ("a", 'b "x"\n')[n % 2]
        folder.mkdir(parents=True, exist_ok=True)
        # Pillow writes by extension, and one name ends in a space.
        with (folder / name).open("wb") as file:
            Image.fromarray((images[n] * 15).astype("uint8")).save(file, format="PNG")
    for n in range(40):
        Image.fromarray((images[100 + n] * 15).astype("uint8")).save(tmp_path / "odd" / "a" / f"{n}.png")
    return tmp_path / "odd"


def names_in(root: Path | str, **options: object) -> tuple[set[str], list[str]]:
    data = open_source(DataConfig(source=str(root), **options), hold_out=False)
    return {name for split in data.splits.values() for name in split.names}, data.notes


def test_every_odd_name_comes_back_from_its_line(odd, tmp_path):
    everything, _ = names_in(odd)
    wanted = {name for name in everything if not name.rpartition("/")[2].removesuffix(".png").isdecimal()}
    assert len(wanted) == len(ODD)
    (tmp_path / "out.txt").write_text("".join(exclusion_line(name) + "\n" for name in wanted), encoding="utf-8")
    kept, notes = names_in(odd, exclude=str(tmp_path / "out.txt"))
    assert kept == everything - wanted
    assert f"{len(ODD)} images excluded by {tmp_path / 'out.txt'}" in notes


def test_a_plain_name_is_a_plain_line():
    for name in ("train/daisy/1.jpg", "a b.jpg", "\u05e9\u05dc\u05d5\u05dd/\u732b.jpg"):
        assert exclusion_line(name) == name
    assert exclusion_line("a\nb") == '"a\\nb"'


def test_a_name_wins_over_the_same_file_name_elsewhere(tmp_path):
    (tmp_path / "out.txt").write_text("1.jpg\n")
    found, _ = match_exclusions(str(tmp_path / "out.txt"), ["1.jpg", "more/1.jpg", "2.jpg"])
    assert found == {0}


def test_a_file_that_is_gone_is_noted_and_its_name_cannot_steer_the_terminal(tmp_path):
    (tmp_path / "out.txt").write_text('"gone\\u001b[31m.jpg"\nreally gone.jpg\n')
    found, notes = match_exclusions(str(tmp_path / "out.txt"), ["1.jpg"])
    assert found == set()
    assert "2 lines without an image" in notes[1]
    assert "really gone.jpg" in notes[1]
    assert "\x1b" not in "".join(notes)


def test_manifests_honour_the_list(odd, tmp_path):
    rows = [f"odd/a/{n}.png,{'low' if n < 5 else 'high'}\n" for n in range(10)]
    (tmp_path / "labels.csv").write_text("path,label\n" + "".join(rows))
    (tmp_path / "out.txt").write_text("odd/a/3.png\n7.png\nnever/there.png\n")
    kept, notes = names_in(tmp_path / "labels.csv", exclude=str(tmp_path / "out.txt"))
    assert kept == {f"odd/a/{n}.png" for n in range(10)} - {"odd/a/3.png", "odd/a/7.png"}
    assert any("1 line without an image: never/there.png" in note for note in notes)


def test_the_option_has_its_short_name_in_both_verbs():
    config, _, _ = configure_train(["digits", "--exclude", "out.txt"])
    assert config.data.exclude == "out.txt"
    config, _, _ = configure_finetune(["digits", "--from", "x", "--exclude=out.txt"])
    assert config.data.exclude == "out.txt"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("caf\u00e9 \u732b \u05e9\u05dc\u05d5\u05dd", "caf\u00e9 \u732b \u05e9\u05dc\u05d5\u05dd"),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f468\u200d\U0001f469\u200d\U0001f467"),
        ("a\nb\tc\x1b[31m", r"a\nb\tc\x1b[31m"),
        ("\u202egpj.jpg", r"\u202egpj.jpg"),
        (os.fsdecode(b"\xff.jpg"), r"\xff.jpg"),
        (" x ", r"\x20x\x20"),
        ("  ", r"\x20\x20"),
        ("", ""),
        ("\x85\u2028", r"\x85\u2028"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(name, shown):
    assert visible(name) == shown
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in visible(name))
