"""`vitreous select`: its table is a manifest, its files belong together, and labelled images are not proposed again."""

from __future__ import annotations

import csv
import json
import ntpath
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import vitreous as package
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.cli.main import main
from vitreous.cli.work import selecting
from vitreous.data.sources.listing import UNLABELLED
from vitreous.data.sources.manifest import list_manifest
from vitreous.errors import DataError
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.files.text import csv_cell
from vitreous.files.writing import Outputs


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of twelve small images in two folders, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    for n in range(12):
        (folder := tmp_path / "photos" / ("a b" if n % 2 else "c")).mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (16, 16), dtype=np.uint8)).save(folder / f"{n}.png")
    return tmp_path / "photos"


EMPTY = ("short.png", "empty.png")


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def select(model, *words):
    return main(["select", str(model), *map(str, words), "--device", "cpu", "--engine", "torch"])


@pytest.mark.parametrize("method", ["typicality", "core-set"])
def test_the_table_is_a_manifest_of_images_that_have_no_label_yet(photos, tmp_path, model_file, method, capsys):
    (tmp_path / "out").mkdir()
    assert select(model_file, "photos", "--count", 5, "-o", "out/round.csv", "--method", method) == 0
    assert f"5 of 12 images to label, by {method}, in out/round.csv, out/round.png" in capsys.readouterr().err
    rows = rows_of("out/round.csv")
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert list(rows[0]) == ["path", "label", "rank", "score"]
    entries = list_manifest(tmp_path / "out/round.csv", needs_labels=False).entries
    assert {entry.label for entry in entries} == {UNLABELLED}
    assert {entry.path for entry in entries} <= set(photos.rglob("*.png"))
    assert len({entry.path for entry in entries}) == 5
    with Image.open("out/round.png") as sheet:
        assert sheet.size == (5 * 136 + 8, 162)
        thumbnail = sheet.crop((8, 26, 8 + 128, 26 + 128)).convert("L")  # the first image, enlarged
    with Image.open(next(e.path for e in entries if e.name == rows[0]["path"])) as first:
        assert np.array_equal(thumbnail, np.kron(first, np.ones((8, 8), np.uint8)))


def test_copies_of_labelled_images_and_of_each_other_are_not_proposed(photos, tmp_path, model_file, capsys):
    known, first, second = sorted(photos.rglob("*.png"))[:3]
    for source, name in ((known, "x.png"), (first, "y.png"), (first, "z.png")):
        shutil.copy(source, photos / "c" / name)
    (photos / "c" / "short.png").write_bytes(b"")
    (photos / "c" / "empty.png").write_bytes(b"")
    (tmp_path / "done.csv").write_text(f"path,label\n{known},cat\n")
    assert select(model_file, "photos", "--count", 11, "--labelled", "done.csv", "-o", "one.csv") == 1  # unreadable
    said = capsys.readouterr().err
    assert "3 images left out as byte-for-byte copies of labelled or other ones: photos/c/x.png, " in said
    assert said.count("empty, 0 bytes") == 2
    names = {Path(row["path"]).name for row in rows_of("one.csv")}
    assert names == {path.name for path in photos.rglob("*.png")} - {known.name, "x.png", "y.png", "z.png", *EMPTY}
    assert second.name in names


def test_what_is_labelled_is_not_proposed_again(photos, tmp_path, model_file, capsys):
    assert select(model_file, "photos", "--count", 4, "-o", "one.csv") == 0
    rows = rows_of("one.csv")
    with open("one.csv", "w", encoding="utf-8") as stream:
        stream.write("path,label\n" + "".join(f"{row['path']},{'x' if n else ''}\n" for n, row in enumerate(rows)))
    words = ("photos", "--labelled", "one.csv", "--method", "core-set")
    assert select(model_file, *words, "--count", 9, "-o", "two.csv") == 0
    again = {row["path"] for row in rows_of("two.csv")}
    assert again.isdisjoint(row["path"] for row in rows[1:])
    assert rows[0]["path"] in again
    assert all(float(row["score"]) >= 0 for row in rows_of("two.csv"))
    assert select(model_file, *words, "--count", 10, "-o", "three.csv") == 1
    assert "--count is 10, but only 9 images without a label can be chosen" in capsys.readouterr().err
    assert not (tmp_path / "three.csv").exists()
    assert not (tmp_path / "three.png").exists()
    assert select(model_file, "one.csv", "--count", 1, "-o", "four.csv") == 0  # the row without a label
    assert [row["path"] for row in rows_of("four.csv")] == [rows[0]["path"]]


