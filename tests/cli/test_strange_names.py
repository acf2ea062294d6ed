"""Unusual file and folder names pass through every verb: exact in files, escaped on the terminal."""

import csv
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.cli.main import main
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.listing import plain_name
from vitreous.files.text import csv_cell, visible
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer

pytestmark = pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="only Linux allows all such names")

NAMES = (
    *('quo"te', "it's; $(true) `x`", "new\nline", "tab\tbed\rback", "com,ma", "<script>alert(1)<b>", "[bold]red[b]"),
    *("\x1b[31mred\x1b]0;title\x07", "\u202egnp.exe", "\U0001f33b\U0001f468\u200d\U0001f33e", os.fsdecode(b"\xff\xfe")),
    *("-dash", "--help", "=1+1", "+SUM(A1)", "@cmd|'!A0", "a;=1+1", "$x^2$", "%s{0}%", "\u00fc" * 100, " spaces "),
    *("# no comment", "\x85\u2028\x9b31m"),
)
CLASSES = tuple(sorted(plain_name(name) for name in NAMES))
EACH = 4  # images


@pytest.fixture(scope="module")
def strange(tmp_path_factory) -> Path:
    """Handwritten digits under strange class names, each file named as its class; and a model trained on them."""
    place = tmp_path_factory.mktemp("strange")
    digits = load_digits()
    for n in range(EACH * len(NAMES)):
        name = NAMES[n % len(NAMES)]
        folder = place / "set" / name
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.rint(digits.images[n] * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).resize((16, 16)).save(folder / f"{name}{n}.png")
    return place


@pytest.fixture(scope="module")
def trained(strange) -> str:
    """The output of a training run in the folder `run`."""
    small = [f"--model.{field}" for field in ("width=16", "depth=1", "heads=1", "mlp_dim=16", "image_size=16")]
    words = ["train", str(strange / "set"), "--out", str(strange / "run"), "--epochs=1", "--batch-size=32"]
    words += [*small, "--model.patch_size=8", "--device=cpu", "--precision=float32"]
    with pytest.MonkeyPatch.context() as patched:
        said = io.StringIO()
        patched.setattr(sys, "stdout", said)
        patched.setattr(sys, "stderr", said)
        code = main(words)
    assert code == 0, said.getvalue()
    return said.getvalue()


def tame(text: str) -> str:
    """Assert that a text has no control characters: printable lines, except joiners."""
    raw = {char for char in text if not char.isprintable()} - set("\n\u200c\u200d")
    assert raw == set(), sorted(map(ascii, raw))
    return text


def test_training_prints_and_keeps_every_name(strange, trained):
    lines = tame(trained).splitlines()
    assert all(re.match(r"(\S+ {1,}|epoch|val |test |\S*/run/| {5,10}\S)", line) for line in lines), lines
    report = json.loads((strange / "run" / "report.json").read_text(encoding="utf-8"))
    assert tuple(report["classes"]) == CLASSES
    files = {str(path) for path in (strange / "set").rglob("*.png")}
    named = {mistake["name"] for mistake in report["worst_mistakes"]}
    assert named
    assert {str(strange / "set" / name) for name in named} <= files or named <= files
    recipe = (strange / "run" / "recipe.yaml").read_text(encoding="utf-8")
    assert tame(recipe)


def paths_of(strange: Path) -> list[str]:
    return sorted(str(path) for path in (strange / "set").rglob("*.png"))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_predictions_restore_every_name(vitreous, strange, trained, form):
    """JSON has every name exactly; CSV, for spreadsheets, has it escaped."""
    out = strange / f"out.{form}"
    top_k = f"--top-k={len(CLASSES)}"
    run = vitreous("predict", strange / "run", strange / "set", "--device=cpu", top_k, "-o", out)
    assert run.returncode == 0, run.stderr
    tame(run.stdout + run.stderr)
    tame(out.read_text(encoding="utf-8"))
    with open(out, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file)) if form == "csv" else [json.loads(line) for line in file]
    shown = csv_cell if form == "csv" else str
    assert sorted(row["path"] for row in rows) == sorted(map(shown, paths_of(strange)))
    for row in rows:
        ranks = [""] + [f"_{n}" for n in range(2, len(CLASSES) + 1)]
        top = [row[f"label{rank}"] for rank in ranks] if form == "csv" else [each["label"] for each in row["top"]]
        assert sorted(top) == sorted(map(shown, CLASSES))
    if form == "csv":
        run = vitreous("predict", strange / "run", strange / "set", "--device=cpu", top_k, "--format=csv")
        assert tame(run.stdout) == out.read_text(encoding="utf-8")


def test_tables_and_errors_are_escaped(vitreous, strange, trained):
    broken = strange / "broken" / NAMES[7]
    broken.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (broken / f"{name}.png").write_bytes(b"no image")
    run = vitreous("predict", strange / "run", strange / "set", broken, "--device=cpu", "--engine=torch")
    assert run.returncode == 1
    tame(run.stdout + run.stderr)
    assert run.stderr.count("\n") == len(NAMES) + 2
    for name in NAMES:
        assert visible(f"{broken}/{name}.png") in run.stderr
    one = vitreous("predict", strange / "run", paths_of(strange)[0], "--device=cpu", "--top-k=99")
    assert one.returncode == 0
    assert len(tame(one.stdout).splitlines()) == 1 + len(CLASSES)
    for words in (("predict", strange / "run", broken / "\x1b[31m*.png"), ("train", broken), ("train", "\x1b[1m")):
        run = vitreous(*words)
        assert run.returncode in (1, 2)
        assert tame(run.stderr).count("\n") == 1


