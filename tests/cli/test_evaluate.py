"""`vitreous evaluate`: scores equal scikit-learn's, on the right images."""

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, log_loss, precision_recall_fscore_support, top_k_accuracy_score

import vitreous as package
from vitreous.checkpoint.model_file import load_model, save_model
from vitreous.cli.work.evaluating.scoring import open_data
from vitreous.data.config import DataConfig
from vitreous.data.sources.opening import open_source
from vitreous.train.config import RunConfig

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def by_hand(model_file: Path, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels (n,) and calibrated probabilities (n, K), from the files."""
    classifier = package.load(model_file, device="cpu", engine="torch", precision="float32")
    files = sorted(folder.rglob("*.png"))
    scaled = classifier.logits(files).astype(np.float64) / classifier.info.temperature
    odds = np.exp(scaled - scaled.max(1, keepdims=True))
    return np.array([classifier.classes.index(file.parent.name) for file in files]), odds / odds.sum(1, keepdims=True)


def test_scores_of_a_folder_equal_scikit_learns(command, model_file, digits, tmp_path):
    run = command("evaluate", model_file, "digits-folder", "--json", "s.json", "--device=cpu", "--engine=torch")
    assert run.returncode == 0
    assert re.fullmatch(r"60 images in [\d.]+ s, [\d,.]+ img/s: torch, float32, cpu\n", run.stderr)
    assert "digits-folder, all images: 60 images" in run.stdout
    document = json.loads((tmp_path / "s.json").read_text())
    labels, probabilities = by_hand(model_file, digits)
    scores, called = document["scores"], probabilities.argmax(1)
    assert scores["top1"] == pytest.approx(accuracy_score(labels, called))
    assert scores["top5"] == pytest.approx(top_k_accuracy_score(labels, probabilities, k=5, labels=range(10)))
    assert scores["log_loss"] == pytest.approx(log_loss(labels, probabilities, labels=range(10)), rel=1e-4)
    macro = precision_recall_fscore_support(labels, called, average="macro", zero_division=0)[:3]
    assert [scores[f"macro_{name}"] for name in ("precision", "recall", "f1")] == pytest.approx(list(macro))
    assert f"{scores['top1']:.2%}" in run.stdout
    assert document["data"]["pictures"] == sum(row["support"] for row in scores["per_class"]) == 60


def test_classes_are_matched_by_name(vitreous, model_file, digits):
    for name in ("zero", "two", "four", "six", "eight"):
        shutil.rmtree(digits / name)
    run = vitreous("evaluate", model_file, "digits-folder", "--json", "-", "--device=cpu")
    assert run.returncode == 0
    assert run.stderr.startswith("5 of the model's 10 classes are not in the data: zero, two, four, six, eight\n")
    labels, probabilities = by_hand(model_file, digits)
    assert json.loads(run.stdout)["scores"]["top1"] == pytest.approx(accuracy_score(labels, probabilities.argmax(1)))


def test_a_few_images_of_one_class_are_enough(vitreous, model_file, digits, tmp_path):
    for folder in digits.iterdir():
        if folder.name != "three":
            shutil.rmtree(folder)
    for file in sorted((digits / "three").iterdir())[2:]:
        file.unlink()
    run = vitreous("evaluate", model_file, "digits-folder")
    assert run.returncode == 0, run.stderr
    assert "all images: 2 images" in run.stdout


def test_classes_that_the_model_lacks_are_listed(vitreous, model_file, digits):
    (digits / "three").rename(digits / "thre")
    run = vitreous("evaluate", model_file, "digits-folder")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("vitreous: 1 of the 10 classes in digits-folder are unknown to the model: thre.")
    assert run.stderr.endswith("Did you mean 'three'?\n")


@pytest.mark.parametrize("split", ["stratified", "hash"])
def test_the_training_folder_is_scored_on_its_validation_set(vitreous, model_file, digits, tmp_path, split):
    config = DataConfig(source=str(digits), val_fraction=0.3, split=split)
    data = open_source(config)
    model, info = load_model(model_file)
    provenance = {
        "config": asdict(RunConfig(data=config)),
        "data": {"source": config.source, "fingerprint": data.fingerprint},
    }
    if split == "hash":  # as earlier versions wrote it
        del provenance["config"]["data"]["split"]
    save_model(tmp_path / "trained.safetensors", model, replace(info, provenance=provenance))
    held = len(data.splits["val"])
    assert 0 < held < 60
    digits.rename(tmp_path / "moved")  # known by its content, then by its place
    (tmp_path / "digits-folder").symlink_to("moved")
    for place in ("moved", "digits-folder"):
        run = vitreous("evaluate", "trained.safetensors", place)
        assert run.returncode == 0, run.stderr
        assert f"val split: {held} images" in run.stdout
        assert "held out" in run.stderr
        run = vitreous("evaluate", "trained.safetensors", place, "--split", "val", "--json=-")
        found = json.loads(run.stdout)["scores"]["confusion"]
        right = np.bincount([info.classes.index(data.classes[n]) for n in data.splits["val"].labels], minlength=10)
        assert [sum(row) for row in found] == right.tolist()
    run = vitreous("evaluate", "trained.safetensors", "moved", "--split", "all")
    assert "all images: 60 images" in run.stdout
    assert "the model was trained on some of these images" in run.stderr


def test_no_training_image_is_scored_after_the_folder_changed(vitreous, digits, tmp_path):
    small = ("--model.width=16", "--model.depth=1", "--model.heads=2", "--model.mlp_dim=32", "--model.stem=linear")
    small = (*small, "--model.image_size=8", "--model.patch_size=4")
    run = vitreous("train", digits, "--out", "run", "--epochs", "1", "--device", "cpu", *small)
    assert run.returncode == 0, run.stderr
    before = open_source(DataConfig(source=str(digits)))
    held = {path.name for path in before.splits["val"].paths}
    trained = before.splits["train"].paths
    for n, path in enumerate(trained[:24]):  # moved into another class, as a corrected label is
        path.rename(digits / CLASSES[n % 10] / path.name)
    images = load_digits().images
    for n in range(100, 140):
        Image.fromarray((images[n] * 15).astype(np.uint8)).save(digits / CLASSES[n % 10] / f"new {n}.png")
    names = {path.name for path in trained}
    by_rule = {path.name for path in open_source(DataConfig(source=str(digits))).splits["val"].paths}
    assert by_rule & names  # the rule alone would score what was trained on
    _, info = load_model(tmp_path / "run")
    data = open_data(info, str(digits), None, None)
    assert {path.name for path in data.splits["val"].paths} == held
    run = vitreous("evaluate", "run", "digits-folder", "--json=-")
    assert json.loads(run.stdout)["scores"]["n"] == len(held)
    for path in held:  # now it is another folder at the same path
        next(digits.rglob(path)).unlink()
    count = len(list(digits.rglob("*.png")))
    run = vitreous("evaluate", "run", "digits-folder", "--json=-")
    assert json.loads(run.stdout)["scores"]["n"] == count
    assert "digits-folder has none of the images that the model's training held out: taken as other data" in run.stderr
    run = vitreous("calibrate", "run", "digits-folder", "--precision=0.5", "--out=c.safetensors")
    assert "the model was trained on images" not in run.stderr


def test_splits_and_unreadable_files(vitreous, model_file, digits, tmp_path):
    for split in ("train", "val", "test"):
        shutil.copytree(digits, tmp_path / "whole" / split)
    shutil.rmtree(tmp_path / "whole" / "val" / "nine")
    (tmp_path / "whole" / "test" / "one" / "bad.png").write_bytes(b"bad")
    run = vitreous("evaluate", model_file, "whole")
    assert "whole, test split: 60 images" in run.stdout
    assert run.stderr.startswith("1 file cannot be read and is left out (first: whole/test/one/bad.png: not an image)")
    shutil.rmtree(tmp_path / "whole" / "test")
    assert "whole, val split:" in vitreous("evaluate", model_file, "whole").stdout
    run = vitreous("evaluate", model_file, "whole", "--split", "test")
    assert (run.returncode, run.stderr) == (1, "vitreous: whole has no test split: it has train, val\n")


def test_colour_images_are_converted_for_a_grey_model(vitreous, model_file, photographs, tmp_path):
    for n, name in enumerate(("zero", "one")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(photographs[n]).save(tmp_path / "photos" / name / "x.jpg")
    assert vitreous("evaluate", model_file, "photos").returncode == 0


def test_token_merging_is_compared_with_the_unmerged_model(vitreous, model_file, digits, tmp_path):
    plain = vitreous("evaluate", model_file, "digits-folder", "--json", "-", "--device=cpu")
    assert json.loads(plain.stdout)["computed_by"] == {
        "engine": "torch",
        "precision": "float32",
        "device": "cpu",
        "merge_tokens": 0,
        "merging": None,
    }
    arguments = ("--merge-tokens", 3, "--engine=torch", "--json", "m.json", "--device=cpu")  # which is not timed
    run = vitreous("evaluate", model_file, "digits-folder", *arguments)
    assert run.returncode == 0, run.stderr
    document = json.loads((tmp_path / "m.json").read_text())
    merging = document["computed_by"]["merging"]
    assert merging["top1"] == document["scores"]["top1"]
    assert merging["top1_without"] == json.loads(plain.stdout)["scores"]["top1"]
    loss = 100 * (merging["top1"] - merging["top1_without"])
    assert re.search(rf"difference, points\s+{re.escape(f'{loss:+.2f}')}", run.stdout)
    assert "3 tokens merged in each block" in run.stdout
    labels, _ = by_hand(model_file, digits)
    merged = package.load(model_file, device="cpu", engine="torch", precision="float32", merge_tokens=3)
    called = merged.logits(sorted(digits.rglob("*.png"))).argmax(1)
    assert merging["top1"] == pytest.approx(accuracy_score(labels, called))


def test_the_gain_of_test_time_augmentation_is_measured_on_the_users_images(vitreous, model_file, digits, tmp_path):
    run = vitreous("evaluate", model_file, "digits-folder", "--tta", "--json", "t.json", "--device=cpu")
    assert run.returncode == 0, run.stderr
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["computed_by"]["augmentation"] == "mirror"
    gain = document["computed_by"]["tta"]
    files = sorted(digits.rglob("*.png"))
    labels, plain = by_hand(model_file, digits)
    augmented = package.load(model_file, device="cpu", engine="torch", tta=True).logits(files)
    right, right_without = (logits.argmax(1) == np.asarray(labels) for logits in (augmented, np.asarray(plain)))
    assert gain["top1"] == document["scores"]["top1"] == pytest.approx(right.mean())
    assert gain["top1_without"] == pytest.approx(right_without.mean())
    assert gain["put_right"] == (right & ~right_without).sum() > 0
    assert gain["put_wrong"] == (~right & right_without).sum()
    assert gain["log_loss"] == pytest.approx(document["calibration"]["log_loss_after"], rel=1e-4)
    without = vitreous("evaluate", model_file, "digits-folder", "--json", "-", "--device=cpu")
    before = json.loads(without.stdout)
    assert gain["top1_without"] == before["scores"]["top1"]
    assert gain["log_loss_without"] == pytest.approx(before["calibration"]["log_loss_after"], rel=1e-4)
    assert "augmentation" not in before["computed_by"]
    points = 100 * (gain["top1"] - gain["top1_without"])
    assert re.search(rf"gain\s+{re.escape(f'{points:+.2f}')} points\s+[+-]0\.\d{{4}}", run.stdout)
    assert re.search(rf"images corrected, made wrong\s+{gain['put_right']}, {gain['put_wrong']}\s", run.stdout)


def test_a_table_of_test_images_alone_is_scored_and_what_is_ignored_is_said(vitreous, model_file, digits, tmp_path):
    files = sorted(digits.rglob("*.png"))
    rows = "".join(f"{file},{file.parent.name},a digit,test\n" for file in files[:30])
    (tmp_path / "test.csv").write_text("path,label,class,split\n" + rows)
    run = vitreous("evaluate", model_file, "test.csv", "--json", "-", "--device=cpu")
    assert run.returncode == 0, run.stderr
    assert "label is read from column 'label', not from 'class', which differs\n" in run.stderr
    document = json.loads(run.stdout)
    assert (document["data"]["split"], document["data"]["pictures"]) == ("test", 30)
    labels, probabilities = by_hand(model_file, digits)
    assert document["scores"]["top1"] == pytest.approx(accuracy_score(labels[:30], probabilities[:30].argmax(1)))


def test_test_images_that_are_also_in_train_are_said(vitreous, model_file, digits, tmp_path):
    for split in ("train", "test"):
        shutil.copytree(digits, tmp_path / "whole" / split)
    run = vitreous("evaluate", model_file, "whole")
    assert run.returncode == 0, run.stderr
    assert "60 test images also in train: test/" in run.stderr