def test_uncertainty_is_the_margin_of_calibrated_probabilities(photos, model_file):
    words = ("--count", 2, "-o", "two.csv", "--method", "uncertainty", "--json", "two.json")
    assert select(model_file, "photos", *words) == 0
    paths = sorted(map(str, photos.rglob("*.png")))
    logits = torch.from_numpy(package.load(model_file, engine="torch").logits(paths))
    top = (logits / 1.7).softmax(1).topk(2).values
    margins = dict(zip(paths, (top[:, 0] - top[:, 1]).tolist(), strict=True))
    rows = rows_of("two.csv")
    for row in rows:
        assert float(row["score"]) == pytest.approx(margins[str(photos.parent / row["path"])], abs=1e-4)
    assert float(rows[0]["score"]) == pytest.approx(min(margins.values()), abs=1e-4)
    found = json.loads((photos.parent / "two.json").read_text())
    assert (found["images"], found["method"], found["failures"]) == (12, "uncertainty", [])
    assert [each["rank"] for each in found["chosen"]] == [1, 2]


def test_a_model_without_a_head_chooses_by_its_features_alone(photos, tmp_path, model_file, capsys):
    model, info = load_model(model_file)
    config = model.config.with_options({"num_classes": 0})
    backbone = package.VisionTransformer(config)
    weights = model.state_dict().items()
    backbone.load_state_dict({name: value for name, value in weights if not name.startswith("head.")})
    save_model(tmp_path / "backbone.safetensors", backbone, ModelInfo((), info.pipeline))
    assert select("backbone.safetensors", "photos", "--count", 3, "-o", "a.csv") == 0
    assert select(model_file, "photos", "--count", 3, "-o", "b.csv") == 0
    assert rows_of("a.csv") == rows_of("b.csv")
    assert select("backbone.safetensors", "photos", "--count", 3, "-o", "c.csv", "--method", "uncertainty") == 2
    assert "use --method typicality or core-set" in capsys.readouterr().err


def test_label_studio_gets_tasks_with_addresses_of_its_local_files(photos, tmp_path, model_file, capsys):
    assert select(model_file, "photos", "--count", 12, "-o", "all.csv", "--label-studio", ".") == 0
    tasks = json.loads((tmp_path / "all.json").read_text())
    assert len(tasks) == 12
    spaced = next(task["data"] for task in tasks if task["data"]["path"].endswith("a b/1.png"))
    assert spaced["image"] == "/data/local-files/?d=photos/a%20b/1.png"
    assert spaced["path"] == str(photos / "a b/1.png")
    assert select(model_file, "photos", "--count", 1, "-o", "one.csv", "--label-studio", "photos/c") == 2
    assert "is not below --label-studio 'photos/c'" in capsys.readouterr().err
    assert select(model_file, "photos/c", "--count", 1, "-o", "one.csv", "--label-studio", "photos/c") == 2
    assert "serves only folders below its root: name the folder above" in capsys.readouterr().err
    assert select(model_file, "photos", "--count", 1, "-o", "one.csv", "--label-studio", "nowhere") == 2
    exported = tmp_path / "export.csv"  # as Label Studio writes it: the task's data, and the choice under its name
    exported.write_text(
        "annotation_id,annotator,created_at,id,image,label,lead_time,path,rank,score,updated_at\n"
        f"1,1,2026,1,{spaced['image']},daisy,2.0,{spaced['path']},1,0.5,2026\n"
    )
    (entry,) = list_manifest(exported).entries
    assert (entry.path, entry.label) == (photos / "a b/1.png", "daisy")


