"""`vitreous predict`: formats, engines, lists of images, and errors."""

import csv
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

import vitreous as package
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.cli.output.predictions import writer
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.files.writing import Outputs
from vitreous.predictions import Failure, Prediction

PACE = r"{} images in [\d.]+ s, [\d,.]+ img/s: torch, float32, cpu\n"
NAMES = ["b.png", 'a "quoted", [x] 犬.JPG', "deep/er/c.webp"]


@pytest.fixture
def folder(tmp_path, photographs) -> Path:
    """A folder of three images with unusual names and a text file."""
    for n, name in enumerate(NAMES):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photographs[n % 2]).resize((80, 60)).save(path)
    (tmp_path / "in" / "notes.txt").write_text("not an image")
    return tmp_path / "in"


def test_csv_equals_the_library_in_the_requested_order(command, model_file, folder):
    asked = [f"in/{name}" for name in NAMES]
    run = command("predict", model_file, *asked, "--format", "csv", "--top-k", "2", "--device", "cpu")
    assert run.returncode == 0
    assert re.fullmatch(PACE.format(3), run.stderr)
    rows = list(csv.DictReader(run.stdout.splitlines()))
    expected = package.load(model_file, device="cpu").predict([folder.parent / name for name in asked])
    assert [row["path"] for row in rows] == asked
    for row, said in zip(rows, expected, strict=True):
        for suffix, (label, probability) in zip(("", "_2"), said.top[:2], strict=True):
            assert row[f"label{suffix}"] == label
            assert float(row[f"probability{suffix}"]) == pytest.approx(probability, rel=1e-4)
        assert row["error"] == ""


def test_lists_in_csv_are_read_back_exactly_and_are_no_formulas(capsys):
    few = ("a;-b", "x| =1", 'q"; +', "back\\;=1", "comma, dog", "犬\u200c")
    many = tuple(f"label {n}" for n in range(4000))  # more characters than spreadsheets show
    said = Prediction("x", 0.9, (("x", 0.9),), "x.png", unsure=True, set=many, set_coverage=0.9, labels=few)
    with writer("csv", None, 1, {}, Outputs(), thresholds=("unsure", "set", "labels")) as write:
        write(said)
    header, line = capsys.readouterr().out.splitlines()
    (row,) = csv.DictReader([header, line])
    assert row["unsure"] == "true"
    assert json.loads(row["set"]) == list(many)
    assert json.loads(row["labels"]) == list(few)
    for separator in ";|":
        assert [cell for cell in next(csv.reader([line], delimiter=separator)) if re.match(" *[=+@-]", cell)] == []


def test_tables_say_which_of_several_labels_are_below_their_threshold(capsys):
    likely = (("cat", 0.6), ("dog", 0.3), ("owl", 0.1))
    said = Prediction("cat", 0.6, likely, "1.png", labels=("dog",))  # whose threshold is lower than that of cat
    none = Prediction("cat", 0.6, likely, "2.png", labels=())
    with writer("table", None, 3, {}, Outputs()) as write:
        write(said)
    name, labels, *rows = capsys.readouterr().out.splitlines()
    assert (name, labels) == ("1.png", "dog")
    assert ["below its threshold" in row for row in rows] == [True, False, True]
    with writer("table", None, 3, {}, Outputs()) as write:
        for each in (said, none, Failure("3.png", "not an image")):
            write(each)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["image", "labels", "most", "probable"]
    assert lines[3].split(None, 2) == ["1.png", "dog", "cat 60.0%, dog 30.0%, owl 10.0%  "]
    assert lines[4].split(None, 2) == ["2.png", "none", "cat 60.0%, dog 30.0%, owl 10.0%  "]
    assert lines[5].split() == ["3.png", "not", "an", "image"]


