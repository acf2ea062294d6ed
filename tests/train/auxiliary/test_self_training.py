"""Labels that another model predicts before training: which they are, what trains on them, and what runs refuse."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil

import numpy as np
import pytest
import torch
from rich.console import Console

import vitreous
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.cli.main import main
from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError, DataError
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.model.config import ViTConfig
from vitreous.runs.state_file import read_state
from vitreous.train.auxiliary.config import AuxConfig
from vitreous.train.console import Display
from vitreous.train.distil.config import DistilConfig
from vitreous.train.setup import prepare

LABELLED, TESTED, TOTAL = 100, 50, 400  # rows of the manifest of conftest.py
OTHERS = TOTAL - LABELLED - TESTED


def save_labeller(path, classes="9876543210", seed=0, **facts):
    """A model file that predicts many classes, by default in another order than that of the data."""
    torch.manual_seed(seed)
    size = {"image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "heads": 2, "mlp_dim": 32}
    model = build(ViTConfig(**size, in_channels=1, num_classes=len(classes)))
    if classes:
        torch.nn.init.normal_(model.head.weight, std=1.0)
    pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.3,)))
    save_model(path, model, ModelInfo(tuple(classes), pipeline, **facts))
    return path


@pytest.fixture(scope="module")
def labeller(tmp_path_factory):
    provenance = {"licence": "MIT"}
    return save_labeller(tmp_path_factory.mktemp("labeller") / "model.safetensors", provenance=provenance)


def asked(runs, out, source, *models, flip=0.0, **options):
    own = {name: options.pop(name) for name in ("min_probability", "unlabelled", "soft") if name in options}
    aux = AuxConfig("self-training", model=tuple(map(str, models)), **own)
    rest = {"data": DataConfig(str(source)), "augment": AugmentConfig(flip=flip), "batch_size": 40} | options
    return runs.config(out, aux=aux, **rest)


def set_up(config):
    return prepare(config, (), Display(Console(file=io.StringIO())))


def predicted(model, paths, tta=False):
    """What `vitreous predict` says of the images."""
    return vitreous.load(model, device="cpu", engine="torch", tta=tta).predict(paths)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def write_rows(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    return path


@pytest.mark.parametrize("flip", [0.0, 0.5])
def test_the_labels_are_the_models_predictions_and_go_to_train_alone(runs, tmp_path, digits, labeller, flip):
    without = set_up(runs.config(tmp_path, data=DataConfig(str(digits / "images.csv"))))
    setup = set_up(asked(runs, tmp_path, digits / "images.csv", labeller, flip=flip))
    before, train = without.data.splits["train"], setup.data.splits["train"]
    assert len(train) == len(before) + OTHERS
    assert train.names[: len(before)] == before.names
    np.testing.assert_array_equal(train.labels[: len(before)], before.labels)
    expected = predicted(labeller, train.paths[len(before) :], tta=flip > 0)
    assert [setup.data.classes[n] for n in train.labels[len(before) :]] == [each.label for each in expected]
    assert len({each.label for each in expected}) > 3
    for name in ("val", "test"):
        assert setup.data.splits[name].names == without.data.splits[name].names
    assert setup.data.fingerprint == without.data.fingerprint
    assert setup.data.unlabelled is None
    assert setup.data_module.num_beside == 0


def probabilities_of(model, paths, classes):
    """What `vitreous predict` says of all classes, (m, K)."""
    found = vitreous.load(model, device="cpu", engine="torch").predict(paths, top_k=len(classes))
    return np.array([[dict(each.top)[name] for name in classes] for each in found])


@pytest.mark.parametrize("workers", [0, 1])
def test_training_learns_the_mean_probabilities_of_the_models(runs, tmp_path, digits, labeller, workers):
    """Of given labels it learns what it learns without other images: the smoothed label."""
    other = save_labeller(tmp_path / "other.safetensors", "0123456789", seed=1)
    where = DataConfig(str(digits / "images.csv"), workers=workers, memory_gb=0.0 if workers else 4.0)
    options = {"data": where, "label_smoothing": 0.1, "augment": AugmentConfig(flip=0.0)}
    setup = set_up(asked(runs, tmp_path, None, labeller, other, **options))
    train, classes = setup.data.splits["train"], setup.data.classes
    count = len(train) - OTHERS
    expected = np.mean([probabilities_of(each, train.paths[count:], classes) for each in (labeller, other)], axis=0)
    np.testing.assert_allclose(train.soft_labels[count:], expected, atol=1e-3)  # float16
    assert train.labels[count:].tolist() == expected.argmax(axis=1).tolist()
    assert len(setup.predicted.models) == 2
    setup.data_module.setup("fit")
    seen = 0
    for batch in setup.data_module.train_dataloader():
        _, targets = setup.data_module.batch_augment.augment_batch(batch)
        rows = batch["index"].numpy()
        given = rows < count
        smoothed = np.where(np.eye(10)[train.labels[rows[given]]], 0.91, 0.01)
        np.testing.assert_allclose(targets[torch.from_numpy(given)], smoothed, atol=1e-3)
        np.testing.assert_allclose(targets[torch.from_numpy(~given)], expected[rows[~given] - count], atol=1e-3)
        seen += len(rows)
    assert seen > OTHERS


def test_labels_are_learnt_instead_of_probabilities_if_asked(runs, tmp_path, digits, labeller):
    setup = set_up(asked(runs, tmp_path, digits / "images.csv", labeller, soft=False))
    assert setup.data.splits["train"].soft_labels is None
    setup.data_module.setup("fit")
    assert next(iter(setup.data_module.train_dataloader()))["labels"].dtype == torch.int64


def test_improbable_predictions_are_left_out(runs, tmp_path, digits, labeller):
    setup = set_up(asked(runs, tmp_path, digits / "images.csv", labeller, min_probability=0.5))
    train = setup.data.splits["train"]
    expected = [each.name for each in predicted(labeller, _others(digits)) if each.probability >= 0.5]
    assert 0 < len(expected) < OTHERS
    assert sorted(map(str, train.paths[-len(expected) :])) == sorted(expected)
    assert setup.predicted.labelled == len(expected)
    with pytest.raises(ConfigError, match=r"reaches aux.min_probability 0\.99999, the highest is 0\.\d+: give a small"):
        set_up(asked(runs, tmp_path, digits / "images.csv", labeller, min_probability=0.99999))


def _others(digits):
    return [digits / name for name, label, _ in rows_of(digits / "images.csv") if not label]


def test_a_second_model_learns_from_the_first_one(runs, tmp_path, digits, vitreous):
    """The command line, as in the documentation: the labels alone, then all images."""
    words = ("--device", "cpu", "--precision", "float32", "--epochs", 2, "--recipe", "digits")
    done = vitreous("train", digits / "images.csv", *words, "--out", tmp_path / "first")
    assert done.returncode == 0, done.stderr
    aux = ("--aux", "self-training", "--aux.model", tmp_path / "first")
    done = vitreous("train", digits / "images.csv", *words, *aux, "--out", tmp_path / "second")
    assert done.returncode == 0, done.stderr
    assert f"{OTHERS} images, all labelled by {tmp_path / 'first'} and trained on" in done.stdout
    report = json.loads((tmp_path / "second" / "report.json").read_text())
    assert report["data"]["images"] == {"train": 90 + OTHERS, "val": 10, "test": TESTED}
    assert sum(map(sum, report["scores"]["test"]["confusion"])) == TESTED


def test_the_report_and_the_model_file_name_the_model(runs, tmp_path, digits, labeller):
    _, said = runs.train(asked(runs, tmp_path / "run", digits / "images.csv", labeller, epochs=1))
    assert f"licence   of {labeller}: MIT: commercial use allowed" in said
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    seen = report["data"]["unlabelled"]
    assert (seen["images"], seen["labelled"], seen["source"]) == (OTHERS, OTHERS, None)
    assert [model["name"] for model in seen["models"]] == [str(labeller)]
    info = load_model(tmp_path / "run" / "model.safetensors")[1]
    assert info.provenance["data"]["unlabelled"] == seen
    (found,) = info.provenance["labelled_by"]
    assert (found["name"], found["licence"], len(found["digest"])) == (str(labeller), "MIT", 64)


def test_a_killed_run_ends_in_the_same_bits(runs, selected, tmp_path, digits, labeller):
    for name in ("whole", "killed"):
        config = asked(runs, tmp_path / name, digits / "images.csv", labeller, flip=0.5)
        if name == "killed":
            runs.broken_off(config, 5)
        with pytest.raises(runs.Killed):
            runs.train(config, resume=name == "killed")
    whole, resumed = (read_state(tmp_path / name / "last.ckpt")["model"] for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert torch.equal(*selected)


def test_a_run_is_not_resumed_with_other_predictions(runs, tmp_path, digits):
    path = save_labeller(tmp_path / "model.safetensors")
    config = asked(runs, tmp_path / "run", digits / "images.csv", path)
    runs.broken_off(config, 1)
    save_labeller(path, seed=1)
    with pytest.raises(
        CheckpointError,
        match=r"the unlabelled images, or the labels that aux\.model predicts for them, have changed. Use",
    ):
        runs.train(config, resume=True)


def test_a_run_is_not_resumed_with_another_image_of_the_same_label(runs, tmp_path, digits, labeller):
    (more := tmp_path / "more").mkdir()
    by_label = {}
    for path, each in zip(_others(digits), predicted(labeller, _others(digits)), strict=True):
        by_label.setdefault(each.label, []).append(path)
    same = max(by_label.values(), key=len)
    for n, path in enumerate(same[:3]):
        shutil.copy(path, more / f"{n}.png")
    labelled = [(digits / n, *rest) for n, *rest in rows_of(digits / "images.csv") if rest[0]]
    source = write_rows(tmp_path / "few.csv", labelled)
    config = asked(runs, tmp_path / "run", source, labeller, unlabelled=str(more))
    runs.broken_off(config, 1)
    shutil.copy(same[3], more / "0.png")
    with pytest.raises(CheckpointError, match="the unlabelled images, or the labels"):
        runs.train(config, resume=True)


def test_a_teacher_answers_for_the_added_images_too(runs, tmp_path, digits, labeller, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    teach = {"distil": DistilConfig(teacher=str(labeller)), "preprocess": PreprocessConfig(mean=(0.3,), std=(0.3,))}
    plain = {"data": DataConfig(str(digits / "images.csv")), "augment": AugmentConfig(flip=0.0), "epochs": 1}
    runs.train(runs.config(tmp_path / "plain", batch_size=40, **plain, **teach))
    result, _ = runs.train(asked(runs, tmp_path / "run", digits / "images.csv", labeller, epochs=1, **teach))
    assert result.exit_code == 0


def test_images_in_shards_are_labelled_too(runs, tmp_path, digits, labeller, vitreous):
    for name, kept in (("labelled", True), ("others", False)):
        rows = [(digits / n, *rest) for n, *rest in rows_of(digits / "images.csv") if bool(rest[0]) is kept]
        source = write_rows(tmp_path / f"{name}.csv", [(n, label, split or "train") for n, label, split in rows])
        words = [] if kept else ["--no-labels"]
        done = vitreous("shard", source, tmp_path / name, *words)
        assert done.returncode == 0, done.stderr
    setup = set_up(asked(runs, tmp_path, tmp_path / "labelled", labeller, unlabelled=str(tmp_path / "others")))
    expected = set_up(asked(runs, tmp_path, digits / "images.csv", labeller))
    found = [
        dict(zip(e.data.splits["train"].digests, e.data.splits["train"].labels.tolist(), strict=True))
        for e in (setup, expected)
    ]
    assert len(found[0]) > OTHERS
    assert {each: found[0][each] for each in found[1]} == found[1]


def test_a_model_that_has_seen_validation_images_is_noted(runs, tmp_path, digits):
    source = digits / "images.csv"
    runs.train(runs.config(tmp_path / "first", data=DataConfig(str(source), val_fraction=0.1), epochs=1))
    for fraction, notes in ((0.1, 0), (0.4, 1)):
        config = asked(runs, tmp_path, source, tmp_path / "first", data=DataConfig(str(source), val_fraction=fraction))
        found = [note for note in set_up(config).data.notes if "was trained on" in note]
        assert len(found) == notes
    assert "was trained on 30 of the 40 validation images, so that their scores may be too high" in found[0]


def test_heads_and_weights_of_a_trained_model_learn_from_them_too(runs, tmp_path, digits, labeller, vitreous):
    words = ("--from", labeller, "--device", "cpu", "--precision", "float32", "--augment.flip", 0, "--epochs", 1)
    aux = ("--aux", "self-training", "--aux.model", labeller, "--out", tmp_path / "run")
    done = vitreous("finetune", digits / "images.csv", *words, *aux)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "report.json").read_text())["data"]["images"]["train"] == 80 + OTHERS


def test_images_with_several_labels_get_those_above_their_thresholds(runs, tmp_path, digits):
    rule = LabelRule(thresholds=(0.5, 0.4, 0.6), slopes=(1.0,) * 3, offsets=(0.0,) * 3)
    path = save_labeller(tmp_path / "model.safetensors", "cab", multilabel=rule)
    others = write_rows(tmp_path / "others.csv", [(digits / f"{n}.png", "", "train") for n in range(LABELLED, TOTAL)])
    source, count = tmp_path / "sets.csv", TOTAL - LABELLED
    with source.open("w", newline="") as file:
        rows = [(digits / f"{n}.png", ("a", "b;c", "a;c")[n % 3]) for n in range(LABELLED)]
        csv.writer(file).writerows([("path", "labels"), *rows])
    setup = set_up(asked(runs, tmp_path, source, path, unlabelled=str(others)))
    train = setup.data.splits["train"]
    expected = predicted(path, train.paths[-count:])
    names = [{setup.data.classes[n] for n in np.flatnonzero(row)} for row in train.labels[-count:]]
    assert names == [set(each.labels) for each in expected]
    assert {len(each) for each in names} > {1}
    np.testing.assert_allclose(
        train.soft_labels[-count:], probabilities_of(path, train.paths[-count:], setup.data.classes), atol=1e-3
    )
    with pytest.raises(ConfigError, match=r"min_probability is 0\.5, but images have several labels"):
        set_up(asked(runs, tmp_path, source, path, min_probability=0.5, unlabelled=str(others)))


def test_models_and_data_that_do_not_fit_are_refused(runs, tmp_path, digits, labeller):
    other = save_labeller(tmp_path / "other.safetensors", "012345678x")
    with pytest.raises(ConfigError, match=r"other.safetensors' has 10 classes, images has 10: it lacks 9; images lack"):
        set_up(asked(runs, tmp_path, digits / "images.csv", other))
    write_rows(tmp_path / "few.csv", [(digits / n, *rest) for n, *rest in rows_of(digits / "images.csv") if rest[0]])
    with pytest.raises(ConfigError, match="there are none: name some with `--unlabelled`"):
        set_up(asked(runs, tmp_path, tmp_path / "few.csv", labeller))
    with pytest.raises(DataError, match="digits is held in memory, and aux self-training joins image files"):
        set_up(asked(runs, tmp_path, "digits", labeller, unlabelled=str(digits)))
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ConfigError, match="is an exported file: give the model that it was exported from"):
        set_up(asked(runs, tmp_path, digits / "images.csv", tmp_path / "model.onnx"))
    bare = save_labeller(tmp_path / "bare.safetensors", "")
    with pytest.raises(ConfigError, match=r"bare.safetensors' has no classification head: give a classifier"):
        set_up(asked(runs, tmp_path, digits / "images.csv", bare))
    rule = LabelRule.plain(10)
    several = save_labeller(tmp_path / "several.safetensors", "0123456789", multilabel=rule)
    with pytest.raises(ConfigError, match="gives an image several labels or none, images gives it one label"):
        set_up(asked(runs, tmp_path, digits / "images.csv", several))
    with pytest.raises(ConfigError, match="a run with aux self-training uses one process"):
        asked(runs, tmp_path, digits / "images.csv", labeller, devices=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": ()}, "model is not set, but aux self-training needs a trained classifier"),
        ({"min_probability": 1.0}, r"min_probability is 1.0, it is a probability and must be in \[0, 1\)"),
        ({"min_probability": float("nan")}, "min_probability is nan"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(AuxConfig("self-training", model="first"), **options)


def test_options_of_other_methods_are_refused(capsys, digits):
    words = ["train", str(digits / "images.csv"), "--print-config", "--recipe", "digits"]
    assert main([*words, "--aux", "self-training", "--aux.model", "x", "--aux.threshold", "0.9"]) == 2
    assert "aux.threshold has no effect here: aux.method is self-training" in capsys.readouterr().err
    assert main([*words, "--aux", "mae", "--aux.min_probability", "0.9"]) == 2
    assert "aux.method is mae, only self-training uses it" in capsys.readouterr().err
