"""Images per second and largest training batch against image size: figure 12 of arXiv 2010.11929 on one machine.

    python benchmarks/speed/resolution.py --plot figure12.png
    python benchmarks/speed/resolution.py --sizes Ti/16 S/32 --image-sizes 64 128 --batches 1 8 --rounds 3
    python benchmarks/speed/resolution.py --sizes S/16 B/16 B/32 --image-sizes 224 --axial  # figure 13, speed

Images per second are those of forward passes from normalised images to 1,000 logits at the fastest of --batches, in
inference mode: the median over --rounds in which the batches alternate. The largest batch is counted, not tried: a
training step in float32 with Adam takes 16 bytes a parameter for weights, gradients and two moments, and activations
with the attention weights (`vitreous models` counts the same) take the rest of --memory. 0 means that one image does
not fit. --axial adds to each size its counterpart with axial attention: twice the blocks, and mean pooling.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from measuring import DTYPES, header, in_turn, precisions
from vitreous.accelerate.cost import Cost, cost
from vitreous.accelerate.model import build
from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig
from vitreous.model.sizes import config_of

SIZES = ("Ti/16", "S/32", "S/16", "B/32", "B/16", "L/16")
IMAGE_SIZES = (64, 128, 224, 384, 512)
COLOURS = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#a6761d")
BYTES_PER_PARAMETER = 16  # weight, gradient and two moments in float32


@dataclass(frozen=True)
class Point:
    """One model at one image size. ``speed`` is in images per second; ``batch`` is that of the fastest forward pass."""

    image_size: int
    cost: Cost
    batch: int
    speed: float
    largest_batch: int


def largest_batch(counted: Cost, memory: float) -> int:
    """Return how many images a training step takes in a memory in bytes; 0 if not one."""
    return max(0, int((memory - BYTES_PER_PARAMETER * counted.parameters) // counted.activation_bytes))


def speed(config: ViTConfig, options: argparse.Namespace) -> tuple[int, float]:
    """Return the fastest batch and its images per second."""
    device, dtype = torch.device(options.device), DTYPES[options.precision]
    model = build(config).eval().to(device, dtype)

    @torch.inference_mode()
    def run(batch: int) -> None:
        model(images[batch])

    images = {n: torch.randn(n, 3, config.image_size, config.image_size).to(device, dtype) for n in options.batches}
    times = in_turn({str(n): lambda n=n: run(n) for n in images}, device, options.rounds, warm_up=1)
    found = {n: n / statistics.median(times[str(n)]) for n in images}
    fastest = max(found, key=found.__getitem__)
    return fastest, found[fastest]


def configurations(options: argparse.Namespace) -> dict[str, ViTConfig]:
    """Return the models by name."""
    found = {}
    for size in options.sizes:
        found[size] = config_of(size)
        if options.axial:
            fields = {"attention": "axial", "pool": "mean", "depth": 2 * found[size].depth}
            found[f"{size} axial"] = found[size].with_options(fields)
    return found


def measure(options: argparse.Namespace) -> dict[str, list[Point]]:
    """Measure every model at every image size that its patches tile, and print each row as it is measured."""
    print("| model | px | GFLOPs | img/s | at batch | MB an image | largest batch |\n|---|---|---|---|---|---|---|")
    curves: dict[str, list[Point]] = {}
    for name, config in configurations(options).items():
        for side in options.image_sizes:
            try:
                sized = config.with_options({"image_size": side})
            except ConfigError as error:
                print(f"{name} at {side} px left out: {error}", file=sys.stderr)
                continue
            counted = cost(sized)
            batch, per_second = speed(sized, options)
            point = Point(side, counted, batch, per_second, largest_batch(counted, 2**30 * options.memory))
            curves.setdefault(name, []).append(point)
            cells = (name, side, f"{counted.flops / 1e9:.2f}", f"{per_second:.1f}", batch)
            memory = (f"{counted.activation_bytes / 1e6:.1f}", f"{point.largest_batch:,}")
            print(f"| {' | '.join(map(str, (*cells, *memory)))} |", flush=True)
    return curves


def plot(curves: dict[str, list[Point]], options: argparse.Namespace, note: str) -> None:
    """Draw both quantities in two panels on a white background."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.4), facecolor="white", layout="constrained")
    labels = ("images per second", f"largest training batch in {options.memory:g} GiB")
    for axis, label, name in zip(axes, labels, ("speed", "largest_batch"), strict=True):
        for index, (model, points) in enumerate(curves.items()):
            style = "--" if model.endswith("axial") else "-"
            shown = [(point.image_size, getattr(point, name)) for point in points if getattr(point, name)]
            colour = COLOURS[(index // (1 + options.axial)) % len(COLOURS)]
            axis.plot(*zip(*shown, strict=True), style, color=colour, marker="o", ms=3, label=model) if shown else None
        axis.set(xscale="log", yscale="log", xlabel="image size, pixels", ylabel=label, facecolor="white")
        axis.set_xticks(options.image_sizes, [str(side) for side in options.image_sizes])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.suptitle(note, fontsize=8)
    figure.savefig(options.plot, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    parser.add_argument("--image-sizes", nargs="+", type=int, default=list(IMAGE_SIZES), help="pixels")
    parser.add_argument("--axial", action="store_true", help="also each size with axial attention")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=tuple(DTYPES), help="default: bf16 where the hardware has it")
    parser.add_argument("--memory", type=float, default=16.0, help="GiB for the largest batch; default: 16")
    parser.add_argument("--plot", type=Path, help="draw the figure into this file")
    options = parser.parse_args()
    device = torch.device(options.device)
    options.precision = options.precision or precisions(device)[0]
    note = f"{header(device)}; {options.precision}, {options.rounds} rounds"
    print(f"{note}\n", flush=True)
    curves = measure(options)
    if options.plot:
        plot(curves, options, note)


if __name__ == "__main__":
    main()
