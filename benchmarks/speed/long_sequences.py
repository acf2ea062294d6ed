"""Measure memory and time against sequence length, from 196 to 4,096 tokens.

    python benchmarks/speed/long_sequences.py --device cpu

Trains and runs S/16 and B/16 on one image at a time, 224 to 1,024 pixels, in the precision and with the optimiser of
`vitreous train`. "Checkpoints" means `model.block.checkpoint`. Each measurement runs in its own process: memory is the
peak above what the libraries take, including weights, gradients and optimiser; time is the median of --rounds steps
after the first. A process killed for its memory is a row of the table too. With --attention, measures the attention
kernels alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from measuring import DTYPES, MIB, header, in_subprocess, in_turn, peak_memory, precisions, ratios, seconds
from speed.attention import written_out
from speed.steps import Batch, ours_alone
from vitreous.accelerate.model import build
from vitreous.machine.device import choose_precision
from vitreous.model.sizes import config_of

SIDES = (224, 320, 448, 640, 768, 896, 1024)  # pixels: 196 to 4,096 patches of 16
WAYS = {"training": {}, "training, checkpoints": {"block": {"checkpoint": True}}, "inference": {}}
SHAPES = ((16, 6, 197, 64), (4, 12, 785, 64), (1, 12, 1025, 64), (1, 12, 2305, 64), (1, 12, 4097, 64))  # B H N d


def one(size: str, side: int, way: str, device: torch.device, rounds: int) -> str:
    """Measure peak bytes and median seconds once in this process."""
    precision = choose_precision("auto", device)
    config = config_of(f"{size}/16", image_size=side, **WAYS[way])
    batch = Batch(config, 1, device)
    times: list[float] = []

    def work() -> None:
        if way == "inference":
            model = build(config).to(device).eval()

            def step() -> None:
                with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                    model(batch.images)
        else:
            step = ours_alone(config, precision, batch)
        step()
        times.extend(seconds(step, device) for _ in range(rounds))

    return f"{peak_memory(device, work)} {statistics.median(times)}"


def measure(options: argparse.Namespace) -> None:
    """Print GiB and seconds by size, side and mode, each line as it is measured."""
    print("| model | px | patches | | peak GiB | s an image |\n|---|---|---|---|---|---|")
    for size in options.sizes:
        for side in options.sides:
            for way in WAYS:
                arguments = ["--device", options.device, "--rounds", str(options.rounds)]
                said = in_subprocess("--one", size, str(side), way, *arguments)
                cells = [said, ""]
                if not said.startswith("failed"):
                    peak, time = map(float, said.split())
                    cells = [f"{peak / 2**30:.2f}", f"{time:.3g}"]
                print(f"| {size}/16 | {side} | {(side // 16) ** 2:,} | {way} | {' | '.join(cells)} |", flush=True)


def blockwise(q: Tensor, k: Tensor, v: Tensor, rows: int = 512) -> Tensor:
    """Explicit products for some queries at a time, recomputed in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    parts = (checkpoint(written_out, part, k, v, use_reentrant=False) for part in q.split(rows, -2))
    return torch.cat(list(parts), -2)


KERNELS = {"fused": F.scaled_dot_product_attention, "written out": written_out, "blockwise": blockwise}


def attention_once(name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Forward and backward of one kernel."""
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    out = KERNELS[name](q, k, v)
    out.backward(torch.ones_like(out))
    return out


def attention(options: argparse.Namespace) -> None:
    """Print time and memory of the kernels, forward and backward."""
    device = torch.device(options.device)
    print("| B x H x N x d | dtype | kernel | ms | time / written out | peak MiB |\n|---|---|---|---|---|---|")
    for shape in SHAPES:
        for kind in precisions(device):
            dtype = DTYPES[kind]
            works = {n: lambda n=n, s=shape, d=dtype: attention_once(n, s, device, d) for n in KERNELS}
            times = in_turn(works, device, options.rounds, warm_up=1)
            for name, values in times.items():
                arguments = (name, kind, *map(str, shape))
                said = in_subprocess("--device", options.device, "--kernel", *arguments)
                peak = f"{int(said) / MIB:,.0f}" if said.isdigit() else said
                ratio = ratios(values, times["written out"])
                place = " x ".join(map(str, shape))
                middle = f"{1e3 * statistics.median(values):.1f}"
                print(f"| {place} | {kind} | {name} | {middle} | {ratio} | {peak} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", default=["S", "B"])
    parser.add_argument("--sides", nargs="+", type=int, default=list(SIDES))
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--kernel", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.one:
        size, side, way = options.one
        print(one(size, int(side), way, device, options.rounds))
        return
    if options.kernel:
        name, kind, *shape = options.kernel
        sides = tuple(map(int, shape))
        print(peak_memory(device, lambda: attention_once(name, sides, device, DTYPES[kind])))
        return
    place = f"{header(device)}; {options.rounds} rounds"
    print(f"{place}, {choose_precision('auto', device)}, batch 1\n")
    if options.attention:
        attention(options)
        return
    measure(options)


if __name__ == "__main__":
    main()
