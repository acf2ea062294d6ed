"""Runs killed with SIGKILL at random moments, resumed until they end and compared bit for bit with one never killed.

    python benchmarks/kill_test.py                              # 100 kills over the bundled digits
    python benchmarks/kill_test.py --cifar10 ~/data --kills 40  # over CIFAR-10 as files on the disk, with workers

Each scenario is run once in peace. Then it is started again and again with the same words and --resume: each time it
is killed, until one ends before its kill; then the next chain begins. One kill in two falls after a random part of
about the time that a run takes. The others are aimed, since most would fall in the drawing of the report: at training,
saving, validating, selecting or testing, at a random one of the looks that are taken every 2 ms, and up to 10 ms later.

What a chain leaves is compared with what the peaceful run left: the last checkpoint (weights, moving average,
optimiser, selection, history), the model file, metrics.csv, the report and the pictures. Left out are times and what is
made of them: seconds, images_per_second, dates. A run is a process of its own, forked from this one, which has imported
the libraries: that saves seconds per run, and the rest is what `vitreous train` does.

The phase of a kill is what the run had last written into its run.lock.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # this process is forked: it must have no threads

import torch
from PIL import Image
from safetensors import safe_open

import vitreous.train.report
import vitreous.train.run
from vitreous.checkpoint.artifact import KEY
from vitreous.cli.main import main as vitreous
from vitreous.data.config import DataConfig
from vitreous.data.sources import open_source
from vitreous.train.lock import NAME
from vitreous.train.report import PICTURES
from vitreous.train.state_file import read_state

AIMS = ("training", "saving", "validating", "selecting", "testing")  # phases that kills are aimed at
TIMES = ("seconds", "images_per_second")
SMALL = (
    *("--device", "cpu", "--model.width", "16", "--model.depth", "2", "--model.heads", "2", "--model.mlp_dim", "32"),
    *("--checkpoint_every", "0.02s", "--ema", "0.9"),
)


@dataclass(frozen=True)
class Scenario:
    """A run to be killed: its name, what it shows, and its words after `vitreous train`."""

    name: str
    shows: str
    words: tuple[str, ...]


def digits_scenarios() -> list[Scenario]:
    """Small runs of the bundled digits that cover what a state holds."""
    common = ("digits", *SMALL, "--batch_size", "128")
    return [
        Scenario(
            "muon", "Muon with AdamW, EMA, dropout, last epoch", (*common, "--epochs", "8", "--model.dropout", "0.1")
        ),
        Scenario(
            "accumulation",
            "AdamW, steps in 4 parts, mixup, CutMix, stochastic depth, best log loss",
            (
                *(*common, "--epochs", "5", "--optim.name", "adamw", "--accumulate", "4", "--select", "log_loss"),
                *("--augment.mixup", "0.4", "--augment.cutmix", "1", "--model.drop_path", "0.2"),
            ),
        ),
        Scenario(
            "early-stop",
            "SGD, stops on patience, best top-1, balanced sampling",
            (
                *(*common, "--epochs", "40", "--optim.name", "sgd", "--optim.lr", "1e-7", "--select", "top1"),
                *("--patience", "2", "--balanced_sampling", "true"),
            ),
        ),
        Scenario("steps", "stops within an epoch", (*common, "--steps", "25", "--select", "top1")),
    ]


def cifar_scenario(source: str, folder: Path, workers: int) -> Scenario:
    """CIFAR-10 as PNG files, streamed by workers with random resized crops."""
    data = open_source(DataConfig("cifar10", dir=source))
    for split, count in (("train", 512), ("val", 128), ("test", 128)):
        pictures = data.splits[split]
        for n in range(count):
            place = folder / split / data.classes[int(pictures.labels[n])]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pictures.arrays[n]).save(place / f"{n:05}.png")
    words = (
        *(str(folder), *SMALL, "--model.image_size", "32", "--model.patch_size", "8", "--epochs", "3"),
        *("--batch_size", "64", "--accumulate", "2", "--data.memory_gb", "0", "--data.workers", str(workers)),
        *("--augment.resized_crop", "0.5", "--augment.mixup", "0.2", "--select", "top1", "--recipe", "folder"),
    )
    return Scenario("cifar10-files", f"CIFAR-10 from files, {workers} workers, mixup, best top-1", words)


def start(scenario: Scenario, out: Path, log: Path) -> int:
    """Fork a process that runs the scenario with --resume; its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        code = vitreous(["train", *scenario.words, "--out", str(out), "--resume"])
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(pid: int, seconds: float | None, reached: Callable[[], bool] = lambda: False) -> int | None:
    """The exit code of a process; None if it still runs after so long, or when something is reached."""
    until = None if seconds is None else time.monotonic() + seconds
    while until is None or time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if reached():
            return None
        time.sleep(0.002)
    return None


def phase(out: Path, pid: int) -> str:
    """What a process is doing in a run's folder, or was when it was killed."""
    try:
        facts = json.loads((out / NAME).read_bytes())
    except (OSError, ValueError):
        return "ending" if (out / "report.json").exists() else "opening the data"
    if facts["pid"] != pid:  # the lock is still that of a process which was killed before
        return "opening the data"
    return facts["phase"] + (", saving" if facts["saving"] else "")


def differences(left: Path, right: Path) -> list[str]:
    """What two finished runs differ in, times left out."""
    found = list(unlike(timeless(read_state(left / "last.ckpt")), timeless(read_state(right / "last.ckpt")), "state"))
    found += unlike(*(_model(folder / "model.safetensors") for folder in (left, right)), "model")
    found += unlike(*(_rows(folder / "metrics.csv") for folder in (left, right)), "metrics")
    found += unlike(*(_report(folder / "report.json") for folder in (left, right)), "report")
    found += [name for name in PICTURES if (left / name).read_bytes() != (right / name).read_bytes()]
    return found


