"""Resuming after a kill, a signal or a failure ends in the bits of an undisturbed run; and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from forked import Forked, run_forked
from process_limits import files_of_at_most
from vitreous.data.config import AugmentConfig, DataConfig
from vitreous.errors import CheckpointError, OutputError, TrainingError, UsageError
from vitreous.model.config import ViTConfig
from vitreous.recipes import recipe
from vitreous.runs.folder import changed_settings
from vitreous.runs.lock import NAME, locked
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.auxiliary.config import AuxConfig
from vitreous.train.config import OptimConfig, RunConfig
from vitreous.train.console import Display
from vitreous.train.loop.module import VitModule
from vitreous.train.loop.out_of_memory import is_out_of_memory, more_parts
from vitreous.train.loop.progress import Budget
from vitreous.train.recipe_file import recipe_text
from vitreous.train.resume import saving
from vitreous.train.resume.checkpoint import Checkpoint
from vitreous.train.resume.saving import load_newest
from vitreous.train.run import run

ROOT = Path(__file__).resolve().parents[2]
TINY = ViTConfig(image_size=8, patch_size=4, in_channels=1, num_classes=10, width=16, depth=2, heads=2, mlp_dim=32)


def load_benchmark(name: str):
    """A file of benchmarks/resume/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / "resume" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


same_run = load_benchmark("same_run")
differences, timeless, unlike = same_run.differences, same_run.timeless, same_run.unlike


def config(out, **options) -> RunConfig:
    model = {"model": dataclasses.replace(TINY, **options.pop("model", {}))}
    plain = {
        "out": str(out),
        "epochs": 3,
        "device": "cpu",
        "ema": 0.9,
        "optim": OptimConfig(lr=3e-3),
        "batch_size": 128,
    }
    return dataclasses.replace(recipe("digits"), **(plain | model | options))


def train(run_config: RunConfig, resume: bool = False):
    """Run in this process; return the result and the printed lines."""
    text = io.StringIO()
    result = run(run_config, view=Display(Console(file=text, soft_wrap=True, width=200)), resume=resume)
    return result, text.getvalue()


class Killed(BaseException):
    """Stands for a kill: nothing in the run handles it."""


@pytest.fixture
def killed_after(monkeypatch):
    """Make runs save after a number of steps, wait for the disk, and end there as if killed."""
    original = Checkpoint.on_train_batch_end

    def arrange(steps: int) -> None:
        def end(self, trainer, pl_module, outputs, batch, batch_idx):
            original(self, trainer, pl_module, outputs, batch, batch_idx)
            if trainer.global_step == steps and (batch_idx + 1) % pl_module.accumulate == 0:
                self.save(wait=True)
                raise Killed

        monkeypatch.setattr(Checkpoint, "on_train_batch_end", end)

    yield arrange
    monkeypatch.undo()


MIXED = {"augment": AugmentConfig(flip=0.0, mixup=0.3, cutmix=0.5, resized_crop=0.6), "accumulate": 4}
CASES = {
    "muon": {  # the stem has batch norm
        "optim": OptimConfig(name="muon", lr=3e-3),
        "model": {"stem": "conv", "dropout": 0.1, "block": {"drop_path": 0.2}},
    },
    "parts": {**MIXED, "select": "log_loss", "class_weights": "inverse"},
    "patience": {"epochs": 40, "patience": 2, "select": "top1", "optim": OptimConfig(name="sgd", lr=1e-9)},
    "steps": {"steps": 14, "select": "macro_f1"},
}


@pytest.fixture
def only_training(monkeypatch):
    """Make runs end after training; other tests cover what follows."""

    def end(this):
        raise Killed

    monkeypatch.setattr("vitreous.train.run.select_weights", end)


