"""Tables of path and label: CSV as people's programs write it, Parquet, and errors that name rows."""

from __future__ import annotations

import builtins
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from vitreous.data.config import DataConfig
from vitreous.data.sources.manifest import list_manifest, read_columns
from vitreous.data.sources.opening import open_source
from vitreous.errors import DataError, MissingExtraError, UsageError


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding)
    return path


@pytest.fixture
def rows(flowers: Path) -> list[tuple[str, str]]:
    """40 absolute paths and their labels."""
    return [(str(path), path.parent.name) for path in sorted(flowers.glob("val/*/*.jpg"))[::18][:40]]


def test_a_manifest_gives_the_same_data_as_its_folder(flowers, tmp_path):
    """The 736 photographs of val, by folder and by table, get the same labels and the same split."""
    root = flowers / "val"
    paths = sorted(root.glob("*/*.jpg"))
    text = "path,label\n" + "".join(f"{path},{path.parent.name}\n" for path in paths)
    by_table = open_source(DataConfig(source=str(write(tmp_path / "all.csv", text))))
    by_folder = open_source(DataConfig(source=str(root)))
    assert by_table.classes == by_folder.classes
    assert by_table.name == "all"
    for name in ("train", "val"):
        assert by_table.splits[name].paths == by_folder.splits[name].paths
        assert by_table.splits[name].labels.tolist() == by_folder.splits[name].labels.tolist()


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize(
    "header", [("path", "label"), ("Filename", "CLASS"), ("image", "target"), ("file", "category")]
)
def test_names_of_columns_and_delimiters(tmp_path, header, delimiter):
    text = delimiter.join(["id", *header]) + "\n" + delimiter.join(["1", "Blüte №1.jpg", "роза"]) + "\n\n"
    entry = list_manifest(write(tmp_path / "m.csv", text, "utf-8-sig")).entries[0]
    assert (entry.path, entry.name, entry.label, entry.split) == (
        tmp_path / "Blüte №1.jpg",
        "Blüte №1.jpg",
        "роза",
        None,
    )


def test_quoted_names_and_paths_relative_to_the_table(tmp_path):
    text = 'label,path\n"a, b","sub/x, y.jpg"\nc,../up.jpg\n'
    entries = list_manifest(write(tmp_path / "m.csv", text)).entries
    assert [entry.path for entry in entries] == [tmp_path / "sub" / "x, y.jpg", tmp_path.parent / "up.jpg"]
    assert entries[0].label == "a, b"


def test_the_split_column_is_followed(rows, tmp_path):
    names = ["train", "VALID", "test", "Training"]
    text = "path,label,split\n" + "".join(f"{p},{c},{names[n % 4]}\n" for n, (p, c) in enumerate(rows))
    data = open_source(DataConfig(source=str(write(tmp_path / "m.csv", text))))
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 20, "val": 10, "test": 10}


def test_rows_without_a_label_may_lack_a_split_where_no_label_is_needed(tmp_path):
    draws = np.random.default_rng(0)
    for n in range(4):
        Image.fromarray(draws.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / f"{n}.png")
    text = "path,label,split\n0.png,cat,train\n1.png,dog,val\n2.png,,\n3.png,unlabelled,\n"
    config = DataConfig(source=str(write(tmp_path / "m.csv", text)))
    data = open_source(config, needs_labels=False, several=True, unlabelled="left out")  # as `pretrain` does
    assert {name: split.names for name, split in data.splits.items()} == {
        "train": ("0.png", "2.png", "3.png"),
        "val": ("1.png",),
    }
    for text in ("path,cat,dog,split\na,1,0,val\nb,,,\n", "path,labels,split\na,cat;dog,val\nb,,\n"):
        listing = list_manifest(write(tmp_path / "m.csv", text), needs_labels=False, reads_sets=True)
        assert [entry.split for entry in listing.entries] == ["val", "train"]
    with pytest.raises(DataError, match=r"rows 2 have no split"):
        list_manifest(write(tmp_path / "m.csv", "path,label,split\na,cat,\nb,,\n"), needs_labels=False)


def test_parquet_is_csv(rows, tmp_path):
    table = pyarrow.table({"file": [p for p, _ in rows], "label": [c for _, c in rows], "n": list(range(len(rows)))})
    pyarrow.parquet.write_table(table, tmp_path / "m.parquet")
    text = "file,label\n" + "".join(f"{path},{label}\n" for path, label in rows)
    assert list_manifest(tmp_path / "m.parquet").entries == list_manifest(write(tmp_path / "m.csv", text)).entries


