"""A run on images with several labels, and what every verb does with its model."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from vitreous.checkpoint.model_file import load_model, save_model
from vitreous.cli.main import main
from vitreous.data.augment.mixing import smooth_targets
from vitreous.data.sources.manifest import list_manifest
from vitreous.engines.check import CHECKED, agreement
from vitreous.engines.torch_engine import TorchEngine
from vitreous.evaluate.multilabel.fitting import cross_fitted
from vitreous.evaluate.multilabel.metrics import evaluate_labels
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.export.graph.core import Core, output_names
from vitreous.export.graph.mapped import class_map
from vitreous.inspection.explain import ModelInMemory, explain
from vitreous.report.batch_figure import _label_lines
from vitreous.report.fonts import FontSet
from vitreous.serve.engine.computing import Computing
from vitreous.train.loop.module import VitModule

COLOURS = ("red", "green", "blue")
SMALL = [
    *("--start", "none", "--model.width", "32", "--model.depth", "1", "--model.heads", "2", "--model.image_size", "16"),
    *("--model.patch_size", "4", "--model.stem", "patch", "--precision", "float32", "--device", "cpu"),
]
TRAINED = [*SMALL, "--epochs", "6", "--optim.lr", "5e-3", "--augment.cutmix", "0", "--augment.policy", "none"]


def write_images(folder: Path, count: int, seed: int = 0) -> Path:
    """Write images with a patch for each of their colours, none to three, and a manifest."""
    rng, rows = np.random.default_rng(seed), []
    for n in range(count):
        pixels, has = rng.integers(90, 120, (16, 16, 3), dtype=np.uint8), rng.random(3) < 0.45
        corners = rng.permutation([(0, 0), (0, 8), (8, 0), (8, 8)])
        for colour, (top, left) in zip(np.flatnonzero(has), corners, strict=False):
            pixels[top : top + 8, left : left + 8, colour] = 255
        Image.fromarray(pixels).save(folder / f"{n}.png")
        split = "test" if n % 4 == 0 else "train"
        rows.append((f"{n}.png", split, *has.astype(int)))
    with (folder / "m.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "split", *COLOURS), *rows])
    return folder / "m.csv"


def read_rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> SimpleNamespace:
    """A trained run, its manifest, and the folder of its images."""
    folder = tmp_path_factory.mktemp("colours")
    manifest = write_images(folder, 400)
    out = folder / "run"
    assert main(["train", str(manifest), *TRAINED, "--aux", "none", "--out", str(out)]) == 0  # it makes mistakes
    return SimpleNamespace(folder=folder, manifest=manifest, run=out, model=out / "model.safetensors")


def test_the_model_is_useful_and_its_file_says_how_it_decides(trained):
    report = json.loads((trained.run / "report.json").read_text())
    assert report["scores"]["test"]["mean_ap"] > 0.9  # chance is the share of a label, 0.45
    assert report["scores"]["test"]["macro_f1"] > 0.8
    _, info = load_model(trained.model)
    assert (info.classes, info.format_version, info.temperature) == (COLOURS, 3, 1.0)
    assert info.multilabel is not None
    assert info.multilabel.to_dict() == report["multilabel"]
    assert info.scores["test"]["mean_ap"] == pytest.approx(report["scores"]["test"]["mean_ap"])
    rows = read_rows(trained.run / "metrics.csv")
    assert float(rows[-1]["val_log_loss"]) < float(rows[0]["val_log_loss"])
    assert float(rows[-1]["val_mean_ap"]) > 0.9
    assert "val_top1" not in rows[0]


def test_the_scores_of_the_report_are_those_of_the_saved_model(trained):
    """Test scores by the stored rule, val scores of each half by the rule of the other."""
    report = json.loads((trained.run / "report.json").read_text())
    classifier = vitreous.load(trained.model, engine="torch", device="cpu")
    data = vitreous.data.sources.opening.open_source(
        vitreous.data.config.DataConfig(source=str(trained.manifest)), several=True
    )
    for name in ("val", "test"):
        split = data.splits[name]
        logits = torch.from_numpy(classifier.logits([str(path) for path in split.paths]))
        rule, labels = classifier.info.multilabel, torch.from_numpy(split.labels)
        given = cross_fitted(logits, labels) if name == "val" else (rule.calibrated(logits), rule.present(logits))
        scores = evaluate_labels(given[0], labels, given[1], ranked=logits).summary()
        assert {key: report["scores"][name][key] for key in scores} == pytest.approx(scores, rel=1e-4, abs=1e-6)


def test_predictions_have_the_labels_at_or_above_their_thresholds(trained, capsys):
    classifier = vitreous.load(trained.model, engine="torch", device="cpu")
    rule, paths = classifier.info.multilabel, [str(trained.folder / f"{n}.png") for n in range(12)]
    logits = torch.from_numpy(classifier.logits(paths)).double()
    found = classifier.predict(paths, top_k=3)
    for row, each in zip(logits, found, strict=True):
        chances = dict(zip(COLOURS, rule.probabilities(row).tolist(), strict=True))
        assert dict(each.top) == pytest.approx(chances, abs=1e-5)
        expected = {name for name, t in zip(COLOURS, rule.thresholds, strict=True) if chances[name] >= t}
        assert set(each.labels) == expected
        assert list(each.labels) == [name for name, _ in each.top if name in expected]
    assert len({each.labels for each in found}) > 3
    for form in ("jsonl", "csv"):
        assert main(["predict", str(trained.model), *paths, "--format", form, "--engine", "torch"]) == 0
        text = capsys.readouterr().out
        rows = map(json.loads, text.splitlines()) if form == "jsonl" else csv.DictReader(io.StringIO(text))
        written = [row["labels"] if form == "jsonl" else json.loads(row["labels"]) for row in rows]
        assert written == [list(each.labels) for each in found]


def test_mirror_images_average_probabilities_not_logits(trained):
    plain, doubled = (vitreous.load(trained.model, engine="torch", device="cpu", tta=tta) for tta in (False, True))
    image = Image.open(trained.folder / "5.png")
    views = [
        dict(plain.predict(each, top_k=3).top) for each in (image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    ]
    mean = {name: (views[0][name] + views[1][name]) / 2 for name in COLOURS}
    assert dict(doubled.predict(image, top_k=3).top) == pytest.approx(mean, abs=1e-5)


def test_evaluate_writes_the_same_scores_everywhere(trained, tmp_path, capsys):
    words = ["evaluate", str(trained.model), str(trained.manifest), "--engine", "torch"]
    assert main([*words, "--report", str(tmp_path / "r"), "--json", str(tmp_path / "e.json")]) == 0
    text, document = capsys.readouterr().out, json.loads((tmp_path / "e.json").read_text())
    assert f"mAP         {document['scores']['mean_ap']:.4f}" in text
    report = json.loads((tmp_path / "r" / "evaluation.json").read_text())
    assert report["scores"] == document["scores"]
    assert document["scores"]["mean_ap"] == pytest.approx(
        json.loads((trained.run / "report.json").read_text())["scores"]["test"]["mean_ap"]
    )
    table = read_rows(tmp_path / "r" / "per_class.csv")
    assert [row["label"] for row in table] == list(COLOURS)
    assert sum(float(row["average_precision"]) for row in table) / 3 == pytest.approx(document["scores"]["mean_ap"])
    rows = read_rows(tmp_path / "r" / "predictions.csv")
    truth = {entry.name: list(entry.labels) for entry in list_manifest(trained.manifest).entries}
    assert all(json.loads(row["true"]) == truth[row["image"]] for row in rows)
    right = [json.loads(row["true"]) == json.loads(row["predicted"]) for row in rows]
    assert sum(right) / len(right) == pytest.approx(document["scores"]["subset_accuracy"])
    page = (tmp_path / "r" / "report.html").read_text()
    assert f'data-key="mean_ap"><b>{document["scores"]["mean_ap"]:.4f}' in page
    assert "Missed labels" in page or "Wrong labels" in page


def test_merged_tokens_are_compared_by_map(trained, tmp_path, capsys):
    words = ["evaluate", str(trained.model), str(trained.manifest), "--engine", "torch", "--merge-tokens", "1"]
    assert main([*words, "--json", str(tmp_path / "merged.json")]) == 0
    assert "1 tokens merged in each block" in capsys.readouterr().out
    assert main([*words[:-2], "--json", str(tmp_path / "plain.json")]) == 0
    merged, plain = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("merged", "plain"))
    merging = merged["computed_by"]["merging"]
    assert merging["mean_ap"] == merged["scores"]["mean_ap"]
    assert merging["mean_ap_without"] == pytest.approx(plain["scores"]["mean_ap"], abs=1e-6)
    assert plain["computed_by"]["merging"] is None


def test_inspection_compares_with_labelled_images(trained, tmp_path):
    """Neighbours have all their labels, and depths and the register are scored by mAP."""
    words = ["inspect", str(trained.model), str(trained.folder / "0.png"), "--data", str(trained.manifest)]
    words += ["--budget", "20s", "--register-neurons", "2", "--out", str(tmp_path / "page")]
    assert main(words) == 0
    found = json.loads((tmp_path / "page" / "inspection.json").read_text())
    depth = found["measures"]["depth"]
    assert depth["mean_ap"][-1] > 0.8  # chance is the share of a label, 0.45
    assert len(depth["mean_ap"]) == len(depth["train_mean_ap"]) == 2
    assert "accuracy" not in depth
    assert found["measures"]["test_time_register"]["mean_ap_before"] > 0.8
    sets = {row["path"]: [name for name in COLOURS if row[name] == "1"] for row in read_rows(trained.manifest)}
    (image,) = found["images"]
    assert image["neighbours"]
    for each in image["neighbours"]:
        assert each["label"] == (", ".join(sets[Path(each["path"]).name]) or "no label")
    page = (tmp_path / "page" / "inspection.html").read_text()
    assert "mAP of a linear classifier" in page


def test_probe_scores_the_features_of_either_kind_of_model(trained, tmp_path, capsys):
    """By mAP; the model was trained on these labels, so a linear model of its features knows them."""
    assert main(["probe", str(trained.model), str(trained.manifest), "--json", str(tmp_path / "p.json")]) == 0
    document = json.loads((tmp_path / "p.json").read_text())["probes"]
    assert document["judged_on"] == "test"
    assert document["linear"]["mean_ap"]["test"] > 0.9
    assert all(each["mean_ap"]["test"] > 0.7 for each in document["knn"]["scores"])
    assert document["few_shot"]["scores"] == []
    text = capsys.readouterr().out
    assert "3 labels, mAP" in text
    assert f"{document['linear']['mean_ap']['test']:.2%}" in text


def test_audit_finds_copies_leaks_and_wrong_labels(trained, tmp_path):
    """Two copies, one of them with other labels, in two splits; a broken file; and three labels turned round."""
    pytest.importorskip("cleanlab")
    folder = tmp_path / "data"
    folder.mkdir()
    manifest = write_images(folder, 200, seed=3)
    rows = list(csv.reader(manifest.read_text().splitlines()))
    (folder / "7.png").write_bytes((folder / "4.png").read_bytes())  # 4 is in test, 7 in train
    rows[8][2:] = [str(1 - int(each)) for each in rows[5][2:]]
    (folder / "9.png").write_bytes(b"no image")
    for n in (41, 42, 43):
        rows[1 + n][2] = str(1 - int(rows[1 + n][2]))
    with manifest.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    words = ["audit", str(manifest), "--model", str(trained.model), "--json", str(tmp_path / "a.json"), "--fresh"]
    assert main([*words, "--html", str(tmp_path / "a.html")]) == 0
    found = json.loads((tmp_path / "a.json").read_text())["findings"]
    by_kind = {}
    for each in found:
        names = {image["name"] for image in each["pictures"]}
        by_kind.setdefault(each["kind"], []).append((names, each["text"]))
    assert by_kind["leak"][0][0] == {"4.png", "7.png"}
    assert by_kind["two-labels"][0][0] == {"4.png", "7.png"}
    assert by_kind["undecodable"][0][0] == {"9.png"}
    suspected = {next(iter(names)): text for names, text in by_kind["suspect"]}
    assert {"41.png", "42.png", "43.png"} <= suspected.keys()
    verb = "has" if rows[42][2] == "1" else "lacks"
    assert suspected["41.png"].startswith(f'{verb} the label "red", which it seems to')


def test_a_report_slices_and_compares(trained, tmp_path, capsys):
    """By a further column of the manifest, and with a model that lost its knowledge of one label."""
    rows = list(csv.reader(trained.manifest.read_text().splitlines()))
    table = [[*rows[0], "site"], *([*row, "north" if n % 8 else "south"] for n, row in enumerate(rows[1:]))]
    sliced = trained.folder / "sites.csv"
    with sliced.open("w", newline="") as file:
        csv.writer(file).writerows(table)
    model, info = load_model(trained.model)
    with torch.no_grad():
        model.head.weight[1] = 0
    save_model(tmp_path / "worse.safetensors", model, info)
    words = ["evaluate", str(trained.model), str(sliced), "--split", "test", "--report", str(tmp_path / "r")]
    assert main([*words, "--against", str(tmp_path / "worse.safetensors"), "--engine", "torch"]) == 0
    found = json.loads((tmp_path / "r" / "evaluation.json").read_text())
    assert [each["column"] for each in found["slices"]] == ["site", "site"]  # not the columns of labels
    assert {each["value"]: each["n"] for each in found["slices"]} == {"north": 50, "south": 50}
    gap = found["against"]["mean_ap"]
    assert gap["difference"]["low"] > 0.05
    assert gap["p_value"] < 0.01
    page = (tmp_path / "r" / "report.html").read_text()
    assert f'data-key="against-mean_ap">{gap["difference"]["value"]:+.4f}' in page
    assert ">south<" in page
    words[-1] = str(tmp_path / "s")
    changed = ["--robustness=20", "--against", str(tmp_path / "worse.safetensors"), "--engine", "torch"]
    assert main([*words, "--slice", "red", *changed]) == 0
    found = json.loads((tmp_path / "s" / "evaluation.json").read_text())
    assert {each["column"] for each in found["slices"]} == {"red"}
    errors = found["robustness"]["corruptions"]
    assert errors["clean_error"] < 0.1  # 1 - mAP
    assert errors["mean_error"] > errors["clean_error"]
    assert errors["mean_corruption_error"] < 1  # of the model that knows one label less
    assert "The dashed line is the mAP" in (tmp_path / "s" / "report.html").read_text()


def test_calibrate_fits_the_rule_again_and_leaves_the_weights(trained, tmp_path):
    """A rule that was spoilt is found again on val, where training fitted it."""
    model, info = load_model(trained.model)
    spoilt = dataclasses.replace(info, multilabel=LabelRule.plain(3))
    save_model(tmp_path / "m.safetensors", model, spoilt)
    words = ["calibrate", str(tmp_path / "m.safetensors"), str(trained.manifest), "--json", str(tmp_path / "c.json")]
    assert main(words) == 0
    again, fitted = load_model(tmp_path / "m.safetensors")
    assert fitted.multilabel.thresholds == pytest.approx(info.multilabel.thresholds, abs=1e-3)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["after"]["macro_f1"] >= document["before"]["macro_f1"] - 0.05
    assert document["multilabel"] == fitted.multilabel.to_dict()


def test_calibrate_leaves_labels_that_the_images_say_nothing_of(trained, tmp_path, capsys):
    """The table names two of three labels, and one of these is on all images."""
    rows = [row for row in read_rows(trained.manifest) if row["red"] == "1"]
    table = "".join(f"{trained.folder / row['path']},1,{row['green']}\n" for row in rows)
    (tmp_path / "two.csv").write_text("path,red,green\n" + table)
    model, info = load_model(trained.model)
    save_model(tmp_path / "m.safetensors", model, dataclasses.replace(info, provenance={}))
    capsys.readouterr()
    assert main(["calibrate", str(tmp_path / "m.safetensors"), str(tmp_path / "two.csv"), "--split", "all"]) == 0
    said = capsys.readouterr().err
    assert "1 of the model's 3 labels are not in the data and count as absent from every image: blue" in said
    assert "2 labels on none of these images or on all: calibration and threshold stay as they were (red, blue)" in said
    fitted = load_model(tmp_path / "m.safetensors")[1].multilabel
    for name in ("thresholds", "slopes", "offsets"):
        old, new = getattr(info.multilabel, name), getattr(fitted, name)
        assert (new[0], new[2]) == (old[0], old[2])
    assert fitted.thresholds[1] != info.multilabel.thresholds[1]
    assert main(["evaluate", str(tmp_path / "m.safetensors"), str(tmp_path / "two.csv"), "--split", "all"]) == 0
    assert "the thresholds were fitted on some of these images" in capsys.readouterr().err


def test_test_time_augmentation_is_compared_by_map(trained, tmp_path, capsys):
    words = ["evaluate", str(trained.model), str(trained.manifest), "--engine", "torch"]
    assert main([*words, "--tta", "--json", str(tmp_path / "tta.json")]) == 0
    assert "test-time augmentation" in capsys.readouterr().out
    assert main([*words, "--json", str(tmp_path / "plain.json")]) == 0
    doubled, plain = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("tta", "plain"))
    gain = doubled["computed_by"]["tta"]
    for name in ("mean_ap", "log_loss"):
        assert gain[name] == pytest.approx(doubled["scores"][name], abs=1e-6)
        assert gain[f"{name}_without"] == pytest.approx(plain["scores"][name], abs=1e-6)


def test_the_graph_decides_as_the_predictor_and_an_exported_file_too(trained, tmp_path):
    """The outputs of the graph in PyTorch, and of a file that is written and verified."""
    pytest.importorskip("onnxruntime")
    classifier = vitreous.load(trained.model, engine="torch", device="cpu")
    paths = [str(trained.folder / f"{n}.png") for n in range(8)]
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
    assert main(["export", str(trained.model), str(tmp_path / "m.onnx"), "--to", "onnx"]) == 0
    exported = vitreous.load(tmp_path / "m.onnx")
    assert exported.info.multilabel == classifier.info.multilabel
    names, core = output_names(classifier.info), Core(classifier.model, classifier.info).eval()
    with torch.inference_mode():
        in_torch = dict(zip(names, core(torch.from_numpy(pixels).permute(0, 3, 1, 2)), strict=False))
    graphs = ({name: each.numpy() for name, each in in_torch.items()}, exported.exported.run_prepared(pixels))
    for n, expected in enumerate(classifier.predict(paths, 3)):
        for graph in graphs:
            chances = dict(zip(COLOURS, graph["probabilities"][n].tolist(), strict=True))
            assert chances == pytest.approx(dict(expected.top), abs=1e-4)
            assert {name for name, has in zip(COLOURS, graph["labels"][n], strict=True) if has} == set(expected.labels)
        assert exported.predict(paths[n]).labels == expected.labels


def test_an_exported_file_is_checked_on_labelled_images(trained, tmp_path):
    pytest.importorskip("onnxruntime")
    words = ["export", str(trained.model), str(tmp_path / "m.onnx"), "--to", "onnx", "--check", str(trained.manifest)]
    assert main([*words, "--json", str(tmp_path / "e.json")]) == 0
    found = json.loads((tmp_path / "e.json").read_text())["checked"]
    scores = json.loads((trained.run / "report.json").read_text())["scores"]["test"]
    assert found["changed"] <= 1
    for each in ("PyTorch", "onnx"):
        assert found[each]["mean_ap"] == pytest.approx(scores["mean_ap"], abs=1e-3)
        assert found[each]["log_loss"] == pytest.approx(scores["log_loss"], abs=1e-3)


def test_int8_keeps_the_map(trained, tmp_path, capsys):
    for package in ("onnxruntime", "openvino", "nncf"):
        pytest.importorskip(package)
    words = ["export", str(trained.model), str(tmp_path / "m.onnx"), "--to", "onnx", "--check", str(trained.manifest)]
    assert main([*words, "--int8", "--max-drop", "1", "--json", str(tmp_path / "e.json")]) == 0
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["int8"]["accuracy_before"] - found["int8"]["accuracy_after"] <= 0.01
    assert found["checked"]["onnx"]["mean_ap"] > 0.9
    assert "by mAP, which is the accuracy below" in " ".join(capsys.readouterr().err.split())


def test_an_engine_whose_logits_are_shifted_agrees_only_on_a_softmax(trained):
    model, info = load_model(trained.model)
    plain, images = TorchEngine(model, "float32"), torch.randn(3, 3, 16, 16)

    class Shifted:
        name, precision = "shifted", "float32"

        def __call__(self, images):
            logits, features = plain(images)
            return logits + 1, features

    found = [agreement(Shifted(), images, plain(images), 1.0, rule) for rule in (None, info.multilabel)]
    assert [each.within(CHECKED["float32"]) for each in found] == [True, False]
    assert agreement(plain, images, plain(images), 1.0, info.multilabel).within(CHECKED["float32"])


def test_a_service_and_a_watched_folder_give_labels(trained, tmp_path):
    path = trained.folder / "1.png"
    served = Computing(str(trained.model), {"engine": "torch", "device": "cpu"}, "stored")
    expected = vitreous.load(trained.model, engine="torch", device="cpu").predict(path)
    ((record, _),) = served.compute("predict", [served.decode(path.read_bytes())], 2)
    assert record["labels"] == list(expected.labels)
    assert served.describe()["multilabel"]["thresholds"] == list(served.source.info.multilabel.thresholds)
    (tmp_path / "1.png").write_bytes(path.read_bytes())
    words = ["watch", str(tmp_path), "--model", str(trained.model), "--once", "--settle", "0.01", "--engine", "torch"]
    assert main(words) == 0
    (row,) = read_rows(tmp_path / "predictions.csv")
    assert json.loads(row["labels"]) == list(expected.labels)


def test_a_map_of_any_label_has_its_own_probability(trained):
    classifier, path = vitreous.load(trained.model, engine="torch", device="cpu"), trained.folder / "2.png"
    chances = dict(classifier.predict(path, 3).top)
    found = {name: explain(classifier, path, name) for name in COLOURS}
    assert {name: each.probability for name, each in found.items()} == pytest.approx(chances, abs=1e-5)
    assert not math.isclose(float(abs(found["red"].patches - found["blue"].patches).max()), 0)


def test_the_map_without_a_target_is_that_of_the_most_probable_label(trained):
    """Also where offsets make another label the most probable than the largest logit does."""
    classifier, path = vitreous.load(trained.model, engine="torch", device="cpu"), trained.folder / "2.png"
    last = int(classifier.logits([path])[0].argmin())
    rule = LabelRule((0.5,) * 3, (1.0,) * 3, tuple(40.0 * (n == last) for n in range(3)))
    classifier = ModelInMemory(
        classifier.model, dataclasses.replace(classifier.info, multilabel=rule), classifier.device
    )
    assert explain(classifier, path).target == last
    images = classifier.info.pipeline(Image.open(path).convert("RGB"))[None]
    expected = explain(classifier, path, last).patches
    assert class_map(classifier.model, classifier.info, images)[0].numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("calibrate MODEL DATA --precision 0.9", "--precision is a promise about one class of each image"),
        ("convert MODEL OUT/t --to timm", "--to timm needs a model that gives each image one class"),
        ("probe MODEL DATA --shots 2", "few shots need one class of each image"),
        (
            "train digits --teacher MODEL --distil.targets logits",
            "gives several labels or none, digits gives one class to each image",
        ),
        ("train DATA --balanced-sampling", "balanced_sampling draws by the one class of each image"),
        (
            "train digits --select mean_ap",
            "select mean_ap is for images with several labels, and digits has one of each",
        ),
    ],
)
def test_what_needs_one_class_refuses_with_one_sentence(trained, tmp_path, capsys, words, message):
    places = {"MODEL": trained.model, "DATA": trained.manifest, "OUT": tmp_path}
    for name, place in places.items():
        words = words.replace(name, str(place))
    extra = [*SMALL, "--out", str(tmp_path / "run")] if words.startswith("train") else []
    assert main([*words.split(), *extra]) in (1, 2)
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert "Traceback" not in error
    assert not [path for path in tmp_path.iterdir() if path.name != "run" or any(path.iterdir())]


@pytest.mark.parametrize(
    "words",
    [
        "--teacher MODEL --distil.targets both --distil.temperature 2 --augment.cutmix 0",
        "--aux mae --aux.decoder_width 16 --model.stem patch",
        "--class-weights effective --labels.loss asymmetric",
    ],
)
def test_a_run_learns_with_a_teacher_a_second_task_or_weights(trained, tmp_path, words):
    """In the same steps as the run without, and its model still knows the labels."""
    words = ["train", str(trained.manifest), *TRAINED, *words.replace("MODEL", str(trained.model)).split()]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["scores"]["test"]["mean_ap"] > 0.85
    assert main(["plan", *words[1:], "--json", str(tmp_path / "plan.json")]) == 0


@pytest.mark.parametrize("mode", ["full", "linear"])
def test_a_trained_model_is_tuned_to_other_labels(trained, tmp_path, mode):
    folder = tmp_path / "few"
    folder.mkdir()
    manifest = write_images(folder, 60, seed=1)
    lines = manifest.read_text().replace("red,green,blue", "warm,fresh,cold")
    manifest.write_text(lines)
    words = ["finetune", str(manifest), "--from", str(trained.run), "--tune", mode, "--epochs", "3", "--device", "cpu"]
    assert main([*words, "--labels.loss", "asymmetric", "--precision", "float32", "--out", str(tmp_path / "run")]) == 0
    _, info = load_model(tmp_path / "run" / "model.safetensors")
    assert info.classes == ("warm", "fresh", "cold")
    assert info.provenance["config"]["labels"]["loss"] == "asymmetric"
    assert json.loads((tmp_path / "run" / "report.json").read_text())["finetune"]["mode"] == mode


class KilledError(BaseException):
    """The process was killed."""


def test_stages_choose_by_map_and_resume(trained, tmp_path, monkeypatch, capsys):
    """Heads on frozen features first, then all weights from the best head; a killed run goes on after the heads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("vitreous.engines.choose.installed", lambda name: False)
    words = ["finetune", str(trained.manifest), "--from", str(trained.run), "--tune", "auto", "--epochs", "2"]
    words += ["--device", "cpu", "--precision", "float32", "--augment.flip", "0.5", "--out", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        patch.setattr("vitreous.train.finetune.stages.story._train", lambda staging: (_ for _ in ()).throw(KilledError))
        with pytest.raises(KilledError):
            main(words)
    heads = load_model(tmp_path / "run" / "model.safetensors")[1]
    assert heads.multilabel is not None
    assert heads.scores["val"]["mean_ap"] > 0.9
    capsys.readouterr()
    assert main([*words, "--resume"]) == 0
    assert "done are k-NN, linear, linear, 2 views, attentive" in capsys.readouterr().out
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    rows = {row["stage"]: row for row in report["finetune"]["stages"]}
    assert list(rows)[:5] == ["k-NN", "linear", "linear, 2 views", "attentive", "full"]
    scored = [row for row in rows.values() if row["skipped"] is None]
    for row in scored:
        assert row["low"] <= row["mean_ap"] <= row["high"], row
    assert {row["stage"] for row in scored} >= {"k-NN", "linear", "attentive", "full"}
    best = max((row["mean_ap"], -row["log_loss"]) for row in rows.values() if row.get("log_loss") is not None)
    chosen = rows[report["finetune"]["chosen"]]
    assert (chosen["mean_ap"], -chosen["log_loss"]) == best
    _, info = load_model(tmp_path / "run" / "model.safetensors")
    assert info.multilabel.to_dict() == report["multilabel"]
    assert report["scores"]["test"]["mean_ap"] > 0.9
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The best stage on these images is saved" in page
    assert f"{chosen['mean_ap']:.1%}".replace("%", "") in page
    assert f"{chosen['low']:.1%} to {chosen['high']:.1%}" in page


def test_a_killed_run_resumes_to_the_same_model(runs, trained, tmp_path):
    from vitreous.cli.verbs.train import configure

    words = [str(trained.manifest), *SMALL, "--epochs", "2", "--batch_size", "64"]
    configs = [dataclasses.replace(configure(words)[0], out=str(tmp_path / name)) for name in ("whole", "broken")]
    runs.train(configs[0])
    runs.broken_off(configs[1], 5)
    _, text = runs.train(configs[1], resume=True)
    assert "continues from epoch 2" in text
    models = [load_model(tmp_path / name) for name in ("whole", "broken")]
    assert all(torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m, _ in models), strict=True))
    assert models[0][1].multilabel == models[1][1].multilabel