@pytest.fixture(scope="module")
def undisturbed_state(tmp_path_factory):
    """Give the last state of a case that was never killed, by its name."""
    states = {}

    def state_of(case):
        if case not in states:
            run_dir = tmp_path_factory.mktemp("undisturbed") / case
            with pytest.raises(Killed):
                train(config(run_dir, **CASES[case]))
            states[case] = read_state(run_dir / "last.ckpt")
        return states[case]

    return state_of


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        *(("muon", 1), ("muon", 10), ("muon", 20)),  # the very first step, the last of an epoch
        *(("parts", 5), ("parts", 22), ("parts", 30), ("patience", 13), ("steps", 14)),  # the very last step
    ],
)
def test_a_resumed_training_ends_in_the_same_bits(
    tmp_path, killed_after, only_training, undisturbed_state, case, steps
):
    undisturbed = undisturbed_state(case)
    run_config = config(tmp_path / "broken", **CASES[case])
    killed_after(steps)
    with pytest.raises(Killed):
        train(run_config)
    state = load_newest(tmp_path / "broken", pytest.fail)[1]
    assert not state.trained
    assert state.epoch * 10 + state.step == steps
    killed_after(-1)
    with pytest.raises(Killed):
        train(run_config, resume=True)
    resumed = read_state(tmp_path / "broken" / "last.ckpt")
    assert resumed["trained"]
    assert unlike(timeless(undisturbed), timeless(resumed), "state") == []
    with (tmp_path / "broken" / "metrics.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == [str(row["epoch"]) for row in undisturbed["history"]]


def test_a_step_that_fails_leaves_no_trace(tmp_path, monkeypatch, only_training, undisturbed_state):
    undisturbed = undisturbed_state("muon")  # with batch norm, which the forward pass updates
    run_config = config(tmp_path / "broken", **CASES["muon"])
    original, calls = VitModule.manual_backward, []

    def fail(self, loss):
        calls.append(loss)
        if len(calls) == 6:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
        original(self, loss)

    with monkeypatch.context() as patched:
        patched.setattr(VitModule, "manual_backward", fail)
        with pytest.raises(TrainingError, match="a data loader worker exited unexpectedly"):
            train(run_config)
    assert read_state(tmp_path / "broken" / "last.ckpt")["step"] == 5
    with pytest.raises(Killed):
        train(run_config, resume=True)
    assert unlike(timeless(undisturbed), timeless(read_state(tmp_path / "broken" / "last.ckpt")), "state") == []


def test_a_run_killed_in_each_phase_after_training_resumes(tmp_path, monkeypatch):
    run_config = config(tmp_path / "whole", epochs=2)
    train(run_config)
    broken = dataclasses.replace(run_config, out=str(tmp_path / "broken"))

    def end(*_, **__):
        raise Killed

    for function in ("choose_temperature", "test_once"):
        with monkeypatch.context() as patched:
            patched.setattr(f"vitreous.train.run.{function}", end)
            with pytest.raises(Killed):
                train(broken, resume=True)
    with monkeypatch.context() as patched:
        patched.setattr("vitreous.report.run_report.write_report", end)
        with pytest.raises(Killed):
            train(broken, resume=True)
    _, said = train(broken, resume=True)
    assert "continues from the end of training" in said
    assert differences(tmp_path / "whole", tmp_path / "broken") == []
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "broken").iterdir()}
    result, said = train(broken, resume=True)
    assert "is finished" in said
    assert result.epochs == 2
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "broken").iterdir()} == before
    report = json.loads((tmp_path / "broken" / "report.json").read_text())
    report["data"]["fingerprint"] = "of others"
    (tmp_path / "broken" / "report.json").write_text(json.dumps(report))
    with pytest.raises(CheckpointError, match="a finished run on other images or labels"):
        train(broken, resume=True)


