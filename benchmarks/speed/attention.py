"""Time the fused attention kernel against explicit matrix products.

    python benchmarks/speed/attention.py
    python benchmarks/speed/attention.py --device cuda

Measures forward and backward, forward alone, and forward with a bias. Prints a Markdown table: median milliseconds of
each, and median and range of their ratio. `vitreous.accelerate.kernels.attend` chooses by these figures. Freed memory
is kept by the process, as in training.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from measuring import DTYPES, header, in_turn, precisions, ratios
from vitreous.machine.allocator import keep_freed_memory

# B, H, N and d.
SHAPES = ((128, 8, 65, 32), (64, 4, 64, 32), (16, 12, 197, 64), (2, 12, 785, 64), (2, 12, 1025, 64), (1, 12, 4097, 64))
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
PASSES = ("both", "forward", "forward, bias")


def written_out(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attention as explicit products, with all N x N weights."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return (scores if bias is None else scores + bias).softmax(-1) @ v


KERNELS: tuple[Attend, Attend] = (F.scaled_dot_product_attention, written_out)


def once(attend: Attend, inputs: list[Tensor], bias: Tensor | None) -> None:
    """Return a call of forward, and of backward if the inputs require gradients."""
    out = attend(*inputs, bias)
    if out.requires_grad:
        torch.autograd.grad(out, inputs, torch.ones_like(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    device = torch.device(options.device)
    keep_freed_memory()
    print(f"{header(device)}; {options.rounds} rounds\n")
    print("| B x H x N x d | dtype | pass | fused, ms | written out, ms | fused / written out |")
    print("|---|---|---|---|---|---|")
    for shape in SHAPES:
        for dtype in [DTYPES[name] for name in precisions(device)]:
            for kind in PASSES:
                training = kind == "both"
                inputs = [torch.randn(shape, dtype=dtype, device=device, requires_grad=training) for _ in range(3)]
                bias = torch.randn(shape[0], 1, 1, shape[2], dtype=dtype, device=device) if "bias" in kind else None
                works = {attend.__name__: lambda a=attend, i=inputs, b=bias: once(a, i, b) for attend in KERNELS}
                fused, plain = in_turn(works, device, options.rounds).values()
                cells = [" x ".join(map(str, shape)), str(dtype)[6:], kind]
                cells += [f"{1e3 * statistics.median(times):.1f}" for times in (fused, plain)]
                print(f"| {' | '.join(cells)} | {ratios(fused, plain)} |", flush=True)


if __name__ == "__main__":
    main()
