"""How often `vitreous evaluate --against` finds a difference between two simulated models that are equally good.

    python benchmarks/accuracy/false_alarms.py --pairs 10000 --images 100 400

N images, K classes. The two models' logits share a part of their noise, so that their mistakes are alike.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from multiprocessing import Pool
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import header
from vitreous.evaluate.scoring.compare import compare

PARTS = 8  # of the pairs, each with a seed of its own
LEVEL = 0.05


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--images", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--strength", type=float, default=2.0, help="what the true class adds to its logit")
    parser.add_argument("--own", type=float, default=1.0, help="standard deviation of each model's own noise")
    parser.add_argument("--resamples", type=int, default=400)
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def count_alarms(options: argparse.Namespace, images: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """Return for each score how many p-values are at most 0.05, and how many 95 % intervals leave out 0."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    alarms: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    for _ in range(options.pairs // PARTS):
        labels = torch.randint(0, options.classes, (images,), generator=generator)
        common, a, b = torch.randn(3, images, options.classes, generator=generator, dtype=torch.float64)
        common += options.strength * torch.nn.functional.one_hot(labels, options.classes)
        found = compare(common + options.own * a, common + options.own * b, labels, resamples=options.resamples)
        for name, each in found.items():
            alarms[name] += each.p_value <= LEVEL
            outside[name] += not each.difference.low <= 0 <= each.difference.high
    return alarms, outside


def main() -> None:
    options = parse()
    print(header(torch.device("cpu")), flush=True)
    count = options.pairs // PARTS * PARTS
    with Pool(options.processes) as pool:
        for images in options.images:
            parts = pool.starmap(count_alarms, [(options, images, seed) for seed in range(PARTS)], chunksize=1)
            print(f"\n| {count:,} pairs, {images:,} images | p at most {LEVEL:g} | 95 % interval without 0 |")
            print("|---|---|---|")
            alarms, outside = (sum((part[kind] for part in parts), Counter()) for kind in (0, 1))
            for name in parts[0][0]:
                print(f"| {name} | {alarms[name] / count:.2%} | {outside[name] / count:.2%} |", flush=True)


if __name__ == "__main__":
    main()
