"""Tables of path and label: CSV as people's programs write it, Parquet, and errors that name rows."""

from __future__ import annotations

import builtins
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from vitreous.data.config import DataConfig
from vitreous.data.manifest import list_manifest
from vitreous.data.sources import open_source
from vitreous.errors import DataError, MissingExtraError


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
    text = "path,label\nnowhere.jpg,roses\n" + "".join(f"{path},{label}\n" for path, label in rows)
    data = open_source(DataConfig(source=str(write(tmp_path / "m.csv", text))))
    assert data.unreadable == [(tmp_path / "nowhere.jpg", "no such file")]
    assert sum(data.counts().values()) == len(rows)
    assert data.counts() == Counter(label for _, label in rows)


def test_a_file_with_two_labels_is_noted(tmp_path):
    listing = list_manifest(write(tmp_path / "m.csv", "path,label\na.jpg,x\na.jpg,y\nb.jpg,x\nb.jpg,x\n"))
    assert listing.notes == ["1 picture listed with more than one label: a.jpg"]


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
