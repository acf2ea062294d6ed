"""Time the model of another commit beside that of this checkout: is an existing model slower than before?

    git archive COMMIT src | tar x -C /tmp/before
    python benchmarks/speed/against.py /tmp/before/src

Both packages are loaded into one process, under one name one after the other, and have the same weights. They compute
in turn, and the order changes with each pair, so that neither gains from the caches of the other. Prints the ratio of
new over old: the median of the pairs with its quartiles for each of three pairs of models, and the median of these.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

CASES = (  # size, pixels, images, whether it trains, pairs
    ("S/16", 224, 8, False, 60),
    ("S/16", 224, 4, True, 40),
    ("Ti/16", 224, 16, False, 60),
    ("128x6/4", 32, 256, False, 60),
    ("128x6/4", 32, 128, True, 60),
)
REPEATS = 3  # pairs of models: the place of weights in memory matters too


def package(source: Path) -> ModuleType:
    """Import `vitreous.accelerate.model` from a folder; one that was imported before keeps working."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vitreous"]:
        del sys.modules[name]
    sys.path.insert(0, str(source))
    found = importlib.import_module("vitreous.accelerate.model")
    sys.path.pop(0)
    if not Path(str(found.__file__)).is_relative_to(source):
        raise SystemExit(f"vitreous is not in {source}: name the folder src of a checkout")
    return found


def seconds(model: nn.Module, images: torch.Tensor, trains: bool) -> float:
    """Return the time of a forward pass, with its backward pass if the model trains."""
    started = time.perf_counter()
    if trains:
        model(images).float().logsumexp(1).sum().backward()
    else:
        with torch.inference_mode():
            model(images)
    return time.perf_counter() - started


def ratios(packages: list[ModuleType], size: str, pixels: int, images: int, trains: bool, pairs: int) -> list[float]:
    """Return the time of the second package over that of the first, pair by pair, with new models."""
    old, new = models = [each.create(size, num_classes=10, image_size=pixels).train(trains) for each in packages]
    new.load_state_dict(old.state_dict())
    batch = torch.randn(images, 3, pixels, pixels)
    for model in models * 2:
        seconds(model, batch, trains)
    found = []
    for pair in range(pairs):
        order = models if pair % 2 else models[::-1]
        taken = {id(model): seconds(model, batch, trains) for model in order}
        found.append(taken[id(new)] / taken[id(old)])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the folder src of the other commit")
    parser.add_argument("--here", type=Path, default=Path(__file__).parents[2] / "src", help="that of the new one")
    options = parser.parse_args()
    packages = [package(options.before.resolve()), package(options.here.resolve())]
    print("| model | new over old | each pair of models, with quartiles |\n|---|---|---|")
    for size, pixels, images, trains, pairs in CASES:
        torch.manual_seed(0)
        runs = [ratios(packages, size, pixels, images, trains, pairs) for _ in range(REPEATS)]
        medians = [statistics.median(run) for run in runs]
        quartiles = [statistics.quantiles(run, n=4) for run in runs]
        each = ", ".join(f"{m:.3f} ({q[0]:.3f} to {q[2]:.3f})" for m, q in zip(medians, quartiles, strict=True))
        name = f"{size} at {pixels} px, {images} images{', training' if trains else ''}"
        print(f"| {name} | {statistics.median(medians):.3f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
