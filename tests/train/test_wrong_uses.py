"""Mistakes of newcomers: each gives one line on stderr, or the right outcome.

Tests run the command in a process where that matters, else its entry point, since torch is imported already.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from forked import Forked, run_forked
from process_limits import files_of_at_most
from vitreous.checkpoint.model_file import load_model

COMMAND = str(Path(sys.executable).with_name("vitreous"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
QUICK = ("--model.width=16", "--model.depth=1", "--model.heads=2", "--model.mlp_dim=16", "--device=cpu")


def in_a_process(folder, *words) -> subprocess.CompletedProcess:
    return subprocess.run(
        [COMMAND, *map(str, words)],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture
def complaint(vitreous):
    """Return a function that runs a failing `vitreous train`, and returns its single line on stderr."""

    def line_of(code, *words) -> str:
        done = vitreous("train", *words)
        assert done.returncode == code, done.stdout + done.stderr
        return only_line(done.stdout, done.stderr)

    return line_of


def only_line(output: str, errors: str) -> str:
    """Return the single line on stderr, which begins with the name of the command."""
    lines = errors.splitlines()
    assert len(lines) == 1, errors
    assert lines[0].startswith("vitreous: ")
    assert "Traceback" not in errors + output
    return lines[0]


def make_images(folder, classes, count=12) -> Path:
    for label in classes:
        (folder / label).mkdir(parents=True)
        for n in range(count):
            Image.effect_noise((40, 30), 40 + n).save(folder / label / f"{n}.png")
    return folder


def test_a_folder_that_is_not_there(complaint, tmp_path):
    make_images(tmp_path / "photos", ["cats", "dogs"], 1)
    line = complaint(1, "photoss/")
    assert "photoss/" in line
    assert "Did you mean 'photos'?" in line


def test_a_misspelt_known_set(complaint):
    line = complaint(2, "cifar1o")
    assert "Did you mean 'cifar10'?" in line


def test_one_class_only(complaint, tmp_path):
    line = complaint(1, make_images(tmp_path / "photos", ["cats"]))
    assert "one class" in line
    assert "cats" in line


def test_no_images(complaint, tmp_path):
    for label in ("cats", "dogs"):
        (tmp_path / "photos" / label).mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "readme.txt").write_text("not an image")
    line = complaint(1, "photos")
    assert re.search(r"no (pictures|images)", line)


def test_a_patch_that_does_not_divide_the_image(complaint, tmp_path):
    line = complaint(2, "digits", "--model.patch_size", "3", "--model.stem", "patch")
    assert "is not a multiple of patch" in line
    assert "use an image size of" in line
    assert "or a patch size of" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["digits", "--epoch", "3"], "--epochs"),
        (["digits", "--optim.lrate", "3"], "--optim.lr"),
        (["digits", "--recipe", "digts"], "digits"),
        (["digits", "--model", "s/2"], "S/2"),
        (["digits", "--model.pool", "meen"], "mean"),
    ],
)
def test_a_misspelt_option_recipe_or_model(complaint, words, meant):
    assert f"Did you mean '{meant}'?" in complaint(2, *words)


def test_a_class_count_that_does_not_fit(complaint):
    line = complaint(2, "digits", "--model.num_classes", "7")
    assert "num_classes is 7, but digits has 10 classes" in line


def test_a_folder_that_holds_a_run(complaint, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"precious")
    line = complaint(2, "digits", "--out", "mine")
    assert "holds a run already" in line
    assert "--out" in line
    assert (tmp_path / "mine" / "model.safetensors").read_bytes() == b"precious"


def test_out_of_disk(complaint, tmp_path):
    """A limit of the file size acts like a full disk: a write fails after some bytes."""
    with files_of_at_most(100_000):  # recipe.yaml fits, the model file does not
        line = complaint(1, "digits", "--epochs", "1", "--device", "cpu")
    assert re.match(r"vitreous: cannot write 'runs/digits-1/model.safetensors': .*(large|space)", line)
    assert not list((tmp_path / "runs" / "digits-1").glob("model.safetensors"))


def test_the_folder_vanishes_during_training(tmp_path):
    process = Forked(tmp_path, "train", "digits", "--epochs", "2000", *QUICK)
    _await_epoch(process)
    while (tmp_path / "runs").exists():  # the run may be writing into it at that moment
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 1
    assert re.fullmatch(r"vitreous: cannot write .*runs/digits-1.*\n", errors), errors


def test_ctrl_c_leaves_a_usable_model_and_says_how_to_go_on(tmp_path):
    process = subprocess.Popen(
        [COMMAND, "train", "digits", "--epochs", "2000", *QUICK], cwd=tmp_path, env=ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    _await_epoch(process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    assert "Traceback" not in output + errors
    model, info = load_model(tmp_path / "runs" / "digits-1" / "model.safetensors")
    assert model.config.width == 16
    assert info.provenance["epoch"] >= 1
    assert "interrupted" in output
    again = re.search(r"continue +vitreous (train --config \S+recipe.yaml --out \S+ --resume)", output)
    assert again, output
    next_command = re.search(r"next +vitreous (predict .*)", output)
    assert next_command, output
    predicted = run_forked(tmp_path, *next_command[1].split())
    assert predicted.returncode == 0, predicted.stderr
    assert "example.png" in predicted.stdout


def _await_epoch(process) -> None:
    """Read the output until the first epoch is done."""
    deadline = time.monotonic() + 100
    for line in process.stdout:
        if line.startswith("epoch"):
            return
        assert time.monotonic() < deadline
    pytest.fail(f"the command ended before its first epoch: {process.stderr.read()}")


def test_compiling_without_a_compiler_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "CXX", str(tmp_path / "no-compiler"))  # of torch.compile on a CPU
    monkeypatch.setitem(ENVIRONMENT, "TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "nothing-compiled-before"))
    done = in_a_process(tmp_path, "train", "digits", "--epochs", "1", *QUICK, "--compile", "true")
    assert done.returncode == 1
    line = only_line(done.stdout, done.stderr)
    assert re.match(r"vitreous: torch.compile does not work here \(.*\): add --compile false\. ", line), line


def test_a_budget_ends_on_time(tmp_path):
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import vitreous.train.run"], env=ENVIRONMENT, check=True)
    start_up = time.monotonic() - began
    budget = round(min(max(12.0, 5 * start_up), 90.0))  # on a busy machine, start and exit took 3 times as long
    began = time.monotonic()
    done = in_a_process(tmp_path, "train", "digits", "--budget", f"{budget}s", "--device", "cpu")
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert 0.7 * budget < took < 1.5 * budget  # 3 % off when the machine does nothing else
    rates = [float(row.split(",")[2]) for row in (tmp_path / "runs/digits-1/metrics.csv").read_text().splitlines()[1:]]
    assert rates[-1] < 0.1 * max(rates)
