"""Attention on this CPU: the fused kernel against the products written out, forward and backward, A B A B.

    python benchmarks/attention.py

Prints a Markdown table: median milliseconds of each, and the median and range of the ratio of neighbours.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor

SHAPES = ((128, 8, 65, 32), (64, 4, 64, 32), (16, 12, 197, 64))  # B H N d
ROUNDS = 11


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(-1) @ v


def milliseconds(attend: object, shape: tuple[int, ...], dtype: torch.dtype) -> float:
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    start = time.perf_counter()
    attend(q, k, v).sum().backward()  # type: ignore[operator]
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {ROUNDS} rounds\n")
    print("| B x H x N x d | dtype | fused, ms | written out, ms | fused / written out |\n|---|---|---|---|---|")
    for shape in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            pairs = [
                (milliseconds(F.scaled_dot_product_attention, shape, dtype), milliseconds(written_out, shape, dtype))
                for _ in range(ROUNDS + 2)
            ][2:]
            ratios = sorted(a / b for a, b in pairs)
            fused, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
            spread = f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})"
            print(f"| {' x '.join(map(str, shape))} | {str(dtype)[6:]} | {fused:.1f} | {plain:.1f} | {spread} |")


if __name__ == "__main__":
    main()
