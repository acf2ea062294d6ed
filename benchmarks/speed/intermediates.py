"""Time one pass that keeps its intermediate values, and attention of all layers, against the pass alone.

    python benchmarks/speed/intermediates.py [--size S/16] [--batch 8] [--rounds 28]

The plain model computes every token in each block. The fast one computes only the tokens that the head reads in its
last block, so it is measured against that pass, and against one that returns all tokens. Freed memory is kept by the
process, as in `vitreous inspect`. Prints a Markdown table: median milliseconds, and median and range of the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from measuring import header, in_turn, ratios
from vitreous.accelerate.model import build
from vitreous.machine.allocator import keep_freed_memory
from vitreous.model.config import pair
from vitreous.model.sizes import config_of
from vitreous.model.vit import VisionTransformer


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="S/16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=28)
    options = parser.parse_args()
    keep_freed_memory()
    device, config = torch.device("cpu"), config_of(options.size, num_classes=1000)
    images = torch.randn(options.batch, 3, *pair(config.image_size))
    print(f"{header(device)}; {options.rounds} rounds\n")
    print("| model | pass, ms | all tokens | all layers' values | and attention | the same / all tokens |")
    print("|---|---|---|---|---|---|")
    for name, make in (("plain", VisionTransformer), ("fast", build)):
        model = make(config).eval()
        works = {
            "pass": lambda model=model: model(images),
            "tokens": lambda model=model: model(images, "tokens"),
            "values": lambda model=model: model.intermediates(images),
            "attention": lambda model=model: model.intermediates(images, attention=True),
        }
        times = in_turn(works, device, options.rounds)
        cells = [f"{1000 * statistics.median(times['pass']):.0f}"]
        cells += [ratios(times[each], times["pass"]) for each in ("tokens", "values", "attention")]
        print(f"| {name} | {' | '.join([*cells, ratios(times['attention'], times['tokens'])])} |", flush=True)


if __name__ == "__main__":
    main()