def test_a_step_that_diverges_is_replayed_with_the_loss_of_several_labels(trained, tmp_path, monkeypatch, capsys):
    original = VitModule.on_train_start

    def spoiled(self):
        original(self)
        with torch.no_grad():
            self.model.head.weight.fill_(1e38)

    monkeypatch.setattr(VitModule, "on_train_start", spoiled)
    assert main(["train", str(trained.manifest), *SMALL, "--epochs", "1", "--out", str(tmp_path / "run")]) == 1
    assert load_model(tmp_path / "run" / "last-good.safetensors")[1].multilabel == LabelRule.plain(3)
    capsys.readouterr()
    assert main(["replay", str(tmp_path / "run" / "nonfinite.replay"), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["module"] is not None


def test_a_plan_and_a_batch_are_shown_without_training(trained, tmp_path, capsys):
    words = [str(trained.manifest), *SMALL, "--epochs", "2"]
    assert main(["plan", *words, "--json", str(tmp_path / "plan.json")]) == 0
    assert json.loads((tmp_path / "plan.json").read_text())
    assert main(["train", *words, "--show-batch", str(tmp_path / "b.png")]) == 0
    with Image.open(tmp_path / "b.png") as drawn:
        assert drawn.width > 100


def test_a_batch_names_the_labels_of_each_image():
    fonts = FontSet(["a", "b", "c"])
    targets = smooth_targets(torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]), 3, 0.1)
    mixed = targets[0].lerp(targets[1], 0.25)
    lines = [_label_lines(target, ["a", "b", "c"], fonts) for target in (*targets, mixed)]
    assert lines == [["a", "c"], ["no label"], ["a", "b", "c"], ["a 0.75", "c 0.75"]]
