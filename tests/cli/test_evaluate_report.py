"""`vitreous evaluate --report`: the folder, the second model, slices, changed images, and what is refused."""

import base64
import csv
import io
import json
import re
import shutil
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, log_loss

import vitreous as package
from vitreous.checkpoint.model_file import load_model, save_model
from vitreous.cli.work.evaluating.robustness import measure_robustness
from vitreous.cli.work.evaluating.scoring import labels_by_name
from vitreous.data.config import DataConfig
from vitreous.data.corruptions.apply import corrupt
from vitreous.data.sources.opening import open_source
from vitreous.errors import UsageError

OPTIONS = ("--device=cpu", "--engine=torch")


@pytest.fixture
def manifest(digits, tmp_path):
    """A manifest of the digits with two further columns."""
    path = tmp_path / "digits.csv"
    files = sorted(digits.rglob("*.png"))
    rows = [f"{file},{file.parent.name},{'left' if n % 3 else ''},{n}" for n, file in enumerate(files)]
    path.write_text("path,label,camera,number\n" + "\n".join(rows) + "\n")
    return path


def read(folder):
    """The JSON, the rows of predictions.csv, and the page of a report."""
    rows = list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))
    return json.loads((folder / "evaluation.json").read_text()), rows, (folder / "report.html").read_text()


def test_report_holds_the_scores_of_the_command(vitreous, model_file, digits, tmp_path):
    run = vitreous("evaluate", model_file, "digits-folder", "--report", "out", "--json", "s.json", *OPTIONS)
    assert run.returncode == 0, run.stderr
    assert f"report: {tmp_path / 'out' / 'report.html'}" in run.stderr
    scores = json.loads((tmp_path / "s.json").read_text())["scores"]
    document, rows, page = read(tmp_path / "out")
    for name in ("top1", "top5", "log_loss", "macro_precision", "macro_recall", "macro_f1"):
        assert document["headline"][name]["value"] == pytest.approx(scores[name], rel=1e-6), name
    assert len(rows) == 60
    called = [row["predicted"] for row in rows]
    assert document["headline"]["top1"]["value"] == pytest.approx(accuracy_score([r["true"] for r in rows], called))
    classifier = package.load(model_file, device="cpu", engine="torch")
    logits = classifier.logits(sorted(digits.rglob("*.png"))).astype(np.float64) / classifier.info.temperature
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    true = [classifier.classes.index(file.parent.name) for file in sorted(digits.rglob("*.png"))]
    loss = log_loss(true, odds / odds.sum(axis=1, keepdims=True), labels=range(10))
    assert document["headline"]["log_loss"]["value"] == pytest.approx(loss, rel=1e-4)
    assert "data:image/png" in page


def test_a_shard_of_images_has_no_columns_to_slice_by(vitreous, model_file, digits, tmp_path):
    import pyarrow
    from pyarrow import parquet

    files = sorted(digits.rglob("*.png"))
    images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    table = pyarrow.table({"image": images, "label": [file.parent.name for file in files]})
    parquet.write_table(table, tmp_path / "images.parquet")
    run = vitreous("evaluate", model_file, "images.parquet", "--split=all", "--report=out", *OPTIONS)
    assert run.returncode == 0, run.stderr
    assert read(tmp_path / "out")[0]["slices"] == []
    run = vitreous("evaluate", model_file, "images.parquet", "--split=all", "--report=two", "--slice=label", *OPTIONS)
    assert run.returncode == 2
    assert "names a column of a manifest, and images.parquet is none" in run.stderr


def test_report_shows_the_map_of_each_prediction(vitreous, model_file, digits, tmp_path):
    assert vitreous("evaluate", model_file, "digits-folder", "--report", "out", *OPTIONS).returncode == 0
    document, rows, page = read(tmp_path / "out")
    classifier = package.load(model_file, device="cpu", engine="torch")
    overlays = re.findall(r'<img class="map" src="data:image/png;base64,([^"]*)"', page)
    numbers = [n for sheet in ("worst", "uncertain", "random") for n in document["sheets"][sheet]]
    assert len(overlays) == len(numbers) >= 48
    for n, encoded in zip(numbers, overlays, strict=True):
        values = package.explain(classifier, digits / rows[n]["image"], rows[n]["predicted"]).patches
        scaled = (values - values.min()) / (values.max() - values.min())
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as png:
            pixels = np.asarray(png.convert("RGB"), int)
        assert np.abs(pixels - 255 * mpl.colormaps["viridis"](scaled)[..., :3]).max() <= 4  # one of 256 steps


