"""`vitreous audit`: output, exit code, unusual names, and label errors found with a model."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from vitreous.cli.verbs.train import configure
from vitreous.data.sources.opening import open_source

ODD = ['quo"te', "new\nline", "<b>bold", "\u202egnp", os.fsdecode(b"\xff"), "\U0001f33b", "\x1b[31mred"]


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def photos_with_faults(photos: Path, tmp_path: Path) -> Path:
    """Four photographs cut to 48 in two classes, and in the first: an empty file, a copy, odd names."""
    tiles = []
    for path in sorted(photos.iterdir()):
        image = Image.open(path).convert("RGB")
        side = image.height // 3
        tiles += [
            image.crop((x * side, y * side, x * side + side, y * side + side)) for x in range(4) for y in range(3)
        ]
    for n, tile in enumerate(tiles):
        folder = tmp_path / "set" / ("train" if n % 4 else "val") / ("odd", "even")[n % 3 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        tile.resize((96, 96)).save(folder / f"{n}.png")
    odd = tmp_path / "set/train/odd"
    (odd / "empty.png").write_bytes(b"")
    for name in ODD:
        (odd / f"{name}.png").write_bytes(b"")
    kept = next(iter(sorted((tmp_path / "set/val/even").iterdir())))
    shutil.copy(kept, tmp_path / "set/train/even/copy.png")
    return tmp_path / "set"


def test_table_page_json_and_exclusion_list(command, vitreous, photos_with_faults, tmp_path):
    before = sorted((path, path.stat().st_mtime_ns) for path in photos_with_faults.rglob("*"))
    run = command("audit", "set", "--html", "a.html", "--json", "a.json", "--write-exclude", "out.txt")
    assert run.returncode == 0, run.stderr
    assert sorted((path, path.stat().st_mtime_ns) for path in photos_with_faults.rglob("*")) == before
    row = next(line for line in run.stdout.splitlines() if "same image in two splits" in line)
    assert "train/even/copy.png = val/even/" in row
    assert "empty file" in run.stdout
    assert "9 errors, " in run.stderr
    assert run.stderr.splitlines()[-3:] == [
        f"out.txt: {len(ODD) + 2} images to leave out",
        "train without them:",
        "  vitreous train set --exclude out.txt",
    ]
    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert document["counts"]["error"] == len(ODD) + 2
    empty = {p["name"] for f in document["findings"] if f["kind"] == "empty" for p in f["pictures"]}
    assert empty == {f"train/odd/{name}.png" for name in [*ODD, "empty"]}
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    for raw in ("<b>bold", "\u202e", "\x1b", "new\nline"):
        assert raw not in page
        assert raw not in run.stdout.replace("\n", " ") or raw == "<b>bold"
    from vitreous.data.config import DataConfig

    data = open_source(DataConfig("set", exclude="out.txt"))
    assert data.unreadable == []
    assert not any("in train" in note for note in data.notes)
    again = vitreous("audit", "set", "--exclude", "out.txt", "--strict")
    assert again.returncode == 0, again.stdout
    assert "0 errors" in again.stderr
    assert "from the cache" in again.stderr
    assert vitreous("audit", "set", "--strict").returncode == 1


@pytest.mark.skipif(os.name == "nt", reason="the quotes are those of a POSIX shell")
@pytest.mark.parametrize("name", ["it's $HOME", "new\nline"])
def test_suggested_commands_run_as_pasted(vitreous, photos_with_faults, tmp_path, name):
    photos_with_faults.rename(tmp_path / name)
    (tmp_path / "exclude.txt").write_text("train/odd/empty.png\n")
    run = vitreous("audit", name, "--exclude", "exclude.txt")
    title, first, then = run.stderr.splitlines()[-3:]
    assert title == f"{len(ODD) + 1} images to leave out. Write the list, and train without them:"
    assert first.startswith("  vitreous audit ")
    shell = f'PATH="{Path(sys.executable).parent}:$PATH"; {first} >&2; set -- {then}; printf "%s\\0" "$@"'
    pasted = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, check=True)
    words = [os.fsdecode(word) for word in pasted.stdout.split(b"\0")[:-1]]
    assert words == ["vitreous", "train", name, "--exclude", "exclude-2.txt"]
    config, _, _ = configure(words[2:])
    data = open_source(config.data)
    assert data.unreadable == []
    assert not any("in train" in note for note in data.notes)
    assert "train/odd/empty.png" not in {one for split in data.splits.values() for one in split.names}
    told = pasted.stderr.decode("utf-8", "replace").splitlines()
    assert told[-3] == f"exclude-2.txt: {len(ODD) + 1} images to leave out besides those of exclude.txt"
    assert told[-1] == then


def test_no_command_is_suggested_if_nothing_is_left_out(vitreous, digits, tmp_path):
    assert vitreous("audit", digits).stderr.splitlines()[-1].startswith("0 errors")
    assert (
        vitreous("audit", digits, "--write-exclude", "x.txt").stderr.splitlines()[-1] == "x.txt: nothing to leave out"
    )
    assert "to leave out" not in vitreous("audit", digits, "--write-exclude", "/dev/null").stderr


def test_control_characters_in_names_are_escaped(vitreous, photos_with_faults):
    run = vitreous("audit", "set", "--show", "20")
    for shown in (r"new\nline", r"\u202egnp", r"\xff", "\U0001f33b", r"\x1b[31mred", "<b>bold", 'quo"te'):
        assert f"train/odd/{shown}.png" in run.stdout
    assert "\x1b" not in run.stdout


def test_json_is_alone_on_standard_output(vitreous, photos_with_faults):
    run = vitreous("audit", "set", "--json=-")
    assert json.loads(run.stdout)["data"] == "set"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("nowhere/at/all",), 1, "folder not found: nowhere/at/all"),
        (("digitz",), 2, "Did you mean 'digits'?"),
        ((), 2, "DATA is missing"),
        (("set", "--htlm", "x"), 2, "Did you mean '--html'?"),
        (("set", "--html", "no/such/folder/a.html"), 1, "cannot write 'no/such/folder/a.html'"),
        (("set", "--model", "nothing.safetensors"), 1, "nothing.safetensors"),
        (("set", "--workers", "0"), 2, "--workers is '0', it must be a whole number of at least 1"),
        (("set", "--device=cpu"), 2, "--device is for a model: give --model too, or remove it"),
        (("set", "--batch-size", "8"), 2, "--batch-size is for a model: give --model too, or remove it"),
    ],
)
def test_usage_errors_are_one_line(vitreous, photos_with_faults, words, code, message):
    run = vitreous("audit", *words)
    assert run.returncode == code
    assert message in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


def test_features_of_a_model_reveal_changed_labels(vitreous, model_file, tmp_path):
    """The features of a ViT with random weights: poor, and not trained on any label."""
    pytest.importorskip("cleanlab")
    data = load_digits()
    changed = {f"{(data.target[n] + 3) % 10}/{n:03}.png" for n in range(0, 300, 20)}
    for n in range(300):
        label = (data.target[n] + 3) % 10 if n % 20 == 0 else data.target[n]
        (tmp_path / "d" / str(label)).mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((data.images[n] * 255 / 16).astype(np.uint8)).resize((16, 16))
        image.save(tmp_path / "d" / str(label) / f"{n:03}.png")
    run = vitreous("audit", "d", "--model", model_file, "--json=a.json", "--write-exclude=out.txt", "--device=cpu")
    assert run.returncode == 0, run.stderr
    assert "label errors: 300 are checked by logistic regression on its frozen features, 5-fold" in run.stderr
    assert "memorised" not in run.stderr
    found = [f for f in json.loads((tmp_path / "a.json").read_text())["findings"] if f["kind"] == "suspect"]
    assert {f["title"] for f in found} == {"label that looks wrong"}
    names = [f["pictures"][0]["name"] for f in found]
    assert len(changed & set(names)) >= 8  # of 15
    share = re.search(r"it agrees with (\d+)\.\d % of the labels", run.stderr)
    assert share
    assert 30 < int(share[1]) < 80  # so little that a reader is warned
    assert "so few that most of the labels it suspects are probably right" in run.stderr
    scores = [f["score"] for f in found]
    assert scores == sorted(scores, reverse=True)
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert all(f"# {name}" in lines and name not in lines for name in names)


@pytest.mark.parametrize("split", ["stratified", "hash"])
def test_held_out_images_are_checked_with_the_models_own_probabilities(vitreous, digits, tmp_path, split):
    pytest.importorskip("cleanlab")
    import torch

    from vitreous.checkpoint.model_file import load_model, save_model
    from vitreous.data.config import DataConfig

    data = open_source(DataConfig(str(digits), val_fraction=0.4, split=split))
    torch.manual_seed(0)
    model, info = load_model(_model(tmp_path))
    provenance = {
        "data": {"source": str(digits), "fingerprint": data.fingerprint},
        "config": {"data": {"source": str(digits), "val_fraction": 0.4, "split": split}},
    }
    if split == "hash":  # as earlier versions wrote it
        del provenance["config"]["data"]["split"]
    save_model(
        tmp_path / "trained.safetensors", model, dataclasses.replace(info, classes=data.classes, provenance=provenance)
    )
    run = vitreous("audit", digits, "--model", "trained.safetensors", "--device=cpu")
    assert run.returncode == 0, run.stderr
    sizes = list(data.counts().values())
    held = sum(sizes[label] >= 5 for label in data.splits["val"].labels)
    assert f"was trained on these images; the {held} held-out images are checked with its own" in run.stderr
    assert "are checked by logistic regression" in run.stderr
    assert "hide memorised errors" in run.stderr


def _model(folder: Path) -> Path:
    """A small model of ten classes with random weights."""
    from vitreous.checkpoint.model_file import ModelInfo, save_model
    from vitreous.data.config import PreprocessConfig
    from vitreous.data.preprocess import EvalPipeline
    from vitreous.model.config import ViTConfig
    from vitreous.model.vit import VisionTransformer

    config = ViTConfig(
        image_size=8, patch_size=4, in_channels=1, num_classes=10, width=16, depth=1, heads=2, mlp_dim=32
    )
    pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    save_model(folder / "m.safetensors", VisionTransformer(config), ModelInfo(tuple("0123456789"), pipeline))
    return folder / "m.safetensors"


@pytest.mark.parametrize("form", ["folder", "manifest"])
def test_images_without_any_label_are_audited_and_pretraining_leaves_out_what_is_listed(vitreous, tmp_path, form):
    (tmp_path / "flat").mkdir()
    names = [f"{n}.png" for n in range(12)]
    draws = np.random.default_rng(0)
    for name in names:
        pixels = draws.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "flat" / name)
    shutil.copy(tmp_path / "flat/0.png", tmp_path / "flat/copy.png")
    Image.new("RGB", (64, 64), (9, 9, 9)).save(tmp_path / "flat/blank.png")
    (tmp_path / "flat/broken.png").write_bytes(b"no image")
    data, prefix = "flat", ""
    if form == "manifest":
        data, prefix = "images.csv", "flat/"
        rows = "".join(f"flat/{name}\n" for name in sorted(os.listdir(tmp_path / "flat")))
        (tmp_path / data).write_text("path\n" + rows)
    run = vitreous("audit", data, "--json", "a.json", "--write-exclude", "out.txt")
    assert run.returncode == 0, run.stderr
    assert "15 images without a label: files and copies checked" in run.stderr
    assert f"vitreous pretrain {data} --exclude out.txt" in run.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    by_kind = {one["kind"]: [each["name"] for each in one["pictures"]] for one in found["findings"]}
    assert by_kind.pop("listing") == []
    assert {kind: [name.removeprefix(prefix) for name in names] for kind, names in by_kind.items()} == {
        "undecodable": ["broken.png"],
        "copies": ["0.png", "copy.png"],
        "blank": ["blank.png"],
    }
    listed = {line for line in (tmp_path / "out.txt").read_text().splitlines() if line and not line.startswith("#")}
    assert listed == {f"{prefix}broken.png", f"{prefix}copy.png"}
    options = ["--steps=1", "--model.image_size=8", "--model.patch_size=4", "--model.width=16", "--model.heads=2"]
    run = vitreous("pretrain", data, *options, "--mae.mask=0.5", "--data.exclude=out.txt", "--out=run")
    assert run.returncode == 0, run.stderr
    assert "2 images excluded by out.txt" in run.stdout + run.stderr
    assert sum(json.loads((tmp_path / "run/report.json").read_text())["data"]["images"].values()) == 13
    assert vitreous("audit", data, "--exclude", "out.txt", "--json", "b.json").returncode == 0
    assert json.loads((tmp_path / "b.json").read_text())["counts"]["error"] == 0


def test_suspects_need_labels(vitreous, tmp_path, model_file):
    (tmp_path / "flat").mkdir()
    Image.new("L", (16, 16)).save(tmp_path / "flat/a.png")
    pytest.importorskip("cleanlab")
    run = vitreous("audit", "flat", "--model", model_file)
    assert run.returncode == 1
    assert "label errors need images with a label, and flat has none: omit --model" in run.stderr


def test_class_folders_that_are_splits_alone_stay_an_error(vitreous, tmp_path):
    for name in ("val", "test"):
        (tmp_path / "set" / name).mkdir(parents=True)
        Image.new("L", (16, 16)).save(tmp_path / "set" / name / "a.png")
    run = vitreous("audit", "set")
    assert run.returncode == 1
    assert "no folder train" in run.stderr