def timeless(state: dict[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint without what depends on the time it took."""
    history = [{name: value for name, value in row.items() if name not in TIMES} for row in state["history"]]
    return {**state, "history": history, "seconds": None, "clock": None}


def _model(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()[KEY])
        for name in ("date", "machine", "config"):  # the configuration has the folder's name
            told["provenance"].pop(name)
        return {"told": told, **{name: file.get_tensor(name) for name in list(file.keys())}}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [{name: value for name, value in row.items() if name not in TIMES} for row in csv.DictReader(file)]


def _report(path: Path) -> dict[str, Any]:
    report = json.loads(path.read_text(encoding="utf-8"))
    report["training"].pop("seconds")
    return report


def unlike(left: Any, right: Any, where: str) -> list[str]:
    """The places at which two values differ in a bit."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        same = left.dtype == right.dtype and left.shape == right.shape
        return [] if same and left.numpy().tobytes() == right.numpy().tobytes() else [where]
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return [place for name in left for place in unlike(left[name], right[name], f"{where}.{name}")]
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [p for n, (a, b) in enumerate(zip(left, right, strict=True)) for p in unlike(a, b, f"{where}[{n}]")]
    return [] if json.dumps(left) == json.dumps(right) else [where]  # so that NaN is itself


@dataclass
class Outcome:
    """What a scenario's chains came to; `span` is the time, in seconds, within which the next kill falls."""

    scenario: Scenario
    seconds: float
    span: float
    phases: Counter[str]
    chains: int
    unlike: list[str]


def torment(scenario: Scenario, kills: int, work: Path, draw: random.Random) -> Outcome:
    """Run a scenario in peace, then kill it so many times, in as many chains as that takes."""
    began = time.monotonic()
    peaceful = work / f"{scenario.name}-peaceful"
    log = work / f"{scenario.name}.log"
    code = wait(start(scenario, peaceful, log), None)
    if code:
        raise SystemExit(f"{scenario.name} failed in peace, exit code {code}:\n{log.read_text()}")
    took = time.monotonic() - began
    outcome = Outcome(scenario, took, took, Counter(), 0, [])
    while outcome.phases.total() < kills:
        outcome.chains += 1
        out = work / f"{scenario.name}-{outcome.chains}"
        _chain(outcome, out, kills, log, draw)
        found = differences(peaceful, out)
        outcome.unlike += [f"{out}: {place}" for place in found]
        if not found:
            shutil.rmtree(out)
    return outcome


def _chain(outcome: Outcome, out: Path, kills: int, log: Path, draw: random.Random) -> None:
    """Start a run and kill it, until one ends before it is killed."""
    while True:
        last = outcome.phases.total() >= kills
        pid = start(outcome.scenario, out, log)
        aim = None if last or draw.random() < 0.5 else draw.choice(AIMS)

        def reached(aim: str | None = aim, pid: int = pid) -> bool:
            return aim is not None and aim in phase(out, pid) and draw.random() < 0.2

        code = wait(pid, None if last or aim else draw.uniform(0, outcome.span), reached)
        if code is None:
            time.sleep(draw.uniform(0, 0.01))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            outcome.phases[phase(out, pid)] += 1
            outcome.span = min(1.05 * outcome.span, 2 * outcome.seconds)  # grows back
        elif code:
            raise SystemExit(f"{outcome.scenario.name} could not be resumed, exit code {code}:\n{log.read_text()}")
        else:
            if aim is None:
                outcome.span *= 0.9  # the machine is faster than it was, or there was little left to do
            return


def report(outcomes: Sequence[Outcome]) -> str:
    """The table of phases, and what differs."""
    phases = sorted({phase for outcome in outcomes for phase in outcome.phases})
    lines = ["| run | kills | ended | unlike the run never killed | " + " | ".join(phases) + " |"]
    lines.append("|---" * (4 + len(phases)) + "|")
    for each in outcomes:
        cells = [each.scenario.name, each.phases.total(), each.chains, len({u.partition(": ")[0] for u in each.unlike})]
        lines.append("| " + " | ".join(map(str, [*cells, *(each.phases[phase] for phase in phases)])) + " |")
    lines.append("")
    lines += [f"{each.scenario.name}: {each.scenario.shows}; {each.seconds:.1f} s when not killed" for each in outcomes]
    return "\n".join([*lines, *(place for each in outcomes for place in each.unlike)])


def main() -> int:
    """Parse the words, torment each scenario, and print the table; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="in all, over the scenarios [%(default)s]")
    parser.add_argument("--only", nargs="*", help="names of scenarios")
    parser.add_argument("--cifar10", metavar="DIR", help="where CIFAR-10 is: add it as files, with workers")
    parser.add_argument("--workers", type=int, default=2, help="for these [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of the moments [%(default)s]")
    parser.add_argument("--work", metavar="DIR", help="where the runs go, and stay when they differ")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        work = Path(options.work or stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        scenarios = [] if options.cifar10 else digits_scenarios()
        if options.cifar10:
            scenarios.append(cifar_scenario(options.cifar10, work / "cifar10", options.workers))
        scenarios = [each for each in scenarios if not options.only or each.name in options.only]
        draw = random.Random(options.seed)
        share, more = divmod(options.kills, len(scenarios))
        outcomes = [torment(each, share + (n < more), work, draw) for n, each in enumerate(scenarios)]
    print(report(outcomes))
    return int(any(outcome.unlike for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
