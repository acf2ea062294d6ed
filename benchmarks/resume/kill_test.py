"""Kill runs with SIGKILL at random moments, resume them, and compare the end with an uninterrupted run bit for bit.

    python benchmarks/resume/kill_test.py                              # 100 kills over the bundled digits
    python benchmarks/resume/kill_test.py --cifar10 ~/data --kills 40  # CIFAR-10 as image files, with workers

Each scenario first runs without interruption. A chain then starts the same command with --resume and kills it, again
and again, until one start ends before its kill. Half of the kills come after a random part of a run's duration. The
others aim at a phase (training, saving, validating, selecting or testing), since most random kills would hit the
report; the phase is read from run.lock every 2 ms.

The end of a chain is compared with the uninterrupted run (same_run.py). Each run is forked from this process, which has
imported the libraries already; that saves seconds per run.

Some scenarios also damage the newest checkpoint after a kill (cut off, emptied, or with one byte changed) if an older
one exists, or start each process with another number of threads or on one core. A resume may refuse with a one-line
error; any other failure ends the test.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # this process forks, so it must have no threads

import torch
from PIL import Image

import vitreous.report.run_report
import vitreous.train.run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from resume.same_run import differences
from vitreous.cli.main import main as vitreous
from vitreous.data.config import DataConfig
from vitreous.data.sources.opening import open_source
from vitreous.runs.lock import NAME

AIMS = ("training", "saving", "validating", "selecting", "testing")  # phases that kills are aimed at
SMALL = (
    *("--device", "cpu", "--model.width", "16", "--model.depth", "2", "--model.heads", "2", "--model.mlp_dim", "32"),
    *("--checkpoint_every", "0.02s", "--ema", "0.9"),
)


LARGER = (  # enough work in a step for more than one thread
    *("--device", "cpu", "--model.width", "64", "--model.depth", "2", "--model.heads", "2", "--model.mlp_dim", "128"),
    *("--model.stem", "linear", "--checkpoint_every", "0.02s", "--ema", "0.9"),
)


@dataclass(frozen=True)
class Scenario:
    """A run to be killed: its name, what it covers, and its arguments after the verb.

    Attributes:
        verb: Of the command.
        damages: Whether the newest checkpoint is damaged between a kill and the next process.
        threads: What the first process, and the one without a kill, computes with.
        others: What later processes begin with, drawn anew for each; 0 is one core only. None: as the first.
    """

    name: str
    shows: str
    words: tuple[str, ...]
    verb: str = "train"
    damages: bool = False
    threads: int = 1
    others: tuple[int, ...] | None = None


def digits_scenarios() -> list[Scenario]:
    """Return small runs of the bundled digits that cover everything in a state."""
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
                *("--augment.mixup", "0.4", "--augment.cutmix", "1", "--model.block.drop_path", "0.2"),
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
        Scenario(
            "damage",
            "the newest checkpoint is damaged after kills",
            (*common, "--epochs", "8", "--model.dropout", "0.1"),
            damages=True,
        ),
        Scenario(
            "threads",
            "begins with 2 threads, goes on where 1, 2, 3 or one core would be taken; checkpoints damaged too",
            (*("digits", *LARGER, "--batch_size", "512"), "--epochs", "8", "--augment.mixup", "0.2"),
            damages=True,
            threads=2,
            others=(0, 1, 2, 3),
        ),
    ]


def tuning_scenarios(folder: Path) -> list[Scenario]:
    """Train a small model and return fine-tunings of it: of all weights and with LoRA."""
    log = folder / "source.log"
    words = ("digits", *LARGER, "--epochs", "2", "--batch_size", "128", "--checkpoint_every", "1h")
    if code := wait(start(Scenario("", "", words), folder / "source", log), None):
        raise SystemExit(f"no model to fine-tune, exit code {code}:\n{log.read_text()}")
    common = ("digits", "--from", str(folder / "source"), "--epochs", "4", "--batch_size", "256", "--device", "cpu")
    common = (*common, "--checkpoint_every", "0.02s", "--ema", "0.9")
    hard: dict[str, Any] = {"verb": "finetune", "damages": True, "threads": 2, "others": (0, 1, 2, 3)}
    scenarios = [Scenario("finetune", "all weights, probed first; threads and damage", common, **hard)]
    if find_spec("peft"):
        import peft  # noqa: F401  # here, once: it takes seconds in each process

        lora = (*common, "--tune", "lora", "--no-probe")
        scenarios.append(Scenario("lora", "low-rank additions; threads and damage", lora, **hard))
    return scenarios


def cifar_scenario(source: str, folder: Path, workers: int) -> Scenario:
    """Write CIFAR-10 as PNG files, and return a run that streams them with workers and random resized crops."""
    data = open_source(DataConfig("cifar10", dir=source))
    for split, count in (("train", 512), ("val", 128), ("test", 128)):
        images = data.splits[split]
        for n in range(count):
            place = folder / split / data.classes[int(images.labels[n])]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images.arrays[n]).save(place / f"{n:05}.png")
    words = (
        *(str(folder), *SMALL, "--model.image_size", "32", "--model.patch_size", "8", "--epochs", "3"),
        *("--batch_size", "64", "--accumulate", "2", "--data.memory_gb", "0", "--data.workers", str(workers)),
        *("--augment.resized_crop", "0.5", "--augment.mixup", "0.2", "--select", "top1", "--recipe", "folder"),
    )
    return Scenario("cifar10-files", f"CIFAR-10 from files, {workers} workers, mixup, best top-1", words)


def start(scenario: Scenario, out: Path, log: Path, threads: int | None = None) -> int:
    """Fork a process that runs the scenario with --resume; return its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    gc.freeze()  # collections of garbage leave out, and do not copy, what was loaded before the fork
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        count = scenario.threads if threads is None else threads
        if count == 0:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        torch.set_num_threads(max(count, 1))  # as PyTorch does in a process that is not forked
        code = vitreous([scenario.verb, *scenario.words, "--out", str(out), "--resume"])
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def damage(out: Path, draw: random.Random) -> bool:
    """Damage the newest checkpoint if there is an older one; return whether it was damaged."""
    last = out / "last.ckpt"
    if not (last.exists() and (out / "previous.ckpt").exists()):
        return False
    content = bytearray(last.read_bytes())
    kind = draw.choice(("byte", "cut", "empty"))
    if kind == "byte" and content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    last.write_bytes(b"" if kind == "empty" else content[: len(content) // 2] if kind == "cut" else content)
    return True


def wait(pid: int, seconds: float | None, reached: Callable[[], bool] = lambda: False) -> int | None:
    """Return the exit code of a process, or None if it still runs after the time or when a condition holds."""
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
    """Return the phase of a process in a run's folder, or its last one."""
    try:
        facts = json.loads((out / NAME).read_bytes())
    except (OSError, ValueError):
        return "ending" if (out / "report.json").exists() else "opening the data"
    if facts["pid"] != pid:  # the lock of a process that was killed earlier
        return "opening the data"
    return facts["phase"] + (", saving" if facts["saving"] else "")


@dataclass
class Outcome:
    """The outcome of a scenario; the next kill falls within `span` seconds."""

    scenario: Scenario
    seconds: float
    span: float
    phases: Counter[str]
    chains: int
    unlike: list[str]
    damaged: int = 0
    others: int = 0
    refused: int = 0


def torment(scenario: Scenario, kills: int, work: Path, draw: random.Random) -> Outcome:
    """Run a scenario without interruption, then kill it this many times over several chains."""
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
        found = differences(peaceful, out) if _chain(outcome, out, kills, log, draw) else []
        outcome.unlike += [f"{out}: {place}" for place in found]
        if not found:
            shutil.rmtree(out)
    return outcome


def _chain(outcome: Outcome, out: Path, kills: int, log: Path, draw: random.Random) -> bool:
    """Start and kill a run until one ends before its kill; return False if it refused to resume."""
    scenario, threads = outcome.scenario, None
    while True:
        last = outcome.phases.total() >= kills
        said = log.stat().st_size if log.exists() else 0
        pid = start(scenario, out, log, threads)
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
            if scenario.damages and not (out / "report.json").exists() and draw.random() < 0.7:
                outcome.damaged += damage(out, draw)
            if scenario.others is not None:
                threads = draw.choice(scenario.others)
                outcome.others += threads != scenario.threads
        elif code:
            refuse_unless_one_line(log.read_bytes()[said:].decode(errors="replace"), f"{scenario.name}, code {code}")
            outcome.refused += 1
            return False
        else:
            if aim is None:
                outcome.span *= 0.9  # the machine got faster, or little work was left
            return True


def refuse_unless_one_line(text: str, where: str) -> None:
    """End the test unless a refused resume gave a one-line reason."""
    errors = [line for line in text.splitlines() if line.startswith("vitreous: ")]
    if len(errors) != 1 or "Traceback" in text or "this is a bug" in text:
        raise SystemExit(f"{where}: could not be resumed:\n{text}")


def report(outcomes: Sequence[Outcome]) -> str:
    """Return the table of phases and the differences."""
    phases = sorted({phase for outcome in outcomes for phase in outcome.phases})
    head = "| run | kills | damaged | other threads | ended | refused | unlike the run never killed | "
    lines = [head + " | ".join(phases) + " |"]
    lines.append("|---" * (7 + len(phases)) + "|")
    for each in outcomes:
        cells = [each.scenario.name, each.phases.total(), each.damaged, each.others, each.chains - each.refused]
        cells += [each.refused, len({u.partition(": ")[0] for u in each.unlike})]
        lines.append("| " + " | ".join(map(str, [*cells, *(each.phases[phase] for phase in phases)])) + " |")
    lines.append("")
    lines += [f"{each.scenario.name}: {each.scenario.shows}; {each.seconds:.1f} s when not killed" for each in outcomes]
    return "\n".join([*lines, *(place for each in outcomes for place in each.unlike)])


def main() -> int:
    """Run every scenario and print the table; return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="kills in total [%(default)s]")
    parser.add_argument("--only", nargs="*", help="names of scenarios")
    parser.add_argument("--cifar10", metavar="DIR", help="also CIFAR-10 in this folder, as files with workers")
    parser.add_argument("--workers", type=int, default=2, help="workers of that scenario [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the kill times [%(default)s]")
    parser.add_argument("--work", metavar="DIR", help="folder for the runs, kept if they differ")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        work = Path(options.work or stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        if options.cifar10:
            scenarios = [cifar_scenario(options.cifar10, work / "cifar10", options.workers)]
        else:
            scenarios = digits_scenarios()
            if not options.only or {"finetune", "lora"} & set(options.only):
                scenarios += tuning_scenarios(work)
        scenarios = [each for each in scenarios if not options.only or each.name in options.only]
        draw = random.Random(options.seed)
        share, more = divmod(options.kills, len(scenarios))
        outcomes = [torment(each, share + (n < more), work, draw) for n, each in enumerate(scenarios)]
    print(report(outcomes))
    return int(any(outcome.unlike for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
