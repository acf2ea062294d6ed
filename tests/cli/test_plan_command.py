"""`vitreous plan`: table, JSON and errors."""

import json
from pathlib import Path

import pytest

from vitreous.train.planning import trials

SMALL = ("--model.width=32", "--model.depth=1", "--model.heads=2", "--device", "cpu")
TINY = (*SMALL, "--epochs=2")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Measure only a few steps."""
    monkeypatch.setattr(trials, "_SECONDS", 0.1)


def test_table_and_json_agree_and_no_other_file_is_written(vitreous, tmp_path):
    run = vitreous("plan", "digits", *TINY, "--batch-size", "32", "--resume", "--json", "plan.json")
    assert (run.returncode, run.stderr) == (0, "")
    rows = {line[:24].strip(): line[24:].strip() for line in run.stdout.splitlines()}
    said = json.loads((tmp_path / "plan.json").read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert rows["batch"] == f"32 images, {said['steps_per_epoch']} steps per epoch"
    assert rows["images"].startswith(f"{said['pictures']['train']:,} train, ")
    assert rows["epochs"] == "2"
    assert rows["time per step"].startswith(f"{said['step_seconds']:.3g} s (")
    assert rows["largest batch"].startswith(f"{said['largest_batch']:,} images")
    assert {"model", "memory", "weights and optimiser", "activations of a step", "operations"} <= set(rows)


def test_a_folder_of_images_and_json_alone_on_stdout(vitreous, digits):
    before = sorted(digits.rglob("*"))
    run = vitreous("plan", digits, *SMALL, "--model.image_size=16", "--model.patch_size=4", "--budget=1h", "--json=-")
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert (sum(said["pictures"].values()), said["total_seconds"]) == (60, 3600)
    assert sorted(digits.rglob("*")) == before
    assert not Path("runs").exists()


def test_with_a_method_pretraining_is_planned(vitreous, digits):
    words = ("--method", "mae", "--model.image_size=16", "--model.patch_size=4", "--batch-size=16", "--json=-")
    run = vitreous("plan", digits, *SMALL, *words)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert said["batch_size"] == 16
    assert said["epochs"] > 0
    run = vitreous("plan", digits, "--method", "mae", "--aux.method=mae")
    assert run.returncode == 2
    assert "aux mae is for training on labels" in run.stderr


def test_of_a_run_in_stages_the_training_of_all_weights_is_planned(vitreous, digits):
    run = vitreous("plan", digits, "--device", "cpu", "--model.image_size=32", "--batch-size=8", "--json=-")
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert said["memory"]["weights"] > 4 * 2.9 * said["parameters"]  # weights, gradients, and a moment of Muon
    assert said["advice"][0].startswith("the run begins with heads on frozen features")


def test_a_table_of_unlabelled_images_is_never_overwritten(vitreous, digits, tmp_path):
    (tmp_path / "more.csv").write_text("path\na.png\n")
    words = ("--aux", "fixmatch", "--unlabelled", "more.csv", "--json", "more.csv", "--overwrite")
    run = vitreous("plan", digits, *words)
    assert run.returncode == 2
    assert "'more.csv' is an input of this command" in run.stderr
    assert (tmp_path / "more.csv").read_text() == "path\na.png\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "DATA is missing"),
        (("digits", "--epoch=2"), 2, "unknown option '--epoch'. Did you mean '--epochs'?"),
        (("digits", "--print-config"), 2, "remove them"),
        (("nowhere/",), 1, "nowhere"),
    ],
)
def test_usage_errors_are_one_line(vitreous, words, code, said):
    run = vitreous("plan", *words)
    assert (run.returncode, run.stdout) == (code, "")
    assert said in run.stderr
    assert run.stderr.count("\n") == 1
