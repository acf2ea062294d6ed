"""`vitreous finetune`: from a model of any family to one that predicts, and errors in one line."""

from __future__ import annotations

import json

import pytest

FAST = ["--device", "cpu", "--steps", 3, "--batch-size", 16, "--augment.flip", 0]


def test_a_fine_tuned_model_predicts_the_datas_classes(vitreous, model_file, digits, tmp_path):
    done = vitreous(
        "finetune", digits, "--from", model_file, "--out", "tuned", "--image-size", 20, "--tune", "full", *FAST
    )
    assert done.returncode == 0, done.stderr
    assert (
        f"from      {model_file} (vitreous), 10 classes -> 10, 16 -> 20 px, positions 4x4 -> 5x5 as timm" in done.stdout
    )
    assert "\nprobe     k-NN " in done.stdout
    assert "\nverdict   fine-tuning " in done.stdout
    report = json.loads((tmp_path / "tuned" / "report.json").read_text())
    assert report["finetune"]["mode"] == "full"
    assert set(report["finetune"]["probe"]["linear"]["accuracy"]) == {"val"}  # the test split is not touched
    if report["finetune"]["verdict"]["worse"]:
        assert "\nperhaps   too few steps: 3 in all" in done.stdout
    image = next(digits.rglob("*.png"))
    said = vitreous("predict", "tuned", image, "--device", "cpu")
    assert said.returncode == 0, said.stderr


def test_another_familys_model_can_be_the_source(vitreous, model_file, digits, tmp_path):
    assert vitreous("convert", model_file, "timm-model", "--to", "timm").returncode == 0
    done = vitreous(
        "finetune", digits, "--from", "timm-model", "--no-probe", "--out", "tuned", "--tune", "linear", *FAST
    )
    assert done.returncode == 0, done.stderr
    assert "from      timm-model (timm), 10 classes -> 10, 16 px" in done.stdout
    assert "probe" not in done.stdout
    assert "verdict" not in done.stdout
    stored = json.loads((tmp_path / "tuned" / "report.json").read_text())
    assert stored["finetune"]["probe"] is None
    again = vitreous("finetune", "--config", "tuned/recipe.yaml", "--out", "again")
    assert again.returncode == 0, again.stderr


def test_show_batch_draws_a_batch(vitreous, model_file, digits, tmp_path):
    done = vitreous("finetune", digits, "--from", model_file, "--show-batch", "look.png", *FAST)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "look.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "DATA is missing"),
        (("photos",), 2, "'photos' is neither a folder"),
        (("photos", "--from"), 2, "needs a value"),
        (("photos", "--from", "nothing-here.npz"), 1, "nothing-here.npz"),
        (
            ("photos", "--from", "x", "--tune", "last-0"),
            2,
            "tune is 'last-0', it must be auto, full, linear, lora, or last-K",
        ),
        (("photos", "--from", "x", "--protocol", "old"), 2, "one of modern, paper"),
        (("photos", "--from", "x", "--image-size", "0"), 2, "--image-size is '0'"),
        (("photos", "--from", "x", "--optim.layer_decay", "2"), 2, "layer_decay is 2.0, it must be in (0, 1]"),
    ],
)
def test_usage_errors_are_one_line(vitreous, words, code, message):
    done = vitreous("finetune", *words)
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.startswith("vitreous: ")
    assert done.stderr.count("\n") == 1