def test_killed_processes_end_in_the_same_bits(tmp_path):
    program = str(ROOT / "benchmarks" / "resume" / "kill_test.py")
    code = f"import runpy; runpy.run_path({program!r}, run_name='__main__')"
    done = run_forked(tmp_path, "--kills", "2", "--only", "steps", code=code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| steps | 2 |" in done.stdout


def test_settings_that_affect_the_result_must_not_change(tmp_path, killed_after, monkeypatch):
    run_config = config(tmp_path / "run")
    killed_after(3)
    with pytest.raises(Killed):
        train(run_config)
    monkeypatch.undo()
    other = dataclasses.replace(run_config, optim=OptimConfig(lr=1e-3), epochs=5)
    with pytest.raises(UsageError, match=r"optim.lr was 0.003, now 0.001; epochs was 3, now 5"):
        train(other, resume=True)
    with pytest.raises(UsageError, match=r"holds a run already .*--resume"):
        train(run_config)
    state = read_state(tmp_path / "run" / "last.ckpt")
    write_state(tmp_path / "run" / "last.ckpt", {**state, "identity": {**state["identity"], "fingerprint": "other"}})
    with pytest.raises(
        CheckpointError, match=r"last.ckpt' belongs to a run with different settings: the images or their"
    ):
        train(run_config, resume=True)
    allowed = dataclasses.replace(
        run_config, checkpoint_every="1m", checkpoint_epochs=1, loggers=("tensorboard",), out="x"
    )
    assert changed_settings(recipe_text(run_config), recipe_text(allowed)) == []
    assert changed_settings(recipe_text(run_config), recipe_text(dataclasses.replace(run_config, compile=True))) == []


def test_without_out_the_newest_run_with_the_same_settings_resumes(tmp_path, monkeypatch, killed_after):
    monkeypatch.chdir(tmp_path)
    run_config = dataclasses.replace(config("x"), out=None, epochs=1)
    other = dataclasses.replace(run_config, seed=1)
    assert train(run_config, resume=True)[0].folder == Path("runs/digits-1")  # none exists: starts a new one
    killed_after(2)
    for each in (run_config, other):
        with pytest.raises(Killed):
            train(each)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    result, said = train(run_config, resume=True)
    assert result.folder == Path("runs/digits-2")
    assert "continues from epoch 1, step 2" in said
    assert sorted(path.name for path in Path("runs").iterdir()) == ["digits-1", "digits-2", "digits-3"]
    assert "is finished" in train(run_config, resume=True)[1]


def test_a_state_round_trips(tmp_path):
    content = {
        "tensors": [
            torch.randn(3, 2),
            torch.tensor(7),
            torch.empty(0, 4),
            torch.randn(2).bfloat16(),
            torch.tensor(True),
        ],
        "rest": {"text": "é", "none": None, "numbers": [1, 0.1, float("inf"), -(2**40)], "flag": True},
    }
    write_state(tmp_path / "state", content)
    back = read_state(tmp_path / "state")
    assert back["rest"] == content["rest"]
    for one, other in zip(back["tensors"], content["tensors"], strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_every_changed_byte_of_a_state_is_detected(tmp_path):
    path = tmp_path / "state"
    write_state(path, {"weights": torch.arange(20.0), "step": 3})
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        with pytest.raises(CheckpointError):
            read_state(path)
        path.write_bytes(good[:position])
        with pytest.raises(CheckpointError):
            read_state(path)
    path.write_bytes(good + b"\0")
    with pytest.raises(CheckpointError):
        read_state(path)


@pytest.mark.parametrize("spoil", [lambda data: data[: len(data) // 2], lambda data: data[:-40] + b"?" + data[-39:]])
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_is_used(tmp_path, monkeypatch, killed_after, spoil):
    run_config = config(tmp_path / "whole", epochs=2, checkpoint_epochs=1)
    train(run_config)
    broken = dataclasses.replace(run_config, out=str(tmp_path / "broken"))
    killed_after(12)
    with pytest.raises(Killed):
        train(broken)
    monkeypatch.undo()
    last = tmp_path / "broken" / "last.ckpt"
    last.write_bytes(spoil(last.read_bytes()))
    _, said = train(broken, resume=True)
    assert "last.ckpt' is damaged or truncated" in said
    assert "continues from the start of epoch 2" in said
    assert differences(tmp_path / "whole", tmp_path / "broken") == []
    for name in (saving.LAST, saving.PREVIOUS):
        (tmp_path / "broken" / name).write_bytes(b"")
    (tmp_path / "broken" / "report.json").unlink()
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        train(broken, resume=True)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path):
    path = tmp_path / "last.ckpt"
    write_state(path, {"step": 1})
    with files_of_at_most(4096), pytest.raises(OutputError, match="cannot write"):
        write_state(path, {"weights": torch.zeros(9999)}, keep=path.with_name("last.ckpt.old"))
    assert read_state(path) == {"step": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_checkpoint_that_cannot_be_written_stops_the_run(tmp_path, monkeypatch):
    run_config = config(tmp_path / "run", checkpoint_every="0.001s")
    monkeypatch.setattr(saving, "write_state", lambda *_, **__: (_ for _ in ()).throw(OutputError("disk full")))
    with pytest.raises(OutputError, match="disk full"):
        train(run_config)


HOLDER = """
import sys, time
from pathlib import Path
from vitreous.runs.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_run_directory_is_locked_until_its_run_ends(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(TrainingError, match=rf"in use by a run on .*, process {holder.pid}, since"), locked(tmp_path):
        pytest.fail("locked twice")
    holder.kill()
    holder.communicate()
    assert (tmp_path / NAME).exists()
    with locked(tmp_path) as lock:
        assert f"process {holder.pid}" in lock.previous_holder
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
        with pytest.raises(TrainingError, match="of this process"), locked(tmp_path):
            pytest.fail("locked twice")
    assert list(tmp_path.iterdir()) == []


LIVING = """
import json, os, sys, time
for beats in range(99):
    with open(sys.argv[1] + ".new", "w") as file:  # a holder replaces all of it with one write: it is never seen empty
        json.dump({"host": "elsewhere", "beats": beats}, file)
    os.replace(file.name, sys.argv[1])
    time.sleep(0.2)
"""


def test_a_lock_of_another_machine_counts_while_it_is_updated(tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.runs.lock._PATIENCE", 2.5)
    file = tmp_path / NAME
    file.write_text(json.dumps({"host": "elsewhere", "pid": 1, "since": "then", "beats": 1}))
    with locked(tmp_path) as lock:
        assert "elsewhere" in lock.previous_holder
    living = subprocess.Popen([sys.executable, "-c", LIVING, file])
    try:
        while not file.exists():
            time.sleep(0.05)
        with pytest.raises(TrainingError, match="elsewhere"), locked(tmp_path):
            pytest.fail("locked twice")
    finally:
        living.kill()
        living.wait()


def test_sigterm_saves_and_says_how_to_resume(tmp_path):  # Ctrl-C: test_wrong_uses.py
    words = ["digits", "--epochs", "60", "--device", "cpu", "--out", "run", "--model.depth", "1", "--batch_size", "256"]
    process = Forked(tmp_path, "train", *words)
    for line in process.stdout:
        if line.startswith("epoch"):
            break
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (143, "")
    assert "terminated: the best weights so far" in output
    assert "continue  vitreous train --config run/recipe.yaml --out run --resume" in output
    state = load_newest(tmp_path / "run", pytest.fail)[1]
    assert state.epoch >= 1
    assert not (tmp_path / "run" / NAME).exists()


def test_a_resumed_budget_counts_the_time_used(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first = Budget(started=90.0, seconds=60.0, reserve=10.0)  # training from 100 to 140
    first.begin()
    now = 120.0
    assert first.progress(0) == 0.5
    state = first.state()
    now = 1000.0
    second = Budget(started=995.0, seconds=60.0, reserve=3.0)  # 30 s used before the resume, 5 s since
    second.restore(state)
    second.begin()
    assert second.progress(0) == 0.5  # no jump
    now = 1007.5
    assert second.progress(1) == pytest.approx(0.75)
    now = 1015.0
    assert second.progress(2) == 1.0
    assert second.over(2)


def test_a_step_that_does_not_fit_gets_more_parts():
    assert [more_parts(96, n) for n in (1, 2, 4, 8, 32, 48, 96)] == [2, 4, 8, 16, 96, 96, None]
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("could not create a primitive. Run workload with ..."))
    assert not is_out_of_memory(RuntimeError("could not create a primitive descriptor for the inner product forward"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)  # a real error of the CPU's allocator
    assert is_out_of_memory(caught.value)


SHORT_OF_MEMORY = """
import resource, sys
from vitreous.cli.main import main
from vitreous.train import run
from vitreous.train import setup as prepare
from vitreous.train.loop import module

# The limit is on address space, where memory that the allocator keeps would count twice.
module.keep_freed_memory = prepare.keep_freed_memory = lambda: False
fit = run.fit

def limited(this):
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[1]) * 2**20, resource.RLIM_INFINITY))
    fit(this)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

run.fit = limited
sys.exit(main(sys.argv[2:]))
"""


def test_a_step_that_does_not_fit_is_computed_in_parts(tmp_path):
    words = ["train", "digits", "--device", "cpu", "--steps", "1", "--batch_size", "256", "--model.image_size", "64"]
    words += ["--model.stem", "linear"]  # a convolution would hit the limit inside oneDNN
    short = run_forked(tmp_path, 700, *words, "--out", "short", code=SHORT_OF_MEMORY)
    assert short.returncode == 0, short.stdout + short.stderr
    assert "memory    a step of 256 images does not fit" in short.stdout
    parts = read_state(tmp_path / "short" / "last.ckpt")["parts"]
    assert parts > 1
    words += ["--out", "ample", "--accumulate", str(parts)]
    run_forked(tmp_path, 100_000, *words, code=SHORT_OF_MEMORY)  # so that both have the same number of threads
    first, second = (read_state(tmp_path / name / "last.ckpt")["model"] for name in ("short", "ample"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_option_of_a_part_is_named_and_a_new_one_is_tolerated(tmp_path):
    before = recipe_text(config(tmp_path))
    now = recipe_text(dataclasses.replace(config(tmp_path), model=ViTConfig(block={"drop_path": 0.1})))
    assert "model.block.drop_path was 0.0, now 0.1" in changed_settings(before, now)
    older = "".join(line for line in before.splitlines(True) if "checkpoint:" not in line)
    assert older != before
    assert changed_settings(older, before) == changed_settings(before, older) == []


def test_a_recipe_names_its_lists_and_sources_wherever_it_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more").mkdir()
    (tmp_path / "out.txt").write_text("")
    data, aux = DataConfig("digits", exclude="out.txt"), AuxConfig("mae", unlabelled="more")
    text = recipe_text(config(tmp_path, data=data, aux=aux))
    assert f'exclude: "{tmp_path / "out.txt"}"\n' in text
    assert f'unlabelled: "{tmp_path / "more"}"\n' in text


def test_a_run_of_an_earlier_version_is_refused_with_the_reason(tmp_path):
    (tmp_path / "run").mkdir()
    recipe = recipe_text(config(tmp_path / "run"))
    flat = re.sub(r"  stem:\n    kind: (.*)\n(    .*\n)*", r"  stem: \1\n", recipe)
    assert flat != recipe
    (tmp_path / "run" / "recipe.yaml").write_text(flat)
    with pytest.raises(UsageError, match="was written by an earlier version of vitreous"):
        train(config(tmp_path / "run"), resume=True)
