"""Plot accuracy against time and training operations, for runs and published results.

    python benchmarks/accuracy/plot_records.py 'linear patches=runs/strict-0' 'convolutional stem=runs/conv-0' \\
        --out docs/images/records.png

Each run is a folder of `vitreous train`. The curve is its validation top-1 after each epoch against the time since
training began; the dot is its test top-1 at the end of training. Operations are 3 times those of the forward pass at
the image size of the epoch, without dropped patches, 2 for each multiply-add.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.accelerate.cost import cost
from vitreous.cli.verbs.train import configure
from vitreous.model.config import pair
from vitreous.train.config import RunConfig

COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#a6761d")
TUTORIAL = (28 + 17 / 60, 78.8, "tutorial, on a GPU")  # minutes, from its own log
PUBLISHED = (  # training operations, top-1 on test
    (2.9e14, 94.0, "airbench94, a CNN"),
    (2.0e15, 89.2, "CCT-2/3x2"),
    (2.8e15, 91.5, "CCT-4/3x2"),
)


@dataclass(frozen=True)
class Curve:
    """A run: minutes, operations and validation top-1 after each epoch, and the top-1 on test."""

    minutes: list[float]
    operations: list[float]
    top1: list[float]
    test: float


def read(folder: Path) -> Curve:
    """Read the files of a run."""
    config, _, _ = configure(["--config", str(folder / "recipe.yaml")])
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    seconds = list(itertools.accumulate(float(row["seconds"]) for row in rows))
    steps = [0, *(int(row["step"]) for row in rows)]
    operations = []
    for before, now, at in zip(steps, steps[1:], seconds, strict=False):
        operations.append((now - before) * config.batch_size * per_image(config, at / seconds[-1]))
    return Curve(
        [second / 60 for second in seconds],
        list(itertools.accumulate(operations)),
        [100 * float(row["val_top1"]) for row in rows],
        100 * report["scores"]["test"]["top1"],
    )


def per_image(config: RunConfig, progress: float) -> float:
    """Return the training operations for one image at a point of the run."""
    height, width = (config.augment.side_at(side, progress) for side in pair(config.model.image_size))
    kept = 1 - config.patches_dropped(progress)
    return 3.0 * kept * cost(replace(config.model, image_size=(height, width))).flops  # ignores attention's N²


def draw(curves: dict[str, Curve], path: Path) -> None:
    """Draw two panels on a white background."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.4), facecolor="white", layout="constrained", sharey=True)
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        for axis, along in zip(axes, (curve.minutes, curve.operations), strict=True):
            axis.plot(along, curve.top1, color=colour, lw=1.5, label=f"{name}: validation")
            axis.plot(along[-1:], [curve.test], "o", color=colour, label=f"{name}: test {curve.test:.1f} %")
    minutes, top1, name = TUTORIAL
    mark(axes[0], minutes, top1, name)
    longest = max(1.35 * minutes, *(1.05 * curve.minutes[-1] for curve in curves.values()))  # room for its label
    for operations, top1, name in PUBLISHED:
        mark(axes[1], operations, top1, name)
    axes[0].set(xlabel="minutes of training", ylabel="top-1, %", ylim=(50, 97), xlim=(0, longest))
    axes[1].set(xlabel="training operations", xscale="log", xlim=(1e13, 2e16))
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.set_facecolor("white")
    axes[0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)


def mark(axis: Any, x: float, y: float, name: str) -> None:
    """Mark a published result."""
    axis.plot([x], [y], "D", color="#444444", ms=5)
    axis.annotate(name, (x, y), xytext=(7, 0), textcoords="offset points", fontsize=8, va="center")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, default=Path("records.png"))
    options = parser.parse_args()
    if len(options.runs) > len(COLOURS):
        parser.error(f"{len(options.runs)} runs, there are colours for {len(COLOURS)}")
    named = (run.split("=", 1) for run in options.runs)
    draw({name: read(Path(folder)) for name, folder in named}, options.out)


if __name__ == "__main__":
    main()