def test_report_says_why_a_model_has_no_maps(vitreous, model_file, digits, tmp_path):
    arguments = ("--report", "out", "--merge-tokens=1", *OPTIONS)
    run = vitreous("evaluate", model_file, "digits-folder", *arguments)
    assert run.returncode == 0, run.stderr
    page = read(tmp_path / "out")[2]
    assert re.search(r"The images are shown without class maps: [^<]*merg", page)
    assert page.count("data:image/png") >= 48
    assert 'class="map"' not in page


def test_report_does_not_depend_on_the_batch_size(vitreous, model_file, digits, tmp_path):
    for size in (1, 7, 64):
        arguments = ("--report", f"out-{size}", "--batch-size", size, *OPTIONS)
        assert vitreous("evaluate", model_file, "digits-folder", *arguments).returncode == 0
    first, *others = [read(tmp_path / f"out-{size}") for size in (1, 7, 64)]
    for document, rows, _ in others:
        assert [row["predicted"] for row in rows] == [row["predicted"] for row in first[1]]
        assert document["sheets"] == first[0]["sheets"]
        for name, interval in first[0]["headline"].items():
            assert document["headline"][name] == pytest.approx(interval, abs=1e-4), name


def test_slices_are_the_further_columns_of_the_manifest(vitreous, model_file, manifest, tmp_path):
    assert vitreous("evaluate", model_file, manifest, "--report", "all", *OPTIONS).returncode == 0
    document, rows, _ = read(tmp_path / "all")
    assert {each["column"] for each in document["slices"]} == {"camera"}  # the number of each image is no group
    for each in document["slices"]:
        inside = [row for row in rows if (row["camera"] or "(missing)") == each["value"]]
        assert each["n"] == len(inside)
        assert each["accuracy"]["value"] == pytest.approx(np.mean([row["correct"] == "1" for row in inside]))
    chosen = ("--slice", "number", "--slice", "camera")
    assert vitreous("evaluate", model_file, manifest, "--report", "both", *chosen, *OPTIONS).returncode == 0
    assert len(read(tmp_path / "both")[0]["slices"]) == 62
    run = vitreous("evaluate", model_file, manifest, "--report", "none", "--slice", "camra", *OPTIONS)
    assert run.returncode == 2
    assert "--slice 'camra' is not a further column" in run.stderr
    assert "Did you mean 'camera'?" in run.stderr
    assert not (tmp_path / "none").exists()


def test_second_model_is_matched_by_class_names(vitreous, model_file, digits, tmp_path):
    """The same weights with the classes in another order make the same predictions."""
    model, info = load_model(model_file)
    order = list(reversed(range(10)))
    model.head.weight.data = model.head.weight.data[order]
    model.head.bias.data = model.head.bias.data[order]
    save_model(tmp_path / "turned.safetensors", model, replace(info, classes=tuple(info.classes[k] for k in order)))
    arguments = ("--report", "out", "--against", "turned.safetensors", *OPTIONS)
    run = vitreous("evaluate", model_file, "digits-folder", *arguments)
    assert run.returncode == 0, run.stderr
    comparison = read(tmp_path / "out")[0]["comparison"]
    assert (comparison["only_this"], comparison["only_other"], comparison["p_value"]) == (0, 0, 1.0)
    assert all(abs(each["value"]) < 1e-6 for each in comparison["differences"].values())


def test_second_model_of_other_classes_is_refused(vitreous, model_file, digits, tmp_path):
    model, info = load_model(model_file)
    save_model(tmp_path / "other.safetensors", model, replace(info, classes=("null", *info.classes[1:])))
    arguments = ("--report", "out", "--against", "other.safetensors", *OPTIONS)
    run = vitreous("evaluate", model_file, "digits-folder", *arguments)
    assert run.returncode != 0
    assert "has other classes, only one of the two models has: null, zero" in run.stderr
    assert not (tmp_path / "out").exists()


