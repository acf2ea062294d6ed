"""Tables whose images have several labels: lists, columns of 0 and 1, and what is held out of them."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from vitreous.data.config import DataConfig
from vitreous.data.sources import checks
from vitreous.data.sources.listing import UNLABELLED
from vitreous.data.sources.manifest import list_manifest, read_columns
from vitreous.data.sources.opening import open_source
from vitreous.data.sources.split import stratified_sets
from vitreous.errors import DataError

SETS = [("cat", "dog"), (), ("dog",), ("bird", "cat")]
NAMES = [f"{n}.png" for n in range(4)]


def labels_of(manifest: Path) -> tuple[tuple[str, ...] | None, list[tuple[str, ...] | None]]:
    listing = list_manifest(manifest)
    return listing.classes, [entry.labels for entry in listing.entries]


def write_lists(folder: Path, form: str) -> Path:
    """The same four images as lists in a form."""
    file = folder / f"m.{form.partition(' ')[0]}"
    if form == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"path": NAMES, "labels": [list(each) for each in SETS]}), file)
    elif form == "jsonl":
        rows = [{"path": name, "labels": list(each)} for name, each in zip(NAMES, SETS, strict=True)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        separator = form.partition(" ")[2]
        rows = [f'{name},"{separator.join(each)}"' for name, each in zip(NAMES, SETS, strict=True)]
        file.write_text("\n".join(["path,Labels", *rows]) + "\n")
    return file


def test_lists_in_json_are_read_from_csv(tmp_path):
    """As `vitreous predict` and Label Studio write them."""
    cells = ['["cat", "dog"]', "[]", '{"choices": ["dog"]}', "bird;cat"]
    with (tmp_path / "m.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "labels"), *zip(NAMES, cells, strict=True)])
    assert labels_of(tmp_path / "m.csv") == (("bird", "cat", "dog"), SETS)


def test_empty_cells_of_a_csv_are_counted(tmp_path):
    notes = list_manifest(write_lists(tmp_path, "csv ;")).notes
    assert notes == [
        "1 of 4 images have none of the labels, because their cell in column 'Labels' is empty; unlabelled images are "
        "given with --unlabelled"
    ]


@pytest.mark.parametrize("form", ["jsonl", "jsonl without the key", "parquet", "flags", "flags of pandas"])
def test_rows_that_do_not_say_their_labels_are_unlabelled(tmp_path, form):
    """They are no examples of images without any label: a missing list is not an empty one."""
    sets = [*SETS, None]
    names = [f"{n}.png" for n in range(len(sets))]
    file = tmp_path / f"m.{form.split()[0].replace('flags', 'csv')}"
    if form == "parquet":
        pyarrow.parquet.write_table(
            pyarrow.table({"path": names, "labels": pyarrow.array(sets, pyarrow.list_(pyarrow.string()))}), file
        )
    elif form.startswith("jsonl"):
        rows = [{"path": name, "labels": each} for name, each in zip(names, sets, strict=True)]
        if form != "jsonl":
            rows[-1].pop("labels")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        yes, no = ("1.0", "0.0") if "pandas" in form else ("1", "0")
        cells = [
            ["" if each is None else yes if name in each else no for name in ("bird", "cat", "dog")] for each in sets
        ]
        lines = [",".join([name, *row]) for name, row in zip(names, cells, strict=True)]
        file.write_text("\n".join(["path,bird,cat,dog", *lines]) + "\n")
    listing = list_manifest(file, sets_aside=True)
    assert [entry.labels for entry in listing.entries] == SETS
    assert [entry.name for entry in listing.unlabelled] == ["4.png"]
    with pytest.raises(DataError, match=r"rows .* do not say which labels their image has: fill them in, or remove"):
        list_manifest(file)


def test_single_labels_that_look_like_several_are_noted(tmp_path):
    (tmp_path / "m.csv").write_text('path,label\na,cat;dog\nb,cat\nc,"{""choices"": [""cat""]}"\n')
    (note,) = list_manifest(tmp_path / "m.csv").notes
    assert note.startswith("2 of 3 classes look like several labels, and each is one class here: cat;dog")
    assert note.endswith("For several labels, name the column labels")


@pytest.mark.parametrize("form", ["csv ;", "csv |", "csv  ; ", "parquet", "jsonl"])
def test_lists_of_every_form_say_the_same(tmp_path, form):
    assert labels_of(write_lists(tmp_path, form)) == (("bird", "cat", "dog"), SETS)


@pytest.mark.parametrize("form", ["csv", "parquet", "parquet of truth", "jsonl"])
def test_columns_of_0_and_1_in_the_order_of_the_table(tmp_path, form):
    flags = {name: [int(name in each) for each in SETS] for name in ("dog", "cat", "bird")}
    file = tmp_path / f"m.{form.partition(' ')[0]}"
    if form.startswith("parquet"):
        kind = pyarrow.bool_() if "truth" in form else pyarrow.float64()
        cells = {name: pyarrow.array(values).cast(kind) for name, values in flags.items()}
        pyarrow.parquet.write_table(pyarrow.table({"path": NAMES, **cells, "age": [3, 1, 0, 1]}), file)
    elif form == "jsonl":
        rows = [{"path": name} | {key: bool(flags[key][n]) for key in flags} for n, name in enumerate(NAMES)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        rows = [",".join([name, *(str(flags[key][n]) for key in flags), str(n)]) for n, name in enumerate(NAMES)]
        file.write_text("\n".join(["path,dog,cat,bird,age", *rows]) + "\n")
    classes, found = labels_of(file)
    assert classes == ("dog", "cat", "bird")
    assert [set(each or ()) for each in found] == [set(each) for each in SETS]
    notes = list_manifest(file).notes
    assert notes == ([] if form == "jsonl" else ["no labels, because a cell is neither 0 nor 1: age"])


def test_a_column_of_one_label_comes_first(tmp_path):
    (tmp_path / "m.csv").write_text("path,label,labels,a,b\nx.png,cat,dog;bird,0,1\n")
    listing = list_manifest(tmp_path / "m.csv")
    assert (listing.entries[0].label, listing.entries[0].labels) == ("cat", None)
    assert listing.notes == [
        "each image has one class, from column 'label': for the lists in column 'labels', rename or remove the former"
    ]


def test_the_column_labels_comes_before_tags_and_tags_before_columns_of_0_and_1_with_a_note(tmp_path):
    (tmp_path / "both.csv").write_text("path,tags,labels\na.png,old,cat\nb.png,new,dog\n")
    assert labels_of(tmp_path / "both.csv") == (("cat", "dog"), [("cat",), ("dog",)])
    (tmp_path / "flags.csv").write_text("path,cat,dog,tags\na.png,1,0,old\nb.png,0,1,new\n")
    assert labels_of(tmp_path / "flags.csv") == (("new", "old"), [("old",), ("new",)])
    assert list_manifest(tmp_path / "flags.csv").notes == [
        "labels are read from column 'tags', not from the columns of 0 and 1: cat, dog. For those, rename or remove it"
    ]


def test_cells_of_both_separators_are_noted(tmp_path):
    (tmp_path / "m.csv").write_text("path,labels\na.png,cat|dog\nb.png,bird;cat\n")
    assert labels_of(tmp_path / "m.csv")[0] == ("bird", "cat", "cat|dog")
    (note,) = list_manifest(tmp_path / "m.csv").notes
    assert note == "rows 2 have a | in column 'labels', which separates no labels where other cells have a ;"


def test_fields_of_json_lines_that_are_no_cells_are_left_out(tmp_path):
    rows = [{"path": "a.png", "cat": 1, "dog": 0, "size": [640, 480], "tags": ["x"], "site": "north"}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps({**row, "label": "cat"}) + "\n" for row in rows))
    assert read_columns(tmp_path / "m.jsonl", ["a.png"]) == {"cat": ["1"], "dog": ["0"], "site": ["north"]}
    rows[0].pop("tags")
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert labels_of(tmp_path / "m.jsonl") == (("cat", "dog"), [("cat",)])


def test_where_no_labels_are_needed_a_row_without_any_is_unlabelled(tmp_path):
    (tmp_path / "m.csv").write_text("path,cat,dog\na.png,1,0\nb.png,,\nc.png,0,0\n")
    listing = list_manifest(tmp_path / "m.csv", needs_labels=False, reads_sets=True)
    assert [(entry.label, entry.labels) for entry in listing.entries] == [
        ("cat", ("cat",)),
        (UNLABELLED, None),
        ("", ()),
    ]
    assert listing.notes == ["the columns of 0 and 1 say which labels an image has: cat, dog"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "m.csv",
            "path,a,b\nx,0,1\ny,,1\nz,1,\n",
            r"rows 3 have neither 0 nor 1 in column 'a': fill them in, or remove",
        ),
        (
            "m.csv",
            "path,a,b\nx,0,2\n",
            r"no column label .*: its columns are path, a, b\. For several labels: a column",
        ),
        (
            "m.jsonl",
            '{"path": "x", "labels": {"a": 1}}\n',
            "'labels' must be text, a number or a list of text; lines 1",
        ),
        (
            "m.csv",
            """path,labels\nx,"['cat', 'dog']"\ny,cat\nz,[cat]\n""",
            r"rows 2, 4 have a list in brackets in .*'labels'",
        ),
        (
            "m.csv",
            """path,tags\nx,"{'cat', 'dog'}"\ny,"('cat',)"\nz,a (b)\n""",
            r"rows 2, 3 .*: write cat;dog or .*, or save the",
        ),
        ("m.jsonl", '{"path": ["x"], "label": "a"}\n', "'path' must be text or a number; lines 1"),
        ("m.jsonl", '{"path": "x", "label": "a"}\n[1]\n', "line 2 is no JSON object"),
        ("m.jsonl", '{"path": "x", "label": "a"}\n{"path"\n', "cannot be read as JSON lines in UTF-8, line 2"),
        ("m.jsonl", "\n", "is empty: each line must be a JSON object"),
    ],
)
def test_errors_name_column_and_rows(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        list_manifest(tmp_path / name)


@pytest.mark.parametrize(
    ("cells", "noted"),
    [
        (["cat, dog", "bird, cat", "dog", ""], True),
        (["cat, dog", "bird", "dog", "fish, small"], False),  # half of them: names of labels
        (["cat, big;dog", "bird, small", "bird, big"], False),
    ],
)
def test_labels_between_commas_are_noted(tmp_path, cells, noted):
    rows = [f'{n}.png,"{cell}"' for n, cell in enumerate(cells)]
    (tmp_path / "m.csv").write_text("\n".join(["path,labels", *rows]) + "\n")
    note = (
        "2 of 3 cells in column 'labels' have a comma, which separates no labels, so that each cell is one label: "
        "write cat;dog for two"
    )
    found = [each for each in list_manifest(tmp_path / "m.csv").notes if "none of the labels" not in each]
    assert found == ([note] if noted else [])


def test_held_out_labels_are_the_rarest_first_and_copies_stay_together():
    """Every label loses its share to within the images that rarer ones have taken; the result needs no order."""
    rng = np.random.default_rng(0)
    labels = (rng.random((400, 5)) < (0.02, 0.1, 0.3, 0.5, 0.7)).astype(np.int64)
    digests = [f"{n:064x}" for n in rng.permutation(400)]
    for pair in (3, 50, 200):
        digests[pair], labels[pair] = digests[pair + 1], labels[pair + 1]
    held = stratified_sets(digests, labels, 0.2)
    assert (abs(labels[held].sum(0) - 0.2 * labels.sum(0)) <= (2, 2, 3, 8, 12)).all()
    assert 75 <= held.sum() <= 95
    assert all(held[pair] == held[pair + 1] for pair in (3, 50, 200))
    order = rng.permutation(400)
    again = stratified_sets([digests[n] for n in order], labels[order], 0.2)
    assert (again == held[order]).all()


def test_the_last_image_of_a_label_is_not_held_out():
    """Three rare labels would take one image each, which are all that a fourth has."""
    labels = np.zeros((9, 4), np.int64)
    for rare in range(3):
        labels[3 * rare : 3 * rare + 3, rare] = 1
        labels[3 * rare, 3] = 1  # with the smallest hash
    held = stratified_sets([f"{n:064x}" for n in range(9)], labels, 0.4)
    assert (labels[~held].sum(0) > 0).all()
    assert held.sum() == 3


@pytest.fixture
def manifest(tmp_path) -> Path:
    """Forty images with up to three of three labels; the last row is no image."""
    rng, rows = np.random.default_rng(0), []
    for n in range(40):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(tmp_path / f"{n}.png")
        rows.append(f"{n}.png," + ";".join(name for name in "abc" if rng.random() < 0.4))
    (tmp_path / "m.csv").write_text("\n".join(["path,labels", *rows, "gone.png,a"]) + "\n")
    return tmp_path / "m.csv"


def test_an_opened_source_has_a_row_of_0_and_1_for_each_image(manifest):
    data = open_source(DataConfig(source=str(manifest)), several=True)
    assert data.several
    assert (data.classes, len(data.unreadable)) == (("a", "b", "c"), 1)
    by_name = {entry.name: entry.labels for entry in list_manifest(manifest).entries}
    for split in data.splits.values():
        assert split.labels.shape == (len(split), 3)
        assert split.labels.itemsize == 1
        for name, row in zip(split.names, split.labels, strict=True):
            assert by_name[name] == tuple(c for c, has in zip("abc", row, strict=True) if has)
    totals = {c: sum(c in (by_name[f"{n}.png"] or ()) for n in range(40)) for c in "abc"}
    assert data.counts() == totals
    assert data.fingerprint != open_source(DataConfig(source=str(manifest)), needs_labels=False).fingerprint


def test_labels_of_many_images_take_a_byte_each_and_have_a_limit(manifest, monkeypatch):
    matrix = checks.label_matrix(("a", "b", "c"), list_manifest(manifest).entries)
    assert (matrix.shape, matrix.itemsize, set(matrix.ravel().tolist())) == ((41, 3), 1, {0, 1})
    monkeypatch.setattr(checks, "_MOST_CELLS", 119)
    with pytest.raises(DataError, match=r"40 images and 3 labels are a table of 120 cells, the limit is 119: leave"):
        open_source(DataConfig(source=str(manifest)), several=True)


@pytest.mark.parametrize("needs_labels", [True, False], ids=["several labels", "one class"])
def test_the_hash_of_the_order_is_the_one_in_the_states_of_earlier_versions(manifest, needs_labels):
    data = open_source(DataConfig(source=str(manifest)), several=True, needs_labels=needs_labels)
    assert data.several == needs_labels
    expected = hashlib.blake2b(repr(data.classes).encode(), digest_size=16)
    for name in ("all", "train", "val", "test"):
        split = data.splits.get(name)
        rows = [] if split is None else [*zip(split.names, split.labels.tolist(), split.digests, strict=True)]
        expected.update(repr((name, rows)).encode())
    assert data.order == expected.hexdigest()


def test_what_needs_one_label_refuses_several(manifest):
    with pytest.raises(
        DataError, match="may have several labels for an image, and this needs one: give a column label"
    ):
        open_source(DataConfig(source=str(manifest)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0.png,train,a\n1.png,train,b\n2.png,val,c", "val has labels that no train image has: c; train has a, b"),
        ("0.png,train,a\n1.png,val,", "has only one label, 'a', at least two labels are needed: for a single one"),
        ("0.png,train,\n1.png,val,", "has no train image with a label, at least two labels are needed"),
    ],
)
def test_labels_that_cannot_be_learnt_are_refused(manifest, rows, message):
    manifest.write_text(f"path,split,labels\n{rows}\n")
    with pytest.raises(DataError, match=message):
        open_source(DataConfig(source=str(manifest)), several=True)
