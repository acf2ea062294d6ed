"""What loading and augmentation cost of a training step: the step of `vitreous train` with them and without, in turn.

    python benchmarks/loading.py --flowers DIR --cifar10 DIR

For each recipe: its loader, augmentation, model, optimiser and Trainer ("whole"); the same with one augmented batch
that is ready each time ("without"); and loader and augmentation alone ("alone"). Prints a Markdown table; the share is
that of "alone" in "whole", round by round, and beside it what remains when "without" is taken from "whole".
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import statistics
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from measuring import header, in_turn
from step_kinds import TrainerSteps
from vitreous.data.config import DataConfig
from vitreous.recipes import recipe
from vitreous.train.assembly import make_module
from vitreous.train.console import View
from vitreous.train.setup import Prepared, fitting_threads, prepare


def endless(ready: Prepared) -> Iterator[dict[str, Any]]:
    """Training batches, epoch after epoch."""
    epoch = 0
    while True:
        ready.loading.set_epoch(epoch)
        yield from ready.loading.train_dataloader()
        epoch += 1


def moved(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """A batch with its tensors on the device, as the Trainer moves them."""
    return {k: v.to(device, non_blocking=True) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


def steps_of(ready: Prepared, augment: Any, progress: float) -> TrainerSteps:
    """Steps of a run at a point of its schedule, with its own model."""
    module = make_module(dataclasses.replace(ready, model=copy.deepcopy(ready.model)), lambda _: progress)
    module.augment = augment
    batches = endless(ready) if augment is ready.loading.batch_augment else augment.batches
    return TrainerSteps(module, ready.precision, ready.device, batches)


def row(name: str, data: DataConfig, progress: float, options: argparse.Namespace) -> str:
    """Measure one recipe at a point of its schedule and return its line of the table."""
    config = dataclasses.replace(recipe(name), data=data, device=options.device)
    ready = prepare(config, (), View())
    ready.loading.setup("fit")
    augment = ready.loading.batch_augment
    first = moved(next(endless(ready)), ready.device)
    done = augment.of_batch(first, progress)
    same = iter(lambda: first, None)
    fixed = SimpleNamespace(of_batch=lambda *_: done, seed=0, batches=same)
    loaded = endless(ready)
    with fitting_threads(ready):
        times = in_turn(
            {
                "whole": steps_of(ready, augment, progress),
                "without": steps_of(ready, fixed, progress),
                "alone": lambda: augment.of_batch(moved(next(loaded), ready.device), progress),
            },
            ready.device,
            options.rounds,
            warm_up=3,
            repeat=options.steps,
        )
    shares = sorted(100 * alone / whole for alone, whole in zip(times["alone"], times["whole"], strict=True))
    rest = sorted(100 * (1 - b / a) for a, b in zip(times["whole"], times["without"], strict=True))
    middle = {key: f"{1e3 * statistics.median(values):.1f}" for key, values in times.items()}
    spread = [f"{statistics.median(s):.1f} % ({s[0]:.1f} to {s[-1]:.1f})" for s in (shares, rest)]
    size = f"{name}, {config.batch_size} x {done[0].shape[2]} px"
    return " | ".join([size, middle["whole"], middle["without"], middle["alone"], *spread])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flowers", help="a folder of train/ and val/, or of one folder per class")
    parser.add_argument("--cifar10", help="the folder that holds torchvision's CIFAR-10")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="in a row, for each measurement")
    options = parser.parse_args()
    chosen = [("digits", DataConfig("digits"), 0.5)]
    if options.flowers:
        chosen.append(("folder", DataConfig(options.flowers), 0.5))
    if options.cifar10:
        data = dataclasses.replace(recipe("cifar10").data, dir=options.cifar10)
        chosen += [("cifar10", data, 0.5), ("cifar10-cpu", data, 0.1), ("cifar10-cpu", data, 0.9)]
    lines = [row(*each, options) for each in chosen]
    place = header(torch.device(options.device), ("torch", "torchvision", "lightning"))
    print(f"\n{place}; {options.rounds} rounds of {options.steps} steps\n")
    print("| recipe | whole, ms | without, ms | alone, ms | alone / whole | (whole - without) / whole |")
    print("|---|---|---|---|---|---|")
    print("\n".join(f"| {line} |" for line in lines))


if __name__ == "__main__":
    main()
