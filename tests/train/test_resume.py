"""Going on after a kill, a signal or a failure: to the last bit what an undisturbed run gives; and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from vitreous.data.config import AugmentConfig
from vitreous.errors import CheckpointError, OutputError, TrainingError, UsageError
from vitreous.model.config import ViTConfig
from vitreous.recipes import recipe
from vitreous.runs.folder import differing
from vitreous.runs.lock import NAME, locked
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.config import OptimConfig, RunConfig
from vitreous.train.console import View
from vitreous.train.module import VitModule
from vitreous.train.out_of_memory import is_out_of_memory, more_parts
from vitreous.train.progress import Budget
from vitreous.train.recipe_file import recipe_text
from vitreous.train.resume import saving
from vitreous.train.resume.saving import Checkpoint, newest
from vitreous.train.run import run

ROOT = Path(__file__).resolve().parents[2]
TINY = ViTConfig(image_size=8, patch_size=4, in_channels=1, num_classes=10, width=16, depth=2, heads=2, mlp_dim=32)


def load_benchmark(name: str):
    """A file of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
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


def train(asked: RunConfig, resume: bool = False):
    """A run in this process; its result and what it said."""
    text = io.StringIO()
    result = run(asked, view=View(Console(file=text, soft_wrap=True, width=200)), resume=resume)
    return result, text.getvalue()


class Killed(BaseException):
    """Stands for the end of the process: nothing of the run hears of it."""


@pytest.fixture
def killed_after(monkeypatch):
    """Lets runs save after so many steps, wait for the disk, and end there."""
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
        "model": {"stem": "conv", "dropout": 0.1, "drop_path": 0.2},
    },
    "parts": {**MIXED, "select": "log_loss", "class_weights": "inverse"},
    "patience": {"epochs": 40, "patience": 2, "select": "top1", "optim": OptimConfig(name="sgd", lr=1e-9)},
    "steps": {"steps": 14, "select": "macro_f1"},
}