def test_errors_on_changed_images_are_those_of_the_changed_files(model_file, digits):
    """Errors equal those of images that are corrupted here and classified by the predictor."""
    classifier = package.load(model_file, device="cpu", engine="torch")
    data = open_source(DataConfig(source=str(digits)), hold_out=False)
    split = data.splits["all"]
    labels = labels_by_name(classifier.classes, data, split)
    found = measure_robustness(classifier, split, labels, images=20, batch_size=7)
    assert found == measure_robustness(classifier, split, labels, images=20, batch_size=20)
    drawn = np.sort(np.random.default_rng(0).permutation(60)[:20])
    pixels = np.stack([classifier.pipeline.pixels(split.image(n)) for n in drawn])  # (20, 16, 16, 1)
    large = torch.from_numpy(pixels.repeat(2, axis=1).repeat(2, axis=2)).permute(0, 3, 1, 2)
    noisy = corrupt(large, "shot_noise", 3, indices=drawn.tolist(), seed=0).numpy()[:, 0].astype(float)
    small = np.rint(noisy.reshape(20, 16, 2, 16, 2).mean(axis=(2, 4))).astype(np.uint8)
    wrong = classifier.logits(small[..., None]).argmax(axis=1) != labels.numpy()[drawn]
    assert found.corruptions.errors["shot_noise"][2] == pytest.approx(wrong.mean())
    clean = classifier.logits(pixels).argmax(axis=1) != labels.numpy()[drawn]
    assert found.corruptions.clean_error == pytest.approx(clean.mean())
    for curve in found.shifts.values():
        assert curve.accuracy[curve.values.index(curve.unchanged)] == pytest.approx(1 - clean.mean())


def test_robustness_is_part_of_the_report(vitreous, model_file, digits, tmp_path):
    arguments = ("--report", "out", "--robustness=10", "--no-images", *OPTIONS)
    run = vitreous("evaluate", model_file, "digits-folder", *arguments)
    assert run.returncode == 0, run.stderr
    document, _, page = read(tmp_path / "out")
    assert document["robustness"]["images"] == 10
    assert 'id="robustness"' in page
    assert "<img" not in page


def test_folders_that_are_not_reports_are_refused_before_work(vitreous, model_file, digits, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    run = vitreous("evaluate", "no-such-model", "digits-folder", "--report", "mine", "--overwrite")
    assert (run.returncode, run.stdout) == (2, "")
    assert "'thesis.txt', which is not part of a report" in run.stderr
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    assert vitreous("evaluate", model_file, "digits-folder", "--report", "out", *OPTIONS).returncode == 0
    before = (tmp_path / "out" / "report.html").read_bytes()
    assert vitreous("evaluate", model_file, "digits-folder", "--report", "out", *OPTIONS).returncode == 2
    again = vitreous("evaluate", model_file, "digits-folder", "--report", "out", "--overwrite", *OPTIONS)
    assert again.returncode == 0
    assert (tmp_path / "out" / "report.html").read_bytes() == before


@pytest.mark.parametrize("option", ["--against=x", "--slice=x", "--robustness", "--robustness=5", "--no-images"])
def test_options_of_a_report_need_one(vitreous, model_file, digits, option):
    run = vitreous("evaluate", model_file, "digits-folder", option)
    assert run.returncode == 2
    assert re.search(rf"{option.partition('=')[0]} changes what the report contains: give --report DIR", run.stderr)


def test_python_writes_the_same_report(vitreous, model_file, manifest, tmp_path):
    assert vitreous("evaluate", model_file, manifest, "--report", "out", "--slice", "camera", *OPTIONS).returncode == 0
    options = {"device": "cpu", "engine": "torch", "slice": ["camera"]}
    package.evaluate(model_file, manifest, quiet=True, report=tmp_path / "python", **options)
    for name in ("evaluation.json", "predictions.csv", "per_class.csv", "report.html"):
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name
    with pytest.raises(UsageError, match="holds a report already"):
        package.evaluate(model_file, manifest, quiet=True, report=tmp_path / "python", **options)
    package.evaluate(
        model_file, manifest, quiet=True, report=tmp_path / "python", no_images=True, overwrite=True, **options
    )
    assert "<img" not in (tmp_path / "python" / "report.html").read_text()
    shutil.rmtree(tmp_path / "python")
