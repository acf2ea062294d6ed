"""Reports of real predictions: digits by a linear classifier, photographs with made-up logits."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import DataError, NonFiniteError, OutputError
from vitreous.evaluate.scoring.metrics import evaluate, worst_mistakes
from vitreous.evaluate.trust.calibration import brier_score, calibrate, cross_scaled, fit_temperature
from vitreous.machine.device import Machine
from vitreous.report.batch_figure import save_batch_figure
from vitreous.report.figures import draw_curves
from vitreous.report.fonts import FontSet
from vitreous.report.run_report import PAGE, PICTURES, Predictions, RunFacts, write_report

DIGITS = [str(d) for d in range(10)]
HISTORY = [
    {
        "epoch": e,
        "train_loss": 2 / e,
        "val_log_loss": 1.5 / e,
        "val_top1": 1 - 1 / e,
        "val_macro_f1": 0.9 - 0.9 / e,
        "lr": 1e-3 / e,
    }
    for e in range(1, 9)
]
FACTS = RunFacts(
    recipe="digits",
    seed=3,
    device="cpu",
    precision="float32",
    epochs=8,
    selected_epoch=7,
    parameters=123456,
    flops=7_000_000,
    data={"source": "digits", "fingerprint": "ab12", "images": {"train": 600, "val": 700, "test": 497}},
    seconds={"train": 1.5, "evaluate": float("nan")},
    machine=Machine("a processor", 2, 23.5, None, True),
)


@pytest.fixture(scope="module")
def digits() -> tuple[Predictions, Predictions]:
    """Predictions on 700 and 497 real digits that the classifier has not seen."""
    data = load_digits()
    model = LogisticRegression(C=100, max_iter=300).fit(data.data[:600] / 16, data.target[:600])

    def split(start: int, end: int) -> Predictions:
        return Predictions(
            torch.from_numpy(model.decision_function(data.data[start:end] / 16)).float(),
            torch.from_numpy(data.target[start:end]),
            image=lambda i: (data.images[start + i] * 15.9).astype(np.uint8),
            name=lambda i: f"digit {start + i}",
        )

    return split(600, 1300), split(1300, 1797)


def _size(png: bytes) -> tuple[int, int]:
    """Decode a PNG fully, and check that it is opaque and that its margin is white."""
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        assert image.format == "PNG"
        pixels = np.asarray(image.convert("RGBA"))
    assert (pixels[..., 3] == 255).all()
    assert (pixels[-1] == 255).all()
    return image.size


def test_report_holds_the_scores_of_both_splits(digits: tuple[Predictions, Predictions], tmp_path: Path) -> None:
    val, test = digits
    report = write_report(tmp_path / "run", FACTS, history=HISTORY, classes=DIGITS, val=val, test=test)
    text = (tmp_path / "run" / "report.json").read_text(encoding="utf-8")
    assert json.loads(text) == report
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted([*PICTURES, PAGE, "report.json"])

    for name, split in (("val", val), ("test", test)):
        scores = evaluate(split.logits, split.labels)
        written = report["scores"][name]
        assert {key: written[key] for key in scores.summary()} == scores.summary()
        assert written["confusion"] == scores.confusion.tolist()
        assert written["per_class"][4] == {"name": "4", **scores.per_class[4]._asdict()}
    temperature = fit_temperature(val.logits, val.labels)
    assert report["calibration"] == {
        "fitted_on": "val",
        "measured_on": "test",
        "cross_fitted": False,
        **calibrate(test.logits, test.labels, temperature).to_dict(),
    }
    worst = worst_mistakes(val.logits, val.labels, 25)
    assert [m["index"] for m in report["worst_mistakes"]] == worst
    assert [m["name"] for m in report["worst_mistakes"]] == [f"digit {600 + i}" for i in worst]
    first = report["worst_mistakes"][0]
    assert first["probability"] == pytest.approx(float(torch.softmax(val.logits[worst[0]].double(), 0).max()))
    assert first["true"] == str(int(val.labels[worst[0]])) != first["predicted"]
    page = (tmp_path / "run" / PAGE).read_text(encoding="utf-8")
    of_test = page.partition("On the <bdi>test split</bdi>, 497 images on which no temperature was fitted:")[2]
    confidence, called = torch.softmax(test.logits.double() / temperature, 1).max(1)
    right = (called == test.labels).double()
    bins = (confidence * 15).long().clamp(max=14)
    ece = sum(abs(float((right - confidence)[bins == n].sum())) for n in range(15)) / 497
    assert f"<b>With temperature {temperature:.3f}</b><br>ECE {ece:.4f}<" in of_test
    assert report["most_confused"][0]["count"] == (evaluate(val.logits, val.labels).confusion * (1 - np.eye(10))).max()


def test_report_tells_the_run(digits: tuple[Predictions, Predictions], tmp_path: Path) -> None:
    report = write_report(tmp_path, FACTS, history=HISTORY, classes=DIGITS, val=digits[0], temperature=1.25)
    page = (tmp_path / PAGE).read_text()
    assert "on which no temperature was fitted" not in page
    assert "With temperature 1.250, cross-fitted" in page
    assert page.count("<img") > 60
    assert report["format_version"] == 1
    assert (report["recipe"], report["seed"], report["device"], report["precision"]) == ("digits", 3, "cpu", "float32")
    assert report["data"] == FACTS.data
    assert report["model"] == {"parameters": 123456, "flops": 7_000_000}
    assert report["training"] == {
        **{"epochs": 8, "selected_epoch": 7, "seconds": {"train": 1.5, "evaluate": None}},
        **{"extended_from": [], "validated_in": "float32", "selected_val": None},
    }
    assert report["machine"] == {"cpu": "a processor", "cores": 2, "memory_gib": 23.5, "gpu": None, "bf16": True}
    assert report["versions"]["torch"] == torch.__version__
    assert report["scores"]["test"] is None
    assert report["calibration"]["measured_on"] == "val"
    assert report["calibration"]["temperature"] == 1.25
    assert report["pictures"] == list(PICTURES)
    assert all(_size((tmp_path / name).read_bytes()) > (600, 150) for name in PICTURES)


def test_report_of_a_perfect_model_of_strange_classes(tmp_path: Path) -> None:
    classes = ["花", 'a "b" [\n 1, 2]', "\udcff", "$x^2$"]
    val = Predictions(torch.eye(4) * 9, torch.arange(4))
    report = write_report(tmp_path, FACTS, history=[], classes=classes, val=val)
    assert json.loads((tmp_path / "report.json").read_bytes().decode()) == report
    assert report["classes"] == classes
    assert report["worst_mistakes"] == report["most_confused"] == []
    assert report["calibration"]["temperature"] == pytest.approx(9 / math.log(15))  # Platt's target: 5/6 to 3 x 1/18


def words_of(path: Path) -> str:
    """Return the texts of a figure that its file also has as metadata."""
    with Image.open(path) as figure:
        return f"{figure.text['Title']} {figure.text.get('Description', '')}"


def test_without_a_test_split_calibration_is_measured_on_images_that_did_not_fit_it(
    digits: tuple[Predictions, Predictions], tmp_path: Path
) -> None:
    val, test = digits
    report = write_report(tmp_path / "no-test", FACTS, history=HISTORY, classes=DIGITS, val=val)
    crossed = report["calibration"]
    assert (crossed["measured_on"], crossed["cross_fitted"]) == ("val", True)
    assert crossed["temperature"] == fit_temperature(val.logits, val.labels)
    order = np.lexsort((np.arange(len(val.labels)), val.labels.numpy()))
    halves = order[::2], order[1::2]
    losses = np.zeros(len(order))
    for mine, other in (halves, halves[::-1]):
        fitted = fit_temperature(val.logits[other], val.labels[other])
        scaled = val.logits[mine].double() / fitted
        losses[mine] = torch.nn.functional.cross_entropy(scaled, val.labels[mine], reduction="none")
    assert crossed["log_loss_after"] == pytest.approx(losses.mean(), rel=1e-12)
    in_sample = calibrate(val.logits, val.labels, crossed["temperature"])
    assert crossed["log_loss_after"] > in_sample.log_loss_after
    assert crossed["log_loss_before"] == in_sample.log_loss_before
    page = (tmp_path / "no-test" / PAGE).read_text()
    assert "each half is measured with that of the other half" in page
    assert f'data-key="log_loss"><b>{crossed["log_loss_after"]:.4f}' in page
    assert f'data-key="brier"><b>{crossed["brier_after"]:.4f}' in page
    with_test = write_report(tmp_path / "test", FACTS, history=HISTORY, classes=DIGITS, val=val, test=test)
    scaled = torch.softmax(test.logits.double() / crossed["temperature"], dim=1)
    assert with_test["calibration"]["brier_after"] == pytest.approx(brier_score(scaled, test.labels))


def test_the_halves_that_calibrate_each_other_have_as_many_images_of_each_class() -> None:
    labels = torch.tensor([0, 1, 1, 0, 1, 2, 0, 1, 0, 2, 1])
    logits = torch.randn(11, 3, generator=torch.Generator().manual_seed(0)) + 2 * torch.eye(3)[labels]
    factors = (logits.double() / cross_scaled(logits, labels))[:, 0]
    halves = [factors.isclose(factors[0]), ~factors.isclose(factors[0])]
    assert factors[halves[1]].isclose(factors[halves[1]][0]).all()
    for label in range(3):
        counts = [int(((labels == label) & half).sum()) for half in halves]
        assert abs(counts[0] - counts[1]) <= 1
    assert torch.equal(cross_scaled(logits[:1], labels[:1]), logits[:1].double())


def test_curves_say_the_figure_of_the_report_and_the_precision_of_the_curve(
    digits: tuple[Predictions, Predictions], tmp_path: Path
) -> None:
    facts = replace(FACTS, precision="bf16", selected_val={"top1": 0.5, "macro_f1": 0.5})
    report = write_report(tmp_path, facts, history=HISTORY, classes=DIGITS, val=digits[0])
    top1, macro_f1 = (report["scores"]["val"][name] for name in ("top1", "macro_f1"))
    said = f"saved: epoch 7 with validation top-1 {100 * top1:.1f} %, macro F1 {macro_f1:.2f} in float32"
    assert said in words_of(tmp_path / "curves.png")
    assert report["training"]["validated_in"] == "bf16"
    assert report["training"]["selected_val"] == {"top1": 0.5, "macro_f1": 0.5}


def test_many_classes_leave_the_matrix_away(tmp_path: Path) -> None:
    labels = torch.arange(101)
    val = Predictions(torch.randn(101, 101, generator=torch.Generator().manual_seed(0)), labels)
    facts = replace(FACTS, selected_epoch=None)
    report = write_report(tmp_path, facts, history=HISTORY, classes=[f"c{i}" for i in range(101)], val=val)
    assert report["scores"]["val"]["confusion"] is None
    assert len(report["scores"]["val"]["per_class"]) == 101
    assert (len(report["most_confused"]), len(report["worst_mistakes"])) == (20, 25)
    assert report["worst_mistakes"][0]["name"] is None


def test_an_image_that_is_gone_does_not_prevent_the_report(tmp_path: Path) -> None:
    def gone(index: int) -> Image.Image:
        raise (DataError if index % 2 else FileNotFoundError)(f"{index} is gone")

    val = Predictions(torch.eye(4), torch.tensor([1, 2, 3, 0]), image=gone)
    report = write_report(tmp_path, FACTS, history=HISTORY, classes=list("abcd"), val=val)
    assert len(report["worst_mistakes"]) == 4
    assert "<img" not in (tmp_path / PAGE).read_text()


def test_wrong_input_is_named_before_anything_is_written(
    digits: tuple[Predictions, Predictions], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="the model has 10 outputs, but there are 3 class names"):
        write_report(tmp_path, FACTS, history=HISTORY, classes=list("abc"), val=digits[0])
    broken = Predictions(torch.full((2, 2), float("nan")), torch.tensor([0, 1]))
    with pytest.raises(NonFiniteError, match="NaN or infinite for 2 of 2 images"):
        write_report(tmp_path, FACTS, history=HISTORY, classes=list("ab"), val=broken)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_one_error(digits: tuple[Predictions, Predictions], tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    with pytest.raises(OutputError, match="file"):
        write_report(in_the_way / "run", FACTS, history=HISTORY, classes=DIGITS, val=digits[0])
    (tmp_path / "run" / "curves.png").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"curves\.png"):
        write_report(tmp_path / "run", FACTS, history=HISTORY, classes=DIGITS, val=digits[0])
    assert os.listdir(tmp_path / "run") == [
        "curves.png"
    ]  # nothing half-written, and no report that names missing figures


@pytest.mark.parametrize(
    "rows", [[], HISTORY[:1], HISTORY, [{"epoch": 1, "lr": ""}, {"epoch": "2", "lr": "0.1", "val_top1": float("nan")}]]
)
@pytest.mark.parametrize("selected", [None, 1])
def test_curves_of_any_history(rows: list[dict[str, object]], selected: int | None) -> None:
    assert _size(draw_curves(rows, selected))[0] > 1000


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("tulips", 24, "tulips"),
        ("two\nlines\tand  spaces", 24, "two lines and spaces"),
        ("abcdefghijklmnopqrstuvwxyz", 9, "abcd…wxyz"),
        ("Ёлка, ΑΒΓ, مرحبا", 24, "Ёлка, ΑΒΓ, مرحبا"),
        ("a\x01b\udcff", 24, r"a\x01b\xff"),
        ("a\u202eb\u2066\ud800", 24, r"a\u202eb\u2066\ud800"),
        ("x" * 10_000_000, 9, "xxxx…xxxx"),
    ],
)
def test_labels_fit_the_line_and_the_fonts(text: str, width: int, shown: str) -> None:
    assert FontSet([text]).shorten(text, width) == shown


def test_letters_without_a_font_are_written_by_number_without_a_warning(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder, tmp_path: Path
) -> None:
    unassigned = "x\U0001fbff\uf8f0y"  # beyond any font's letters
    names = [unassigned, "花", "🌹", "$\\frac{1}"]
    assert FontSet(names).shorten(unassigned) in (r"x\U0001fbff\uf8f0y", unassigned)
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings():
        warnings.simplefilter("always")
        pipeline = EvalPipeline((8, 8), 3, PreprocessConfig(mean=(0.4,) * 3, std=(0.3,) * 3))
        save_batch_figure(tmp_path / "batch.png", torch.zeros(4, 3, 8, 8), torch.eye(4), names, pipeline)
    assert [str(w.message) for w in recwarn] == []
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    draw: Callable[[], bytes] = lambda: draw_curves(HISTORY, 3)  # noqa: E731
    assert draw() == draw()
    assert dict(mpl.rcParams) == before