@pytest.fixture
def only_training(monkeypatch):
    """Lets runs end with their training: what follows is in other tests."""

    def end(this):
        raise Killed

    monkeypatch.setattr("vitreous.train.run._select", end)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The last state of a case that was never killed, by its name."""
    found = {}

    def of(case):
        if case not in found:
            folder = tmp_path_factory.mktemp("whole") / case
            with pytest.raises(Killed):
                train(config(folder, **CASES[case]))
            found[case] = read_state(folder / "last.ckpt")
        return found[case]

    return of


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        *(("muon", 1), ("muon", 10), ("muon", 20)),  # the first step of all, the last of an epoch
        *(("parts", 5), ("parts", 22), ("parts", 30), ("patience", 13), ("steps", 14)),  # the last of all
    ],
)
def test_a_resumed_training_ends_in_the_same_bits(tmp_path, killed_after, only_training, whole, case, steps):
    undisturbed = whole(case)
    asked = config(tmp_path / "broken", **CASES[case])
    killed_after(steps)
    with pytest.raises(Killed):
        train(asked)
    state = newest(tmp_path / "broken", pytest.fail)[1]
    assert not state.trained
    assert state.epoch * 10 + state.step == steps
    killed_after(-1)
    with pytest.raises(Killed):
        train(asked, resume=True)
    resumed = read_state(tmp_path / "broken" / "last.ckpt")
    assert resumed["trained"]
    assert unlike(timeless(undisturbed), timeless(resumed), "state") == []
    with (tmp_path / "broken" / "metrics.csv").open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == [str(row["epoch"]) for row in undisturbed["history"]]


def test_a_step_that_broke_off_leaves_no_trace(tmp_path, monkeypatch, only_training, whole):
    undisturbed = whole("muon")  # with batch norm, which counts in the forward pass
    asked = config(tmp_path / "broken", **CASES["muon"])
    original, calls = VitModule.manual_backward, []

    def fail(self, loss):
        calls.append(loss)
        if len(calls) == 6:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
        original(self, loss)

    with monkeypatch.context() as patched:
        patched.setattr(VitModule, "manual_backward", fail)
        with pytest.raises(TrainingError, match="a process that reads pictures ended"):
            train(asked)
    assert read_state(tmp_path / "broken" / "last.ckpt")["step"] == 5
    with pytest.raises(Killed):
        train(asked, resume=True)
    assert unlike(timeless(undisturbed), timeless(read_state(tmp_path / "broken" / "last.ckpt")), "state") == []


def test_a_run_ended_within_each_phase_that_follows_training_goes_on(tmp_path, monkeypatch):
    asked = config(tmp_path / "whole", epochs=2)
    train(asked)
    broken = dataclasses.replace(asked, out=str(tmp_path / "broken"))

    def end(*_, **__):
        raise Killed

    for place in ("proven_temperature", "_test_once"):
        with monkeypatch.context() as patched:
            patched.setattr(f"vitreous.train.run.{place}", end)
            with pytest.raises(Killed):
                train(broken, resume=True)
    with monkeypatch.context() as patched:
        patched.setattr("vitreous.train.results.write_report", end)
        with pytest.raises(Killed):
            train(broken, resume=True)
    _, said = train(broken, resume=True)
    assert "goes on from the end of training" in said
    assert differences(tmp_path / "whole", tmp_path / "broken") == []
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "broken").iterdir()}
    result, said = train(broken, resume=True)
    assert "is finished" in said
    assert result.epochs == 2
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "broken").iterdir()} == before


def test_killed_processes_end_in_the_same_bits():
    command = [sys.executable, ROOT / "benchmarks" / "kill_test.py", "--kills", "3", "--only", "steps"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| steps | 3 |" in done.stdout


def test_other_settings_are_refused_and_free_ones_are_not(tmp_path, killed_after, monkeypatch):
    asked = config(tmp_path / "run")
    killed_after(3)
    with pytest.raises(Killed):
        train(asked)
    monkeypatch.undo()
    other = dataclasses.replace(asked, optim=OptimConfig(lr=1e-3), epochs=5)
    with pytest.raises(UsageError, match=r"optim.lr was 0.003, now 0.001; epochs was 3, now 5"):
        train(other, resume=True)
    with pytest.raises(UsageError, match=r"holds a run already .*--resume"):
        train(asked)
    state = read_state(tmp_path / "run" / "last.ckpt")
    write_state(tmp_path / "run" / "last.ckpt", {**state, "identity": {**state["identity"], "fingerprint": "other"}})
    with pytest.raises(CheckpointError, match=r"last.ckpt' is of a run with other settings: the pictures"):
        train(asked, resume=True)
    free = dataclasses.replace(asked, checkpoint_every="1m", checkpoint_epochs=1, loggers=("tensorboard",), out="x")
    assert differing(recipe_text(asked), recipe_text(free)) == []
    assert differing(recipe_text(asked), recipe_text(dataclasses.replace(asked, compile=True))) == []


def test_without_a_folder_the_newest_run_of_the_same_settings_goes_on(tmp_path, monkeypatch, killed_after):
    monkeypatch.chdir(tmp_path)
    asked = dataclasses.replace(config("x"), out=None, epochs=1)
    other = dataclasses.replace(asked, seed=1)
    assert train(asked, resume=True)[0].folder == Path("runs/digits-1")  # nothing there: from the beginning
    killed_after(2)
    for each in (asked, other):
        with pytest.raises(Killed):
            train(each)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    result, said = train(asked, resume=True)
    assert result.folder == Path("runs/digits-2")
    assert "goes on from epoch 1, step 2" in said
    assert sorted(path.name for path in Path("runs").iterdir()) == ["digits-1", "digits-2", "digits-3"]
    assert "is finished" in train(asked, resume=True)[1]


def test_a_state_comes_back_as_it_went(tmp_path):
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


def test_every_change_of_a_state_is_noticed(tmp_path):
    path = tmp_path / "state"
    write_state(path, {"weights": torch.arange(20.0), "step": 3})
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(CheckpointError):
            read_state(path)
        path.write_bytes(good[:place])
        with pytest.raises(CheckpointError):
            read_state(path)
    path.write_bytes(good + b"\0")
    with pytest.raises(CheckpointError):
        read_state(path)


@pytest.mark.parametrize("spoil", [lambda data: data[: len(data) // 2], lambda data: data[:-40] + b"?" + data[-39:]])
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(tmp_path, monkeypatch, killed_after, spoil):
    asked = config(tmp_path / "whole", epochs=2, checkpoint_epochs=1)
    train(asked)
    broken = dataclasses.replace(asked, out=str(tmp_path / "broken"))
    killed_after(12)
    with pytest.raises(Killed):
        train(broken)
    monkeypatch.undo()
    last = tmp_path / "broken" / "last.ckpt"
    last.write_bytes(spoil(last.read_bytes()))
    _, said = train(broken, resume=True)
    assert "last.ckpt' is damaged or cut off" in said
    assert "goes on from the start of epoch 2" in said
    assert differences(tmp_path / "whole", tmp_path / "broken") == []
    for name in (saving.LAST, saving.PREVIOUS):
        (tmp_path / "broken" / name).write_bytes(b"")
    (tmp_path / "broken" / "report.json").unlink()
    with pytest.raises(CheckpointError, match="nothing to go on from"):
        train(broken, resume=True)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    path = tmp_path / "last.ckpt"
    write_state(path, {"step": 1})
    code = """
