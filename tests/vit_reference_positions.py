"""Positions that act in attention, written a second time; part of :mod:`vit_reference`.

Shapes: B images, N tokens, d channels of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig

Weights = dict[str, Tensor]


def rope(x: Tensor, places: list[list[tuple[int, int]]], c: ViTConfig, grid: tuple[int, int], own: Tensor) -> Tensor:
    """RoPE: pairs of channels are complex numbers, turned by the column and by the row; B x N x d.

    ``own`` are the learned frequencies of this head, of columns and of rows, 2 x d/2, or empty.
    """
    d, p, prefix = x.shape[-1], c.position, c.prefix_tokens
    halves = getattr(p, "pairs", "") == "halves"
    numbers = torch.complex(x[..., : d // 2], x[..., d // 2 :]) if halves else torch.complex(x[..., ::2], x[..., 1::2])
    periods = [p.theta ** (4 * i / d) for i in range(d // 4)]
    if getattr(p, "rounding", "none") == "bfloat16":
        periods = torch.tensor(periods).bfloat16().tolist()
    turns: list[list[Tensor]] = []
    for image in places:
        of_image = [torch.zeros(d // 2, dtype=x.dtype)] * prefix
        for place in image:
            row, column = (coordinate(place[axis], grid[axis], p) for axis in (0, 1))
            if len(own):
                of_image.append(column * own[0] + row * own[1])
                continue
            first, second = (row, column) if p.first == "row" else (column, row)
            unit = 2 * math.pi if p.coordinates == "centred" else 1
            angles = [place * unit / t for place in (first, second) for t in periods]
            of_image.append(torch.tensor(angles, dtype=x.dtype))
        turns.append(torch.stack(of_image))
    angles = torch.stack(turns)
    turned = numbers * torch.complex(torch.cos(angles), torch.sin(angles))
    if halves:
        return torch.cat((turned.real, turned.imag), -1)
    return torch.stack((turned.real, turned.imag), -1).flatten(-2)


def coordinate(number: int, length: int, position: object) -> float:
    """The place of a row or column: its number, or its middle from -1 to 1, or scaled to another grid."""
    if getattr(position, "coordinates", "index") == "centred":
        return (number + 0.5 + position.offset) / length * 2 - 1  # type: ignore[attr-defined]
    place = number + getattr(position, "offset", 0.0)
    reference = getattr(position, "reference", None)
    return place / length * reference if reference else place


def offset_bias(w: Weights, name: str, c: ViTConfig, image: list[int], columns: int, h: int, prefix: int) -> Tensor:
    """What is added to the scores of all pairs of tokens of an image for head h: N x N."""
    tokens = prefix + len(image)
    bias = torch.zeros(tokens, tokens, dtype=torch.float64)
    for a in range(tokens):
        for b in range(tokens):
            if min(a, b) < prefix:
                if c.position.kind == "relative-bias":  # 0 from a prefix token to a patch, 1 back, 2 between them
                    table = w.get(f"{name}.relative_bias", w.get("pos_embed_relative"))
                    bias[a, b] = table[-3:][2 if max(a, b) < prefix else 0 if a < prefix else 1, h].to(bias)  # type: ignore[index]
                continue
            (ra, ca), (rb, cb) = divmod(image[a - prefix], columns), divmod(image[b - prefix], columns)
            if c.position.kind == "relative-bias":
                rows, cols = c.grid
                table = w.get(f"{name}.relative_bias", w.get("pos_embed_relative"))
                bias[a, b] = table[(ra - rb + rows - 1) * (2 * cols - 1) + ca - cb + cols - 1, h]  # type: ignore[index]
            else:
                own = f"{name}.relative" if f"{name}.relative_weight1" in w else "pos_embed"
                signed = [math.copysign(math.log(1 + abs(n)), n) for n in (ra - rb, ca - cb)]
                hidden = w[f"{own}_weight1"] @ torch.tensor(signed, dtype=bias.dtype) + w[f"{own}_bias1"]
                hidden = torch.where(hidden > 0, hidden, torch.zeros_like(hidden))
                bias[a, b] = w[f"{own}_weight2"][h] @ hidden + w[f"{own}_bias2"][h]
    return bias