def test_unreadable_images_are_reported_and_files_are_kept(photos, tmp_path, model_file, capsys):
    (photos / "broken.png").write_bytes(b"no image")
    assert select(model_file, "photos", "--count", 3, "-o", "a.csv") == 1
    assert "broken.png: not an image" in capsys.readouterr().err
    assert len(rows_of("a.csv")) == 3
    assert select(model_file, "photos", "--count", 3, "-o", "a.csv") == 2
    assert "--overwrite" in capsys.readouterr().err
    (tmp_path / "b.png").write_bytes(b"mine")
    assert select(model_file, "photos", "--count", 3, "-o", "b.csv") == 2
    assert (tmp_path / "b.png").read_bytes() == b"mine"
    assert not (tmp_path / "b.csv").exists()
    assert select(model_file, "photos", "-o", "a.txt") == 2
    assert select(model_file, "digits", "-o", "c.csv") == 2
    assert "it must be a folder of images, or a .csv or .parquet manifest" in capsys.readouterr().err


def test_the_table_has_a_name_of_its_own(photos, model_file):
    assert select(model_file, "photos", "--count", 2) == 0
    assert len(rows_of("select.csv")) == 2
    assert select(model_file, "photos", "--count", 2) == 2  # it exists now


def test_images_in_larger_files_are_refused_before_any_is_read(photos, tmp_path, model_file, capsys):
    image = {"bytes": (photos / "c" / "0.png").read_bytes(), "path": "0.png"}
    pyarrow.parquet.write_table(pyarrow.table({"image": [image], "label": [0]}), tmp_path / "images.parquet")
    for data in ("images.parquet", "s3://bucket/photos"):
        assert select(model_file, data, "--count", 1) == 2
        assert f"DATA is '{data}', which has shards" in capsys.readouterr().err
        assert select(model_file, "photos", "--labelled", data, "--count", 1) == 2
        assert f"--labelled is '{data}', which has shards" in capsys.readouterr().err


def test_no_contact_sheet_becomes_an_image_of_the_data(photos, tmp_path, model_file, capsys):
    (tmp_path / "link").symlink_to(photos, target_is_directory=True)
    for output in ("photos/a.csv", "photos/c/a.csv", "link/a.csv"):
        assert select(model_file, "photos", "--count", 2, "-o", output) == 2
        error = capsys.readouterr().err
        assert f"-o is '{output}', below DATA 'photos'" in error
        assert error.count("\n") == 1
    assert len(list(photos.rglob("*.*"))) == 12


def test_a_sheet_that_is_cut_says_so(photos, model_file, capsys, monkeypatch):
    monkeypatch.setattr(selecting, "MOST_SHOWN", 3)
    assert select(model_file, "photos", "--count", 5, "-o", "a.csv") == 0
    assert "a.png shows the first 3 of 5 proposals; the table has all" in capsys.readouterr().err
    assert len(rows_of("a.csv")) == 5


def test_an_image_on_another_drive_has_its_whole_path(photos, monkeypatch):
    monkeypatch.setattr(os.path, "relpath", ntpath.relpath)
    selecting.write_files(Outputs(), "a.csv", [selecting.Proposal("D:\\a.png", 0.5, 1)], None)
    assert rows_of("a.csv")[0]["path"].endswith("D:\\a.png")