import resource, signal, sys, torch
from pathlib import Path
from vitreous.errors import OutputError
from vitreous.runs.state_file import write_state
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_state(Path(sys.argv[1]), {"weights": torch.zeros(9999)}, keep=Path(sys.argv[1] + ".old"))
except OutputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert "cannot write" in done.stdout
    assert read_state(path) == {"step": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_checkpoint_that_cannot_be_written_stops_the_run(tmp_path, monkeypatch):
    asked = config(tmp_path / "run", checkpoint_every="0.001s")
    monkeypatch.setattr(saving, "write_state", lambda *_, **__: (_ for _ in ()).throw(OutputError("disk full")))
    with pytest.raises(OutputError, match="disk full"):
        train(asked)


HOLDER = """
import sys, time
from pathlib import Path
from vitreous.runs.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_is_one_runs_until_that_ends(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(TrainingError, match=rf"in use by a run on .*, process {holder.pid}, since"), locked(tmp_path):
        pytest.fail("two hold it")
    holder.kill()
    holder.communicate()
    assert (tmp_path / NAME).exists()
    with locked(tmp_path) as lock:
        assert f"process {holder.pid}" in lock.taken_over
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
        with pytest.raises(TrainingError, match="of this process"), locked(tmp_path):
            pytest.fail("two hold it")
    assert list(tmp_path.iterdir()) == []


LIVING = """
import json, sys, time
for beats in range(99):
    open(sys.argv[1], "w").write(json.dumps({"host": "elsewhere", "beats": beats}))
    time.sleep(0.2)
"""


def test_a_lock_of_another_machine_counts_while_it_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.runs.lock._PATIENCE", 2.5)
    file = tmp_path / NAME
    file.write_text(json.dumps({"host": "elsewhere", "pid": 1, "since": "then", "beats": 1}))
    with locked(tmp_path) as lock:
        assert "elsewhere" in lock.taken_over
    living = subprocess.Popen([sys.executable, "-c", LIVING, file])
    try:
        while not file.exists():
            time.sleep(0.05)
        with pytest.raises(TrainingError, match="elsewhere"), locked(tmp_path):
            pytest.fail("two hold it")
    finally:
        living.kill()
        living.wait()


def test_sigterm_saves_and_says_how_to_go_on(tmp_path):  # Ctrl-C: test_wrong_uses.py
    words = ["digits", "--epochs", "60", "--device", "cpu", "--out", "run", "--model.depth", "1", "--batch_size", "256"]
    command = [sys.executable, "-m", "vitreous", "train", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("epoch"):
            break
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=100)
    assert (process.returncode, errors) == (143, "")
    assert "terminated: the best weights so far" in output
    assert "go on     vitreous train --config run/recipe.yaml --out run --resume" in output
    state = newest(tmp_path / "run", pytest.fail)[1]
    assert state.epoch >= 1
    assert not (tmp_path / "run" / NAME).exists()


def test_a_budget_goes_on_by_the_time_used(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first = Budget(started=90.0, seconds=60.0, reserve=10.0)  # training from 100 to 140
    first.begin()
    now = 120.0
    assert first.progress(0) == 0.5
    state = first.state()
    now = 1000.0
    second = Budget(started=995.0, seconds=60.0, reserve=3.0)  # 30 s were used before, 5 s by now
    second.restore(state)
    second.begin()
    assert second.progress(0) == 0.5  # no jump
    now = 1007.5
    assert second.progress(1) == pytest.approx(0.75)
    now = 1015.0
    assert second.progress(2) == 1.0
    assert second.over(2)


def test_what_does_not_fit_is_cut_into_parts_that_add_up():
    assert [more_parts(96, n) for n in (1, 2, 4, 8, 32, 48, 96)] == [2, 4, 8, 16, 96, 96, None]
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("could not create a primitive. Run workload with ..."))
    assert not is_out_of_memory(RuntimeError("could not create a primitive descriptor for the inner product forward"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)  # a real one, of the CPU's allocator
    assert is_out_of_memory(caught.value)


SHORT_OF_MEMORY = """
import resource, sys
from vitreous.cli.main import main
from vitreous.train import module, run
from vitreous.train import setup as prepare

# The limit counts addresses: what is kept for later would count twice.
module.keep_freed_memory = prepare.keep_freed_memory = lambda: False
fit = run._fit

def limited(this):
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[1]) * 2**20, resource.RLIM_INFINITY))
    fit(this)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

run._fit = limited
sys.exit(main(sys.argv[2:]))
"""


def test_a_step_that_does_not_fit_goes_on_in_parts(tmp_path):
    words = ["train", "digits", "--device", "cpu", "--steps", "1", "--batch_size", "256", "--model.image_size", "64"]
    words += ["--model.stem", "linear"]  # convolutions meet the limit in oneDNN, whose own needs are large here
    command = [sys.executable, "-c", SHORT_OF_MEMORY, "700", *words, "--out", "short"]
    short = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert short.returncode == 0, short.stdout + short.stderr
    assert "memory    a step of 256 pictures does not fit" in short.stdout
    parts = read_state(tmp_path / "short" / "last.ckpt")["parts"]
    assert parts > 1
    command[3] = "100000"  # in a process of its own too, so that both have as many threads
    command = [*command[:-1], "ample", "--accumulate", str(parts)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600)
    first, second = (read_state(tmp_path / name / "last.ckpt")["model"] for name in ("short", "ample"))
    assert all(torch.equal(first[name], second[name]) for name in first)