def test_evaluation_names_every_class(vitreous, strange, trained, tmp_path):
    words = ("evaluate", strange / "run", strange / "set", "--device=cpu", "--split=all")
    run = vitreous(*words, "--json", tmp_path / "e.json")
    assert run.returncode == 0, run.stderr
    tame(run.stdout + run.stderr)
    assert tuple(json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))["classes"]) == CLASSES
    for name in CLASSES:
        assert f" {visible(name)} "[:40] in run.stdout
    with open(strange / "labels.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        for name in ("com,ma", 'quo"te', "new\nline"):
            rows.writerows([str(path), name] for path in (strange / "set" / name).iterdir())
    other = vitreous("evaluate", strange / "run", strange / "labels.csv", "--device=cpu")
    assert other.returncode == 0, other.stderr
    tame(other.stdout + other.stderr)


def test_embeddings_keep_paths(vitreous, strange, trained, tmp_path):
    run = vitreous("embed", strange / "run", strange / "set", "-o", tmp_path / "e.csv", "--device=cpu")
    assert run.returncode == 0, run.stderr
    tame(run.stdout + run.stderr)
    with open(tmp_path / "e.csv", encoding="utf-8", newline="") as file:
        assert sorted(row["path"] for row in csv.DictReader(file)) == sorted(map(csv_cell, paths_of(strange)))
    run = vitreous("embed", strange / "run", strange / "set", "-o", tmp_path / "e.npz", "--device=cpu")
    names = [os.fsencode(path).decode("utf-8", "backslashreplace") for path in paths_of(strange)]
    assert sorted(np.load(tmp_path / "e.npz")["path"].tolist()) == sorted(names)


def test_probe_and_audit_escape_names(vitreous, strange, trained, tmp_path):
    run = vitreous("probe", strange / "run", strange / "set", "--device=cpu", "--json", tmp_path / "p.json")
    assert run.returncode == 0, run.stderr
    tame(run.stdout + run.stderr)
    json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    shutil.copytree(strange / "set", tmp_path / "set")
    for name in NAMES:
        (tmp_path / "set" / name / f"{name}.png").touch()
    run = vitreous("audit", "set", "--json=a.json", "--html=a.html", "--write-exclude=out.txt", "--show=99", "--fresh")
    assert run.returncode == 0, run.stderr
    tame(run.stdout + run.stderr)
    found = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["findings"]
    empty = {image["name"] for finding in found if finding["kind"] == "empty" for image in finding["pictures"]}
    assert empty == {f"{name}/{name}.png" for name in NAMES}
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert not any(raw in page for raw in ("<script>alert", "\x1b", "\u202e", "\udcff"))
    assert tame((tmp_path / "out.txt").read_text(encoding="utf-8"))
    again = vitreous("audit", "set", "--exclude=out.txt", "--strict")
    assert again.returncode == 0, again.stdout


CLASSES_OF_A_FILE = (
    "\x00nul",
    "\udcffbyte",
    "\x1b]0;t\x07",
    "\u202eevil",
    "=1+1",
    "-2",
    "x" * 10_000_000,
    "</title>",
    "犬",
    "b",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """A model file with classes no file system allows, one of 10 MB, and a dataset with two of its classes."""
    place = tmp_path_factory.mktemp("hostile")
    model = VisionTransformer(
        ViTConfig(image_size=8, patch_size=4, in_channels=1, num_classes=10, width=8, depth=1, heads=1, mlp_dim=8)
    )
    pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    save_model(place / "m.safetensors", model, ModelInfo(CLASSES_OF_A_FILE, pipeline))
    for n, name in enumerate(("犬", "b", "犬", "b", "c")):
        (place / "set" / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 40 * n).save(place / "set" / name / f"{n}.png")
    return place


@pytest.mark.parametrize("words", [(), ("--format=csv",), ("--format=jsonl",), ("--json=-",)], ids=" ".join)
def test_predictions_of_an_untrusted_model_are_escaped(vitreous, hostile, words):
    run = vitreous("predict", hostile / "m.safetensors", hostile / "set", "--top-k=10", "--device=cpu", *words)
    assert run.returncode == 0, run.stderr
    tame(run.stderr)
    tame(run.stdout)
    if words == ():
        assert len(run.stdout) < 50_000
        assert re.search(r"x\.\.\.\(9,999,\d{3} more\)\.\.\.x", run.stdout)
    elif words == ("--format=csv",):
        rows = list(csv.reader(run.stdout.splitlines()))
        assert {cell for row in rows[1:] for cell in row[1:-1:2]} == set(map(csv_cell, CLASSES_OF_A_FILE))
    else:
        rows = [json.loads(line) for line in run.stdout.splitlines()] if words != ("--json=-",) else None
        rows = rows or json.loads(run.stdout)["predictions"]
        assert {each["label"] for row in rows for each in row["top"]} == set(CLASSES_OF_A_FILE)


def test_a_huge_class_name_is_shortened_in_errors(vitreous, hostile):
    run = vitreous("evaluate", hostile / "m.safetensors", hostile / "set", "--device=cpu", "--split=all")
    assert run.returncode == 1
    assert tame(run.stderr).count("\n") == 1
    assert len(run.stderr) < 2500
    assert "1 of the 3 classes in set are unknown to the model: c." in run.stderr


def test_the_title_of_a_page_has_no_markup(vitreous, tmp_path):
    folder = tmp_path / "a<b>\u202e"
    for label in "ab":
        (folder / label).mkdir(parents=True)
        Image.new("L", (8, 8)).save(folder / label / "x.png")
    assert vitreous("audit", folder, "--html=page.html").returncode == 0
    title = re.search("<title>(.*)</title>", (tmp_path / "page.html").read_text(encoding="utf-8"))
    assert title
    assert title[1] == "Audit of a&lt;b&gt;\\u202e"
