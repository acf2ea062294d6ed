"""`vitreous calibrate`: what it stores is what the statistics say, predictions honour it, and errors change nothing."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from scipy.stats import binom
from sklearn.datasets import load_digits

import vitreous as package
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.cli.main import main
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import DataError, UsageError
from vitreous.evaluate.trust.calibration import choose_temperature
from vitreous.evaluate.trust.conformal import fit_lac, fit_raps
from vitreous.evaluate.trust.thresholds import Goals, fit_thresholds

SMALL = {"width": 24, "depth": 1, "heads": 2, "mlp_dim": 48}
OPTIONS = {"model": SMALL, "epochs": 30, "batch_size": 64, "device": "cpu", "precision": "float32", "seed": 3}


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A small run on the first 600 handwritten digits, of which some remain wrong."""
    folder = tmp_path_factory.mktemp("calibrate")
    write_digits(folder / "train", range(600))
    result = package.train(folder / "train", quiet=True, out=folder / "run", recipe="digits", **OPTIONS)
    write_digits(folder / "new", range(600, 1200))
    write_digits(folder / "newer", range(1200, 1797))
    return result.folder


def write_digits(folder: Path, numbers: range) -> None:
    """Write handwritten digits as PNG files, a folder per class."""
    data = load_digits()
    for n in numbers:
        (folder / str(data.target[n])).mkdir(parents=True, exist_ok=True)
        Image.fromarray((data.images[n] * 15).astype(np.uint8)).save(folder / str(data.target[n]) / f"{n:04}.png")


@pytest.fixture
def place(trained, tmp_path) -> Path:
    """A folder with the model and links to the images."""
    shutil.copy(trained / "model.safetensors", tmp_path / "m.safetensors")
    for name in ("train", "new", "newer"):
        (tmp_path / name).symlink_to(trained.parent / name)
    return tmp_path