def test_labels_that_are_numbers(tmp_path):
    table = pyarrow.table({"path": ["a", "b", "c"], "label": [10, 2, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "m.parquet")
    assert [entry.label for entry in list_manifest(tmp_path / "m.parquet").entries] == ["10", "2", "2"]
    table = pyarrow.table({"path": ["a", "b"], "label": [1.0, 0.0]})
    pyarrow.parquet.write_table(table, tmp_path / "m.parquet")
    assert [entry.label for entry in list_manifest(tmp_path / "m.parquet").entries] == ["1", "0"]


def test_missing_files_are_reported_as_unreadable(rows, tmp_path):
    text = "path,label\nnowhere.jpg,roses\nnowhere.jpg,roses\n" + "".join(f"{path},{label}\n" for path, label in rows)
    data = open_source(DataConfig(source=str(write(tmp_path / "m.csv", text))))
    assert data.unreadable == [(tmp_path / "nowhere.jpg", "no such file")]
    assert sum(data.counts().values()) == len(rows)
    assert data.counts() == Counter(label for _, label in rows)


def test_a_file_with_two_labels_is_noted(tmp_path):
    listing = list_manifest(write(tmp_path / "m.csv", "path,label\na.jpg,x\na.jpg,y\nb.jpg,x\nb.jpg,x\n"))
    assert listing.notes == ["1 image listed with more than one label: a.jpg"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.csv is empty: its first line must name the columns path and label"),
        ("path,label\n", "m.csv has a header and no rows"),
        ("where,what\na,b\n", r"has no column path \(or file, filename, file_name\): its columns are where, what"),
        ("path,what\na,b\n", r"has no column label \(or class, target, category\): its columns are path, what"),
        ("path,label\na,x\nb\nc,x,y\n", "rows 3, 4 do not have the header's 2 columns"),
        ("path,label\na,x\n\nb, \n", r"rows 4 have no label \(column 'label'\)"),
        ("path,label\n,x\n", r"rows 2 have no path"),
        ("path,label,split\na,x,train\nb,x,held\n", r"split must be train, val or test; rows 3 \(held\) have another"),
        ('path,label\n"a,x\n', "cannot be read as a CSV file in UTF-8"),
    ],
)
def test_errors_name_file_rows_and_columns(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        list_manifest(write(tmp_path / "m.csv", text))


def test_further_columns_of_parquet_are_those_of_csv(tmp_path):
    """Text, whole numbers with a gap, decimals, truth and dictionaries; other columns are left out."""
    text = "path,label,site,camera,blur,indoors,split\na.png,x,east,3,0.5,true,val\nb.png,y,,,1.25,false,val\n"
    text += "c.png,x,west,7,2,true,val\nb.png,y,north,9,9.5,true,val\n"
    cells = {
        "path": ["a.png", "b.png", "c.png", "b.png"],
        "label": ["x", "y", "x", "y"],
        "site": pyarrow.array(["east", None, "west", "north"]).dictionary_encode(),
        "camera": [3.0, None, 7.0, 9.0],  # as pandas stores whole numbers beside a missing one
        "blur": [0.5, 1.25, 2.0, 9.5],
        "indoors": [True, False, True, True],
        "split": ["val"] * 4,
        "sizes": [[1], [2, 3], [], [4]],
        "taken": pyarrow.array([0, 1, 2, 3], pyarrow.timestamp("s")),
    }
    pyarrow.parquet.write_table(pyarrow.table(cells), tmp_path / "m.parquet")
    found = read_columns(tmp_path / "m.parquet", ["c.png", "b.png", "a.png"])
    assert found == {
        "site": ["west", None, "east"],  # of the first row of b.png
        "camera": ["7", None, "3"],
        "blur": ["2", "1.25", "0.5"],
        "indoors": ["True", "False", "True"],
    }
    same = read_columns(write(tmp_path / "m.csv", text), ["c.png", "b.png", "a.png"])
    assert same | {"indoors": [value.title() for value in same["indoors"]]} == found


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("path,label,label", "'label'"),
        ("path,label,Label ", "'label'"),
        ("path,PATH,label", "'path'"),
        ("path,label,split,split", "'split'"),
        ("path,label,note,note", "'note'"),
        ("path,caf\u00e9,cafe\u0301,dog", "'caf\u00e9'"),  # one name in two Unicode forms
        ("path,label,file,file,class,class", "'file', 'class'"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_column_that_comes_twice_is_refused(tmp_path, header, named, suffix):
    """Neither is better than the other: they may hold different things."""
    names = header.split(",")
    cells = [f"{n}" for n in range(len(names))]
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.table([[cell] for cell in cells], names=names), tmp_path / "m.parquet")
    else:
        between = "\t" if suffix == "tsv" else ","
        write(tmp_path / f"m.{suffix}", between.join(names) + "\n" + between.join(cells) + "\n")
    with pytest.raises(DataError, match=rf"has more than one column {named}: rename or remove all but one"):
        list_manifest(tmp_path / f"m.{suffix}")


def test_columns_without_a_name_may_be_many(tmp_path):
    entries = list_manifest(write(tmp_path / "m.csv", ",path,label,,\n0,a.jpg,x,,\n")).entries
    assert [(entry.name, entry.label) for entry in entries] == [("a.jpg", "x")]


def test_of_two_columns_of_one_meaning_the_best_known_is_read_and_a_difference_is_said(tmp_path):
    table = write(tmp_path / "m.csv", "class,file,label,filename\nx,a.jpg,7,a.jpg\ny,b.jpg,8,b.jpg\n")
    listing = list_manifest(table)
    assert [(entry.name, entry.label) for entry in listing.entries] == [("a.jpg", "7"), ("b.jpg", "8")]
    assert listing.notes == ["label is read from column 'label', not from 'class', which differs"]


@pytest.mark.parametrize("column", ["path", "label", "split"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_nul_is_refused_and_its_row_is_named(tmp_path, column, suffix):
    cells = {"path": ["a", "b"], "label": ["x", "y"], "split": ["train", "val"]}
    cells[column][1] += "\0.jpg"
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(cells), tmp_path / "m.parquet")
    else:
        rows = [",".join(row) for row in zip(*cells.values(), strict=True)]
        write(tmp_path / "m.csv", "path,label,split\n" + "\n".join(rows) + "\n")
    row = 1 if suffix == "parquet" else 3
    with pytest.raises(DataError, match=rf"rows {row} have a NUL character in their {column} \(column '{column}'\)"):
        list_manifest(tmp_path / f"m.{suffix}")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (pyarrow.array([{"bytes": b"x", "path": "a"}]), "struct"),
        (pyarrow.array([["a", "b"]]), "list"),
        (pyarrow.array([[("a", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())), "map"),
        (pyarrow.array([0], pyarrow.timestamp("ns")), "timestamp"),
        (pyarrow.array([[1.0, 2.0]], pyarrow.list_(pyarrow.float32(), 2)), "fixed_size_list"),
    ],
)
@pytest.mark.parametrize("column", ["image", "label"])
def test_cells_that_are_no_text_are_refused_by_their_type(tmp_path, cells, kind, column):
    other = {"image": "label", "label": "image"}[column]
    pyarrow.parquet.write_table(pyarrow.table({column: cells, other: ["a"]}), tmp_path / "m.parquet")
    with pytest.raises(DataError, match=rf"column '{column}' holds {kind}.*, it must hold text; name another column"):
        list_manifest(tmp_path / "m.parquet")


def test_text_in_other_wrappings_of_parquet(tmp_path):
    table = pyarrow.table(
        {
            "path": pyarrow.array(["a.jpg", "a.jpg", "\u00fc.jpg"]).dictionary_encode(),
            "label": pyarrow.array([b"x", b"y", "\u00fc".encode()]),
            "pixels": pyarrow.array([{"bytes": b"1"}] * 3),  # not read
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "m.parquet")
    entries = list_manifest(tmp_path / "m.parquet").entries
    assert [(entry.name, entry.label) for entry in entries] == [
        ("a.jpg", "x"),
        ("a.jpg", "y"),
        ("\u00fc.jpg", "\u00fc"),
    ]
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 1, pyarrow.array([b"a\xff"]).buffers())
    for column in (broken, pyarrow.array([b"a\xff"])):
        pyarrow.parquet.write_table(pyarrow.table({"path": column, "label": ["x"]}), tmp_path / "m.parquet")
        with pytest.raises(DataError, match="cannot be read as a Parquet file: 'utf-8' codec"):
            list_manifest(tmp_path / "m.parquet")


def test_what_claims_more_than_any_table_has_is_refused_before_it_is_read(tmp_path):
    def seconds(manifest: Path, message: str) -> float:
        start = time.process_time()
        with pytest.raises(DataError, match=message):
            list_manifest(manifest)
        return time.process_time() - start

    many = pyarrow.DictionaryArray.from_arrays(np.zeros(20_000_001, np.int8), ["x"])
    pyarrow.parquet.write_table(pyarrow.table({"path": many, "label": many}), tmp_path / "rows.parquet")
    assert (tmp_path / "rows.parquet").stat().st_size < 2e6
    assert seconds(tmp_path / "rows.parquet", "rows or more, the limit is 20,000,000") < 2
    table = pyarrow.table({"path": ["x" * 2**26], "label": ["x"]})
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    pyarrow.parquet.write_table(table, tmp_path / "cell.parquet", **options)
    assert (tmp_path / "cell.parquet").stat().st_size < 1e5
    assert seconds(tmp_path / "cell.parquet", r"column 'path' unpacks to 67,\d+,\d+ bytes in 1 row") < 2
    for name in ("sparse.csv", "sparse.parquet"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 41)
        assert seconds(tmp_path / name, f"{name} cannot be read as a .* file.*: 2,199,023,255,552 bytes, the limit") < 2
    with (tmp_path / "line.csv").open("wb") as file:
        file.truncate(1 << 30)
    assert seconds(tmp_path / "line.csv", "a line of over 1,048,576 characters") < 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_what_is_no_regular_file_is_refused_and_never_opened(tmp_path, rows):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    table = write(tmp_path / "m.csv", "path,label\n" + "".join(f"{p},{c}\n" for p, c in rows))
    for name in ("pipe.csv", "zero.csv"):
        with pytest.raises(UsageError, match=f"{name} is neither a folder nor a regular file"):
            open_source(DataConfig(source=str(tmp_path / name)))
        with pytest.raises(DataError, match=f"to exclude, .*{name}, cannot be read: a (pipe|device), not a regular"):
            open_source(DataConfig(source=str(table), exclude=str(tmp_path / name)))


def test_another_encoding_is_an_error_not_a_guess(tmp_path):
    with pytest.raises(DataError, match="cannot be read as a CSV file in UTF-8"):
        list_manifest(write(tmp_path / "m.csv", "path,label\nBlüte.jpg,x\n", "latin-1"))


def test_a_file_that_is_no_parquet(tmp_path):
    with pytest.raises(DataError, match="cannot be read as a Parquet file"):
        list_manifest(write(tmp_path / "m.parquet", "path,label\na,b\n"))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name: str, *args: object, **options: object) -> object:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitreous\[table\]'"):
        list_manifest(write(tmp_path / "m.parquet", ""))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_blank_lines_at_the_start_are_skipped_and_counted(tmp_path, delimiter):
    lines = ("", delimiter * 2, "path,label,split", "a.jpg,x,train", "b.jpg,y,val")
    text = "\n".join(line.replace(",", delimiter) for line in lines)
    found = [(each.name, each.label, each.split) for each in list_manifest(write(tmp_path / "m.csv", text)).entries]
    assert found == [("a.jpg", "x", "train"), ("b.jpg", "y", "val")]
    with pytest.raises(DataError, match=r"rows 5 \(held\) have another"):
        list_manifest(write(tmp_path / "m.csv", text.replace("val", "held")))


def test_the_line_of_a_broken_object_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read as JSON lines in UTF-8, line 4: "):
        list_manifest(write(tmp_path / "m.jsonl", '\n{"path": "a", "label": "x"}\n\n{"path": \n'))


def test_paths_that_are_bytes_have_further_columns_too(tmp_path):
    cells = {"path": [b"a.jpg", "\u00fc.jpg".encode()], "label": ["x", "y"], "site": ["east", "west"]}
    pyarrow.parquet.write_table(pyarrow.table(cells), tmp_path / "m.parquet")
    assert read_columns(tmp_path / "m.parquet", ["\u00fc.jpg", "a.jpg"]) == {"site": ["west", "east"]}
