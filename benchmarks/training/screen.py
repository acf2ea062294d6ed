"""Compare settings of a recipe on a validation split in short runs, as docs/explanation/log/cifar10.md does.

    python benchmarks/training/screen.py --steps 400 'baseline=' 'rotary=--model.position rope-2d' \\
        -- cifar10 --recipe cifar10-cpu --data.val_fraction 0.2 --data-dir ~/data

Each variant has a name and options of `vitreous train`, added to those after `--`. A variant trains for --steps steps
or --minutes minutes with its whole schedule fitted into them, and is scored once on the validation split. The test
split is never opened. Prints a Markdown table; MFLOPs are those of a forward pass, 2 for each multiply-add, and the
time is that of the steps on one thread with loading and augmentation. With several --seeds, a second table has the mean
and the range of each variant. Two instances may run side by side on two cores; with --minutes, start them together.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from vitreous.cli.verbs.train import configure
from vitreous.train.assembly import make_module
from vitreous.train.config import RunConfig
from vitreous.train.console import Display
from vitreous.train.loop.progress import Budget, Clock, Steps
from vitreous.train.loop.silence import silence_lightning
from vitreous.train.loop.trainer import build_trainer
from vitreous.train.setup import prepare


class End(Callback):
    """Ends training at the time limit, without reserving time for evaluation."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.clock.begin()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        trainer.should_stop = self.clock.over(trainer.global_step)


@dataclasses.dataclass(frozen=True)
class Score:
    """One run on held-out images; ``flops`` are those of a forward pass."""

    top1: float
    log_loss: float
    flops: int
    steps: int
    seconds: float

    def cells(self) -> str:
        """Return the cells of a table's row."""
        cost = f"{self.flops / 1e6:.2f} | {self.steps} | {self.seconds:.0f}"
        return f"{100 * self.top1:.2f} % | {self.log_loss:.4f} | {cost}"


def score(config: RunConfig, steps: int, minutes: float | None) -> Score:
    """Train with the whole schedule in so many steps or minutes, and evaluate once."""
    with silence_lightning():
        setup = prepare(config, (), Display())
        setup.data_module.setup("fit")
        clock: Clock = Steps(steps) if minutes is None else Budget(time.monotonic(), 60 * minutes, 0)
        module = make_module(setup, clock.progress)
        folder = Path(tempfile.gettempdir())
        trainer = build_trainer(folder, setup.device, setup.precision, [End(clock)], [])
        trainer.limit_val_batches = 0
        began = time.perf_counter()
        trainer.fit(module, setup.data_module.train_dataloader())
        seconds = time.perf_counter() - began
        trainer.limit_val_batches = 1.0
        trainer.validate(module, dataloaders=setup.data_module.val_dataloader(), verbose=False)
    scores = module.scores
    return Score(scores.top1, scores.log_loss, setup.cost.flops, trainer.global_step, seconds)


def summary(name: str, scores: Sequence[Score]) -> str:
    """Return a variant's row of the second table: means, ranges and the number of runs."""
    percent, losses = sorted(100 * each.top1 for each in scores), sorted(each.log_loss for each in scores)
    top1 = f"{statistics.mean(percent):.2f} % ({percent[0]:.2f} to {percent[-1]:.2f})"
    loss = f"{statistics.mean(losses):.3f} ({losses[0]:.3f} to {losses[-1]:.3f})"
    return f"| {name} | {top1} | {loss} | {scores[0].flops / 1e6:.2f} | {len(scores)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variants", nargs="+", metavar="NAME=WORDS")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--minutes", type=float, help="train for this many minutes instead")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, words = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    torch.set_num_threads(options.threads)
    print("| variant | seed | top-1 | log loss | MFLOPs | steps | seconds |\n|---|---|---|---|---|---|---|")
    scores: dict[str, list[Score]] = {}
    for variant in options.variants:
        name, _, added = variant.partition("=")
        for seed in range(options.seeds):
            config, _, _ = configure([*words, *added.split()])
            each = score(dataclasses.replace(config, seed=seed), options.steps, options.minutes)
            scores.setdefault(name, []).append(each)
            print(f"| {name} | {seed} | {each.cells()} |", flush=True)
    if options.seeds > 1:
        print("\n| variant | top-1 | log loss | MFLOPs | n |\n|---|---|---|---|---|")
        print("\n".join(summary(name, each) for name, each in scores.items()))


if __name__ == "__main__":
    main()
