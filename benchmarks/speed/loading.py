"""Measure the share of a training step that data loading and augmentation take.

    python benchmarks/speed/loading.py --flowers DIR --cifar10 DIR

Times three variants in alternation for each recipe: the complete step of `vitreous train` ("whole"); the same step on
one prepared batch ("without"); loading and augmentation alone ("alone"). Prints a Markdown table with "alone" as a
share of "whole", round by round, and the difference of "whole" and "without".
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from measuring import header, in_turn
from speed.steps import TrainerSteps
from vitreous.data.config import DataConfig
from vitreous.recipes import recipe
from vitreous.train.assembly import make_module
from vitreous.train.console import Display
from vitreous.train.setup import Setup, one_thread_if_tiny, prepare


def endless(setup: Setup) -> Iterator[dict[str, Any]]:
    """Yield training batches, epoch after epoch."""
    epoch = 0
    while True:
        setup.data_module.set_epoch(epoch)
        yield from setup.data_module.train_dataloader()
        epoch += 1


def moved(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Move the tensors of a batch to the device, as the Trainer does."""
    return {k: v.to(device, non_blocking=True) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


def steps_of(setup: Setup, augment: Any, progress: float) -> TrainerSteps:
    """Steps of a run at a point of its schedule, with its own model."""
    module = make_module(dataclasses.replace(setup, model=copy.deepcopy(setup.model)), lambda _: progress)
    module.augment = augment
    batches = endless(setup) if augment is setup.data_module.batch_augment else augment.batches
    return TrainerSteps(module, setup.precision, setup.device, batches)


def row(name: str, data: DataConfig, progress: float, options: argparse.Namespace) -> str:
    """Measure one recipe at a point of its schedule and return its line of the table."""
    config = dataclasses.replace(recipe(name), data=data, device=options.device)
    setup = prepare(config, (), Display())
    setup.data_module.setup("fit")
    augment = setup.data_module.batch_augment
    first = moved(next(endless(setup)), setup.device)
    done = augment.augment_batch(first, progress)
    same = iter(lambda: first, None)
    fixed = SimpleNamespace(augment_batch=lambda *_: done, seed=0, batches=same)
    loaded = endless(setup)
    with one_thread_if_tiny(setup):
        times = in_turn(
            {
                "whole": steps_of(setup, augment, progress),
                "without": steps_of(setup, fixed, progress),
                "alone": lambda: augment.augment_batch(moved(next(loaded), setup.device), progress),
            },
            setup.device,
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
    parser.add_argument("--steps", type=int, default=5, help="consecutive steps of each measurement")
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