@pytest.mark.skipif(os.name == "nt", reason="Windows allows no such names")
def test_paths_that_look_like_formulas_are_read_back_and_those_that_cannot_be_are_named(photos, model_file, capsys):
    names = ("@a/1.png", "-new/2.png", "=x/3.png", " lead/4.png", "~home/5.png", "a;b/6.png")
    odd, sources = ("a;=1/7.png", "new\x1b[31m/8.png"), sorted(photos.rglob("*.png"))
    for n, name in enumerate((*names, *odd)):
        (path := photos.parent / name).parent.mkdir()
        shutil.copy(sources[n], path)
    with open("images.csv", "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("path", "label"), *((f"./{name}", "") for name in (*names, *odd))])
    assert select(model_file, "images.csv", "--count", len(names), "-o", "table.csv") == 0
    error = capsys.readouterr().err
    assert "2 images left out: a table cannot hold the path of a;=1/7.png, new\\x1b[31m/8.png, which has" in error
    entries = list_manifest(photos.parent / "table.csv", needs_labels=False).entries
    assert {entry.path for entry in entries} == {photos.parent / name for name in names}
    assert all(row["path"] == csv_cell(row["path"]) for row in rows_of("table.csv"))
    assert select(model_file, "images.csv", "--count", len(names) + 1, "-o", "more.csv") == 1


def test_nothing_is_written_if_the_table_cannot_hold_a_path(photos):
    with pytest.raises(DataError, match=r"cannot hold the path of a\\nb\.png, which has invisible characters"):
        selecting.write_files(Outputs(), "a.csv", [selecting.Proposal("a\nb.png", 0.5, 1)], None)
    assert [path.name for path in photos.parent.iterdir()] == ["photos"]


def test_paths_are_relative_to_the_folder_of_the_table_as_it_is_named(photos, tmp_path, model_file):
    (tmp_path / "scratch/deep/out").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "scratch/deep/out", target_is_directory=True)
    assert select(model_file, "photos", "--count", 3, "-o", "out/r.csv") == 0
    entries = list_manifest(Path("out/r.csv"), needs_labels=False).entries
    assert {entry.path.resolve() for entry in entries} <= {path.resolve() for path in photos.rglob("*.png")}
    assert len(entries) == 3


def test_images_with_several_labels_are_labelled_images(photos, tmp_path, model_file):
    paths = sorted(path.relative_to(tmp_path).as_posix() for path in photos.rglob("*.png"))
    lists = ["x;y", "", "y", *[""] * 9]
    (tmp_path / "lists.csv").write_text("path,labels\n" + "".join(map("{},{}\n".format, paths, lists)))
    flags = [f"{path},{n % 2},0\n" for n, path in enumerate(paths[:4])]
    (tmp_path / "flags.csv").write_text("path,x,y\n" + "".join(flags))
    assert select(model_file, "lists.csv", "--count", 10, "-o", "a.csv") == 0
    assert {row["path"] for row in rows_of("a.csv")} == {*paths} - {paths[0], paths[2]}
    assert list(rows_of("a.csv")[0]) == ["path", "labels", "rank", "score"]
    assert select(model_file, "photos", "--labelled", "flags.csv", "--count", 8, "-o", "b.csv") == 0
    assert {row["path"] for row in rows_of("b.csv")} == {*paths[4:]}
    assert select(model_file, "photos", "--labelled", "lists.csv", "--count", 1, "-o", "c.csv") == 1  # none is a label


def test_a_model_of_several_labels_has_its_own_column_and_margins(photos, tmp_path, model_file):
    model, info = load_model(model_file)
    count = len(info.classes)
    rule = LabelRule(tuple(0.3 + 0.05 * n for n in range(count)), (0.7,) * count, (0.1,) * count)
    several = ModelInfo(info.classes, info.pipeline, multilabel=rule)
    save_model(tmp_path / "several.safetensors", model, several)
    assert select("several.safetensors", "photos", "--count", 2, "-o", "a.csv") == 0
    assert list(rows_of("a.csv")[0]) == ["path", "labels", "rank", "score"]
    assert select("several.safetensors", "photos", "--count", 2, "-o", "b.csv", "--method", "uncertainty") == 0
    paths = sorted(map(str, photos.rglob("*.png")))
    logits = torch.from_numpy(package.load("several.safetensors", engine="torch").logits(paths))
    chances, bounds = (0.7 * logits + 0.1).sigmoid(), torch.tensor(rule.thresholds)
    gaps = (chances - bounds).abs() / torch.where(chances >= bounds, 1 - bounds, bounds)
    margins = dict(zip(paths, gaps.min(dim=1).values.tolist(), strict=True))
    scores = {str(photos.parent / row["path"]): float(row["score"]) for row in rows_of("b.csv")}
    assert scores == pytest.approx({path: margins[path] for path in scores}, abs=1e-4)
    assert min(scores.values()) == pytest.approx(min(margins.values()), abs=1e-4)