def logits_of(model: Path, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of the images of a folder, by the library."""
    classifier = package.load(model, device="cpu", engine="torch")
    files = sorted(folder.rglob("*.png"), key=lambda file: (file.parent.name, file.name))
    labels = torch.tensor([classifier.classes.index(file.parent.name) for file in files])
    return torch.from_numpy(classifier.logits(files)), labels


def test_thresholds_are_stored_in_place_and_nothing_else_changes(vitreous, place):
    file = place / "m.safetensors"
    _, before = load_model(file)
    weights = load_file(file)
    logits, labels = logits_of(file, place / "new")
    accuracy = float((logits.argmax(1) == labels).double().mean())
    assert 0.7 < accuracy < 0.97, "the model must be wrong at times"
    run = vitreous("calibrate", "m.safetensors", "new", "--precision", 0.97, "--coverage", 0.9, "--device=cpu")
    assert run.returncode == 0, run.stderr
    assert run.stderr.endswith("wrote m.safetensors\n")
    _, after = load_model(file)
    assert after.temperature == pytest.approx(choose_temperature(logits, labels), rel=1e-4)
    expected = fit_lac(torch.softmax(logits.double() / after.temperature, 1), labels, 0.9, include_top=True)
    assert after.conformal.thresholds == pytest.approx(expected.thresholds, abs=1e-4)
    assert after.abstention.required_precision == 0.97
    assert 0 < after.abstention.coverage < 1
    record = after.provenance["calibration"]
    assert (record["data"], record["split"], record["images"]) == ("new", "all", 600)
    kept = {name: value for name, value in after.provenance.items() if name != "calibration"}
    assert (kept, after.classes, after.scores, after.pipeline) == (
        before.provenance,
        before.classes,
        before.scores,
        before.pipeline,
    )
    again = load_file(file)
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[name], weights[name]) for name in weights)
    for text in ("new, all: 600 images", "log loss", "ECE", "AURC", "97.00% precision at 95% confidence", "90.00%"):
        assert text in run.stdout


def test_the_numbers_in_json_and_the_table_agree(vitreous, place):
    words = ("calibrate", "m.safetensors", "new", "--coverage=0.8", "--method=raps", "--class-conditional")
    run = vitreous(*words, "--device=cpu", "--json=c.json", "--out=o.safetensors")
    assert run.returncode == 0, run.stderr
    document = json.loads((place / "c.json").read_text())
    assert document["abstention"] is None
    sets = document["conformal"]
    logits, labels = logits_of(place / "m.safetensors", place / "new")
    probabilities = torch.softmax(logits.double() / document["temperature"], 1)
    expected = fit_raps(probabilities, labels, 0.8, class_conditional=True, include_top=True)
    assert (sets["method"], sets["penalty"], sets["free_ranks"]) == ("raps", expected.penalty, expected.free_ranks)
    assert sets["thresholds"] == pytest.approx(expected.thresholds, abs=1e-4)
    assert f"{document['sets']['coverage']:.2%}, {document['sets']['mean_size']:.2f}" in run.stdout
    assert document["images"] == 600
    assert load_model(place / "m.safetensors")[1].conformal is None
    assert load_model(place / "o.safetensors")[1].conformal.to_dict() == sets


def test_predictions_say_what_is_unsure_and_give_sets(vitreous, place):
    assert vitreous("calibrate", "m.safetensors", "new", "--precision=0.97", "--coverage=0.9").returncode == 0
    _, info = load_model(place / "m.safetensors")
    logits, _ = logits_of(place / "m.safetensors", place / "newer")
    scaled = logits.double() / info.temperature
    unsure, sets = ~info.abstention.accepts(scaled), info.conformal.sets(torch.softmax(scaled, 1))
    assert 0 < unsure.mean() < 1
    run = vitreous("predict", "m.safetensors", "newer", "--format=jsonl", "--device=cpu", "--engine=torch")
    records = {record["path"]: record for record in map(json.loads, run.stdout.splitlines())}
    files = sorted((place / "newer").rglob("*.png"), key=lambda file: (file.parent.name, file.name))
    found = [records[f"newer/{file.parent.name}/{file.name}"] for file in files]
    assert [record["unsure"] for record in found] == unsure.tolist()
    assert [set(record["set"]) for record in found] == [{info.classes[k] for k in np.flatnonzero(row)} for row in sets]
    assert all(record["set"][0] == record["label"] and record["set_coverage"] == 0.9 for record in found)
    assert f"{unsure.sum():,} of 597 predictions are unsure" in run.stderr
    rows = list(csv.DictReader(vitreous("predict", "m.safetensors", "newer", "--format=csv").stdout.splitlines()))
    assert [records[row["path"]]["unsure"] for row in rows] == [row["unsure"] == "true" for row in rows]
    assert [records[row["path"]]["set"] for row in rows] == [json.loads(row["set"]) for row in rows]
    hesitant = next(record for record in found if record["unsure"])
    shown = f"unsure ({hesitant['label']} {hesitant['probability']:.2f})"
    assert shown in vitreous("predict", "m.safetensors", "newer").stdout
    one = vitreous("predict", "m.safetensors", hesitant["path"]).stdout
    assert shown in one
    assert f"set, 90 % coverage: {', '.join(hesitant['set'])}" in one
    for engine in ("openvino", "onnxruntime"):
        run = vitreous("predict", "m.safetensors", "newer", "--format=jsonl", "--device=cpu", f"--engine={engine}")
        if "pip install" in run.stderr:
            continue
        same = [
            record["unsure"] == records[record["path"]]["unsure"] for record in map(json.loads, run.stdout.splitlines())
        ]
        assert np.mean(same) > 0.995


def test_thresholds_can_be_ignored(vitreous, place):
    before = vitreous("predict", "m.safetensors", "newer", "--format=csv", "--device=cpu").stdout.splitlines()[0]
    vitreous("calibrate", "m.safetensors", "new", "--precision=0.97", "--coverage=0.9")
    plain = vitreous("predict", "m.safetensors", "newer", "--format=csv", "--ignore-thresholds", "--device=cpu")
    assert plain.stdout.splitlines()[0] == before
    document = json.loads(vitreous("evaluate", "m.safetensors", "newer", "--ignore-thresholds", "--json=-").stdout)
    assert document["thresholds"] == {}


def test_evaluate_measures_the_thresholds_on_new_images(vitreous, place):
    vitreous("calibrate", "m.safetensors", "new", "--precision=0.97", "--coverage=0.9", "--device=cpu")
    _, info = load_model(place / "m.safetensors")
    run = vitreous("evaluate", "m.safetensors", "newer", "--device=cpu", "--engine=torch", "--json=e.json")
    assert "fairer test" not in run.stderr
    assert "fairer test" in vitreous("evaluate", "m.safetensors", "new", "--device=cpu").stderr
    measured = json.loads((place / "e.json").read_text())["thresholds"]
    logits, labels = logits_of(place / "m.safetensors", place / "newer")
    scaled = logits.double() / info.temperature
    accepted = info.abstention.accepts(scaled)
    sets = info.conformal.sets(torch.softmax(scaled, 1))
    right = (scaled.argmax(1) == labels).numpy()
    assert measured["abstention"]["share"] == pytest.approx(accepted.mean())
    assert measured["abstention"]["precision"] == pytest.approx(right[accepted].mean())
    assert right[accepted].mean() > right.mean()
    assert measured["conformal"]["coverage"] == pytest.approx(sets[np.arange(len(labels)), labels].mean())
    assert measured["conformal"]["mean_size"] == pytest.approx(sets.sum(1).mean())
    for value in (f"{accepted.mean():.2%}", f"{right[accepted].mean():.2%}", f"{sets.sum(1).mean():.2f}"):
        assert value in run.stdout


def test_without_goals_only_the_temperature_is_fitted_and_old_thresholds_go(vitreous, place):
    vitreous("calibrate", "m.safetensors", "new", "--precision=0.97", "--coverage=0.9")
    run = vitreous("calibrate", "m.safetensors", "newer", "--device=cpu")
    assert run.returncode == 0, run.stderr
    _, info = load_model(place / "m.safetensors")
    assert (info.abstention, info.conformal) == (None, None)
    assert info.temperature == pytest.approx(
        choose_temperature(*logits_of(place / "m.safetensors", place / "newer")), rel=1e-4
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("new", "--precision=0.9999"), 1, "600 images are too few|480 images are too few"),
        (("few", "--coverage=0.99"), 1, "too few for a coverage of 0.99"),
        (("train", "--split=train"), 1, "the model was trained on images of train, train"),
        (("train", "--split=all"), 1, "the model was trained on images of train, all"),
        (("new", "--precision=1.5"), 2, "--precision is 1.5, it must be above 0 and below 1"),
        (("new", "--precision=nan"), 2, "--precision is 'nan', it must be a number"),
        (("new", "--coverage=0"), 2, "--coverage is 0, it must be above 0 and below 1"),
        (("new", "--coverage=many"), 2, "--coverage is 'many', it must be a number"),
        (("new", "--method=raps"), 2, "--method describes sets of classes: give --coverage too"),
        (("new", "--class-conditional"), 2, "--class-conditional describes sets"),
        (("new", "--coverage=0.9", "--method=lca"), 2, "--method is 'lca', it must be .*lac"),
        (("new", "--out=m.safetensors"), 2, "is an input of this command"),
        (("new", "--out=m.npz"), 2, "must end in .safetensors"),
        (("nowhere",), 2, "neither a folder nor a known dataset"),
    ],
    ids=str,
)
def test_errors_are_one_line_and_leave_the_file_as_it_was(vitreous, place, words, code, said):
    for n in (600, 601):
        write_digits(place / "few", range(n, n + 1))
    before = (place / "m.safetensors").read_bytes()
    run = vitreous("calibrate", "m.safetensors", *words)
    assert (run.returncode, run.stdout) == (code, "")
    lines = [line for line in run.stderr.splitlines() if line.startswith("vitreous: ")]
    assert len(lines) == 1
    assert re.search(said, lines[0])
    assert (place / "m.safetensors").read_bytes() == before
    assert {path.name for path in place.iterdir()} == {"m.safetensors", "train", "new", "newer", "few"}


def test_an_unreachable_precision_names_the_best(vitreous, place):
    for number, folder in enumerate(sorted((place / "new").resolve().iterdir())):  # every label is wrong
        shutil.copytree(folder, place / "shifted" / str((number + 1) % 10))
    run = vitreous("calibrate", "m.safetensors", "shifted", "--precision=0.9")
    assert run.returncode == 1
    assert re.search(
        r"no threshold is shown to reach .* 90\.00% .*: the best reaches [\d.]+% on [\d.]+% .*", run.stderr
    )


def test_the_training_folder_gives_its_validation_images(vitreous, trained, place):
    run = vitreous("calibrate", "m.safetensors", "train", "--json=-")
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert document["data"]["split"] == "val"
    assert 0 < document["images"] < 200
    assert "held out" in run.stderr


def test_a_model_of_another_family_needs_a_file_to_write(vitreous, place):
    vitreous("calibrate", "m.safetensors", "new", "--precision=0.97", "--device=cpu")
    run = vitreous("convert", "m.safetensors", "other", "--to=torch")
    if run.returncode == 0:
        assert "no place for the thresholds" in run.stderr
    _, info = load_model(place / "m.safetensors")
    pipeline = EvalPipeline((32, 32), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3))
    plain = package.create("Ti/16", num_classes=10, image_size=32)
    save_model(place / "ti.safetensors", plain, ModelInfo(info.classes, pipeline))
    assert vitreous("convert", "ti.safetensors", "ti", "--to=timm").returncode == 0
    before = (place / "ti" / "model.safetensors").read_bytes()
    run = vitreous("calibrate", "ti", "new", "--coverage=0.9")
    assert (run.returncode, run.stderr.splitlines()[-1]) == (
        2,
        "vitreous: 'ti' is of another family and is not changed: give --out a .safetensors file to write",
    )
    run = vitreous("calibrate", "ti", "new", "--coverage=0.9", "--out=own.safetensors")
    assert run.returncode == 0, run.stderr
    assert (place / "ti" / "model.safetensors").read_bytes() == before
    assert load_model(place / "own.safetensors")[1].conformal.coverage == 0.9


def test_a_copy_keeps_the_thresholds_and_a_changed_model_does_not(vitreous, place):
    vitreous("calibrate", "m.safetensors", "new", "--precision=0.97", "--coverage=0.9", "--device=cpu")
    _, info = load_model(place / "m.safetensors")
    run = vitreous("convert", "m.safetensors", "copy.safetensors", "--to=vitreous")
    assert run.returncode == 0, run.stderr
    _, copy = load_model(place / "copy.safetensors")
    assert (copy.abstention, copy.conformal) == (info.abstention, info.conformal)
    run = vitreous("convert", "m.safetensors", "large.safetensors", "--to=vitreous", "--image-size=32")
    assert "thresholds of `vitreous calibrate` are left out" in run.stderr
    assert load_model(place / "large.safetensors")[1].abstention is None
    run = vitreous("predict", "m.safetensors", "newer/1", "--image-size=32", "--format=jsonl")
    assert "unsure" not in json.loads(run.stdout.splitlines()[0])
    assert "are left out" in run.stderr
    tuned = package.finetune(
        place / "new", "m.safetensors", quiet=True, probe=False, out=place / "tuned", epochs=1, device="cpu"
    )
    _, later = load_model(tuned.folder)
    assert (later.abstention, later.conformal) == (None, None)


def test_python_gives_the_same_as_the_command(vitreous, place):
    result = package.calibrate("m.safetensors", "new", precision=0.97, out="p.safetensors", quiet=True, device="cpu")
    assert main(["calibrate", "m.safetensors", "new", "--precision=0.97", "--device=cpu"]) == 0
    _, by_function = load_model(result.model)
    _, by_command = load_model(place / "m.safetensors")
    assert by_function.abstention == by_command.abstention == result.fit.abstention
    assert "temperature" in result._repr_html_()
    with pytest.raises(UsageError, match="exists already"):
        package.calibrate("m.safetensors", "new", out="p.safetensors", quiet=True)
    package.calibrate("m.safetensors", "new", out="p.safetensors", overwrite=True, quiet=True)
    with pytest.raises(DataError, match="too few"):
        package.calibrate("m.safetensors", "new", precision=0.9999, quiet=True)


def test_the_promises_of_a_trained_model_hold_on_resplits(trained):
    folder, model = trained.parent, trained / "model.safetensors"
    parts = [logits_of(model, folder / name) for name in ("new", "newer")]
    logits, labels = (torch.cat(each) for each in zip(*parts, strict=True))
    broken, precisions, coverages = 0, [], []
    for seed in range(20):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
        fit = fit_thresholds(logits[order[:600]], labels[order[:600]], Goals(0.95, 0.9))
        new, truth = logits[order[600:]].double() / fit.temperature, labels[order[600:]]
        accepted = fit.abstention.accepts(new)
        right = (new.argmax(1) == truth).numpy()[accepted]
        # Evidence at 5 % against a promise of 95 % confidence: at most one in ten.
        broken += binom.cdf(right.sum(), len(right), 0.95) < 0.05
        precisions.append(right.mean())
        coverages.append(fit.conformal.sets(torch.softmax(new, 1))[np.arange(len(truth)), truth].mean())
    assert broken <= binom.ppf(0.999, 20, 0.1)
    assert np.mean(precisions) > 0.95
    assert np.mean(coverages) > 0.9 - np.sqrt(0.9 * 0.1 * (1 / 600 + 1 / 597))


def test_a_read_only_model_is_refused_before_any_work(vitreous, place):
    (place / "m.safetensors").chmod(0o444)
    run = vitreous("calibrate", "m.safetensors", "nowhere")
    assert (run.returncode, run.stdout) == (1, "")
    assert "the file is read-only; allow writing it, or name another" in run.stderr