def test_folders_are_searched_recursively(vitreous, model_file, folder):
    run = vitreous("predict", model_file, "in", "--format=jsonl")
    records = [json.loads(line) for line in run.stdout.splitlines()]
    assert [record["path"] for record in records] == sorted(f"in/{name}" for name in NAMES)
    assert all(len(record["top"]) == 5 and record["top"][0]["label"] == record["label"] for record in records)
    assert run.returncode == 0


@pytest.mark.parametrize("verb", [("predict",), ("evaluate",), ("predict", "--format", "csv")], ids=" ".join)
def test_a_model_without_classes_is_rejected_before_any_work(vitreous, tmp_path, digits, verb):
    model = package.VisionTransformer(
        package.ViTConfig(image_size=16, patch_size=4, num_classes=0, width=32, depth=1, heads=2, mlp_dim=64)
    )
    pipeline = EvalPipeline((16, 16), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.2,) * 3))
    save_model(tmp_path / "bare.safetensors", model, ModelInfo((), pipeline))
    run = vitreous(verb[0], "bare.safetensors", digits, *verb[1:])
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "vitreous: this model has no classification head: use embed to get its features\n"


def test_an_unreadable_file_does_not_affect_others(vitreous, model_file, folder):
    (folder / "bad.jpg").write_bytes((folder / NAMES[1]).read_bytes()[:300])
    (folder / "empty.png").touch()
    run = vitreous("predict", model_file, "in/bad.jpg", "in/b.png", "in/empty.png", "gone.jpg", "--format", "jsonl")
    assert run.returncode == 1
    records = [json.loads(line) for line in run.stdout.splitlines()]
    assert [record["path"] for record in records] == ["in/bad.jpg", "in/b.png", "in/empty.png", "gone.jpg"]
    assert [sorted(record) for record in records].count(["error", "path"]) == 3
    assert records[2]["error"] == "empty, 0 bytes"
    assert run.stderr.splitlines()[-1] == "vitreous: 3 of 4 images could not be read"
    assert "vitreous: gone.jpg: no such file" in run.stderr.splitlines()
    assert re.search(r"^1 image in .* img/s", run.stderr, re.MULTILINE)  # the one that was read
    alone = vitreous("predict", model_file, "gone.jpg")
    assert (alone.returncode, "img/s" in alone.stderr) == (1, False)
    table = vitreous("predict", model_file, "in")
    assert table.returncode == 1
    assert all(f"in/{name}" in table.stdout for name in (*NAMES, "bad.jpg"))


@pytest.mark.skipif(os.name == "nt", reason="file names are text on Windows")
def test_lists_globs_and_names_that_are_not_unicode(command, vitreous, model_file, folder):
    odd = os.fsdecode(b"in/\xff\xfe.png")
    os.rename(os.fsencode(folder / "b.png"), os.fsencode(folder.parent / odd))
    run = command("predict", model_file, "-", "in/**/*.webp", "--format=jsonl", text_in=f"{odd}\nin/{NAMES[1]}\n\n")
    assert run.returncode == 0
    assert re.fullmatch(PACE.format(3), run.stderr)
    assert [json.loads(line)["path"] for line in run.stdout.splitlines()] == [odd, f"in/{NAMES[1]}", f"in/{NAMES[2]}"]
    run = vitreous("predict", model_file, odd, "--format=csv")
    assert next(iter(csv.DictReader(run.stdout.splitlines())))["path"] == r"in/\xff\xfe.png"


def test_a_single_image_is_shown_with_a_bar_for_each_class(vitreous, model_file, folder):
    run = vitreous("predict", model_file.parent, "in/b.png", "--top_k=3")
    lines = run.stdout.rstrip().splitlines()
    assert lines[0] == "in/b.png"
    assert len(lines) == 4
    assert all("%" in line for line in lines[1:])


