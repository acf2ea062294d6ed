"""Finished runs that get more epochs, and interrupted runs: their output and their files."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from forked import Forked
from vitreous.checkpoint.model_file import load_model
from vitreous.errors import CheckpointError, UsageError
from vitreous.evaluate.trust.calibration import fit_temperature
from vitreous.runs.state_file import read_state
from vitreous.train.loop.callbacks import WeightSelection
from vitreous.train.resume.signals import Signals, Stopped


def test_a_finished_run_goes_on_to_more_epochs_and_says_how_it_differs(tmp_path, runs):
    finished = runs.config(tmp_path / "run", epochs=2)
    runs.train(finished)
    report = (tmp_path / "run" / "report.json").read_bytes()
    asked = dataclasses.replace(finished, epochs=4)
    result, said = runs.train(asked, resume=True)
    assert re.search(r"last.ckpt: continues from the end of training, epoch 2\n", said)
    assert re.search(
        r"longer +from 2 to 4 epochs: the learning rate, which had come down to \S+, continues from \S+, so the result "
        r"is not that of a run of 4 epochs from the start\n",
        said,
    )
    assert result.epochs == 4
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["1", "2", "3", "4"]
    assert (tmp_path / "run" / "report-2-epochs.json").read_bytes() == report
    training = json.loads((tmp_path / "run" / "report.json").read_text())["training"]
    assert (training["epochs"], training["extended_from"]) == (4, [2])
    assert load_model(result.model)[1].provenance["extended_from"] == [2]
    recipe = (tmp_path / "run" / "recipe.yaml").read_text()
    assert "\nepochs: 4\n" in recipe
    assert "\n# extended: was finished with 2 epochs" in recipe
    assert "is finished" in runs.train(asked, resume=True)[1]
    with pytest.raises(UsageError, match="epochs was 4, now 3"):
        runs.train(dataclasses.replace(finished, epochs=3), resume=True)
    for name in ("last.ckpt", "previous.ckpt"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(UsageError, match=r"no checkpoint to resume from.* `vitreous finetune DATA --from \S+run`"):
        runs.train(dataclasses.replace(finished, epochs=6), resume=True)
    assert (tmp_path / "run" / "report.json").exists()


def test_a_longer_run_that_is_killed_ends_as_one_that_is_not(tmp_path, runs, selected):
    ends = []
    for kills in ((), (9, 11, 13, 14)):
        finished = runs.config(
            tmp_path / f"run-{len(kills)}", epochs=2, patience=2, ema=0.9, select="top1"
        )  # of 5 steps each
        with pytest.raises(runs.Killed):
            runs.train(finished)
        asked = dataclasses.replace(finished, epochs=4)
        for step in kills:
            runs.broken_off(asked, step + 1, resume=True)
        with pytest.raises(runs.Killed):
            runs.train(asked, resume=True)
        state = read_state(Path(asked.out) / "last.ckpt")
        assert state["extended"] == [2]
        ends.append({name: state[name] for name in ("model", "average", "optimizer", "best", "risen")})
    assert str(ends[0]) == str(ends[1])
    assert all((ends[0]["model"][name] == ends[1]["model"][name]).all() for name in ends[0]["model"])


def test_only_a_finished_run_of_fewer_epochs_gets_more(tmp_path, runs, selected):
    asked = runs.config(tmp_path / "run", epochs=2)
    runs.broken_off(asked, 3)
    for change in ({"epochs": 4}, {"epochs": 1}, {"epochs": 4, "seed": 1}, {"steps": 30}):
        with pytest.raises((CheckpointError, UsageError), match="different settings"):
            runs.train(dataclasses.replace(asked, **change), resume=True)


def test_an_interrupted_run_is_calibrated(tmp_path, runs, monkeypatch):
    original = WeightSelection.on_train_epoch_end

    def end(self, trainer, pl_module):
        original(self, trainer, pl_module)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(WeightSelection, "on_train_epoch_end", end)
    result, said = runs.train(runs.config(tmp_path / "run"))
    assert result.exit_code == 143
    assert "terminated: the best weights" in said
    best = read_state(tmp_path / "run" / "last.ckpt")["best"]
    expected = fit_temperature(best["logits"], best["labels"])
    assert expected != 1.0
    assert load_model(result.model)[1].temperature == expected


SLOW = """
import sys, time
from pathlib import Path
from vitreous.cli.main import main
from vitreous.train.resume import saving

write = saving.write_state

def slowly(*given, **named):
    while Path("slow").exists():
        time.sleep(0.05)
    write(*given, **named)

saving.write_state = slowly
words = ["train", "digits", "--epochs", "2000", "--device", "cpu", "--out", "run", "--checkpoint_every", "0.02s"]
sys.exit(main(words))
"""


def test_ctrl_c_twice_says_what_is_kept_and_how_to_go_on(tmp_path):
    process = Forked(tmp_path, code=SLOW)
    for line in process.stdout:
        if line.startswith("epoch") and (tmp_path / "run" / "previous.ckpt").exists():
            break
    (tmp_path / "slow").touch()  # the first Ctrl-C is still being handled when the second comes
    process.send_signal(signal.SIGINT)
    time.sleep(0.15)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "vitreous: interrupted\n")
    assert re.search(r"interrupted twice, so nothing more is saved: run has a checkpoint of epoch \d+", output)
    assert "\ncontinue  vitreous train --config run/recipe.yaml --out run --resume\n" in output
    assert not (tmp_path / "run" / "run.lock").exists()


class Dying:
    """Sends a signal from its destructor, where Python prints an exception and ignores it."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_a_signal_in_a_destructor_is_not_lost(capsys):
    def interrupted():
        Dying()
        time.sleep(5)

    with pytest.raises(Stopped), Signals().handled():
        interrupted()
    assert capsys.readouterr().err == ""