def test_output_files_are_complete_or_absent(vitreous, model_file, folder, tmp_path):
    run = vitreous("predict", model_file, "in", "-o", "labels.csv")
    assert (run.returncode, run.stdout) == (0, "")
    assert run.stderr.endswith("\n3 predictions in labels.csv\n")
    assert len(list(csv.DictReader((tmp_path / "labels.csv").read_text(encoding="utf-8").splitlines()))) == 3
    (tmp_path / "-").write_text("a user's")
    to_terminal = vitreous("predict", model_file, "in", "-o", "-", "--format", "csv")
    assert to_terminal.stdout == (tmp_path / "labels.csv").read_text(encoding="utf-8")
    assert (tmp_path / "-").read_text() == "a user's"
    run = vitreous("predict", model_file, "in", "-o", "gone/labels.csv")
    assert (run.returncode, run.stderr) == (
        1,
        "vitreous: cannot write 'gone/labels.csv': the folder 'gone' does not exist\n",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["MODEL", "nothing"], "no images in the folder 'nothing': it is empty"),
        (["MODEL", "*.bmp"], "no files match '*.bmp'"),
        (["MODEL", "-"], "the list of paths on standard input is empty"),
        (["gone.safetensors", "x.png"], "no model file 'gone.safetensors'."),
        (["x.png", "x.png"], "no model file 'x.png'."),
    ],
)
def test_no_images_is_an_error(vitreous, model_file, tmp_path, words, said):
    (tmp_path / "nothing").mkdir()
    run = vitreous("predict", *(model_file if word == "MODEL" else word for word in words))
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == f"vitreous: {said}\n"


def test_the_requested_engine_is_used_and_recorded(vitreous, model_file, folder, tmp_path):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install -e '.[dev]'")
    (tmp_path / "m").mkdir()
    file = shutil.copy(model_file, tmp_path / "m")
    said = {}
    for engine in ("torch", "openvino"):
        run = vitreous("predict", file, "in", "--format=jsonl", "--engine", engine, "--precision=float32")
        assert run.returncode == 0, run.stderr
        assert re.search(rf"\n?3 images in .* img/s: {engine}, float32, cpu\n$", run.stderr)
        said[engine] = [json.loads(line) for line in run.stdout.splitlines()]
        assert all((r["engine"], r["precision"], r["device"]) == (engine, "float32", "cpu") for r in said[engine])
    for one, other in zip(*said.values(), strict=True):
        assert one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-4)
    run = vitreous("predict", file, "in", "--engine=openvin")
    assert run.returncode == 2


def test_token_merging_changes_the_result(vitreous, model_file, folder):
    whole, merged, refused = (
        vitreous("predict", model_file, "in/b.png", "--format=csv", f"--merge-tokens={count}") for count in (0, 3, -1)
    )
    assert whole.returncode == merged.returncode == 0
    assert whole.stdout != merged.stdout
    assert refused.returncode == 2


def test_urls_are_rejected_with_the_remedy(vitreous, model_file, folder):
    url = "https://example.org/cat.jpg"
    why = "a URL, and nothing is fetched from the web: download it first and give the file"
    run = vitreous("predict", model_file, url)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == f"vitreous: '{url}': {why}\n"
    run = vitreous("predict", model_file, "-", "--format=csv", text_in=f"{url}\nin/b.png\n")
    assert run.returncode == 1
    assert [row["error"] for row in csv.DictReader(run.stdout.splitlines())] == [why, ""]
    assert f"vitreous: {url}: {why}" in run.stderr


def test_test_time_augmentation_equals_the_library_and_is_recorded(vitreous, model_file, folder, tmp_path):
    run = vitreous("predict", model_file, "in/b.png", "--format=jsonl", "--tta", "--device=cpu", "--top-k=10")
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["augmentation"] == "mirror"
    expected = package.load(model_file, device="cpu", tta=True).predict(tmp_path / "in/b.png", top_k=10)
    assert record["probability"] == pytest.approx(expected.probability, abs=1e-4)
    plain = json.loads(vitreous("predict", model_file, "in/b.png", "--format=jsonl", "--device=cpu").stdout)
    assert "augmentation" not in plain
    assert plain["probability"] != pytest.approx(record["probability"], abs=1e-4)
