"""Attention weights of an image, small enough to be stored in a page: one byte per weight, as many maps as fit.

Shapes: L stored blocks, S stored maps of a block (the mean of all heads, then S - 1 heads), H heads of the model,
(h, w) patches down and across, P prefix tokens, T = P + h w tokens.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from vitreous.inspection.maps.readout import readout
from vitreous.model.intermediates import Intermediates
from vitreous.model.vit import VisionTransformer

__all__ = ["StoredAttention", "head_maps", "store"]

_FEWEST_BLOCKS = 3  # before blocks become fewer than this, patches are joined


@dataclass(frozen=True, eq=False)
class StoredAttention:
    """The attention of one image: how much each token reads of every token.

    A weight is ``weights / 255 * scales`` of its row, and so exact to 1/510 of the largest weight of the row.

    Attributes:
        layers: The stored blocks, from 0.
        heads: The stored heads, from 0, beside the mean of all heads.
        weights: (L, S, T, T) uint8, queries by keys; map 0 of a block is the mean of all heads.
        scales: The largest weight of each row, (L, S, T) float32.
        prefix: Names of the P leading tokens that are no patches.
        grid: Cells down and across, (h, w).
        joined: How many patches along each side a cell stands for; attention to a cell is the sum over its patches, and
            that of a cell the mean.
        left_out: What did not fit, as a sentence; empty if everything is stored.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    weights: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    prefix: tuple[str, ...]
    grid: tuple[int, int]
    joined: int
    left_out: str

    def values(self) -> npt.NDArray[np.float32]:
        """Return the weights, (L, S, T, T) float32."""
        return (self.weights / np.float32(255) * self.scales[..., None]).astype(np.float32)

    def encoded(self) -> str:
        """Return the weights, then the scales as little-endian float32, in base64."""
        return base64.b64encode(self.weights.tobytes() + self.scales.astype("<f4").tobytes()).decode("ascii")


@torch.no_grad()
def store(values: Intermediates, max_bytes: int, has_class_token: bool) -> StoredAttention:
    """Store the attention of a pass of one image.

    All heads of all blocks are stored if they fit; else fewer heads, evenly spaced; else only the mean of the heads, of
    fewer blocks; and where not even three blocks fit, 2 x 2 patches are joined, repeatedly.

    Args:
        values: Of the pass, with the blocks to store.
        max_bytes: Limit of the weights and scales, before base64.
        has_class_token: Whether the first token is the class token; other prefix tokens are registers.
    """
    grid, P, joined = values.grid, values.prefix_tokens, 1
    H = values.layers[0].queries.shape[1]
    while True:
        h, w = -(-grid[0] // joined), -(-grid[1] // joined)
        chosen = _choose(len(values.layers), H, P + h * w, max_bytes)
        if chosen is not None or h * w == 1:
            break
        joined *= 2
    blocks, heads = chosen or ((len(values.layers) - 1,), ())
    groups = _groups(grid, P, joined).to(values.tokens.device)
    weights, scales = [], []
    for number in blocks:
        maps = values.layers[number].weights()[0].float()  # H T T, one block at a time
        maps = torch.cat([maps.mean(0, keepdim=True), maps[list(heads)]])
        maps = (groups / groups.sum(1, keepdim=True)) @ maps @ groups.T  # mean of queries, sum of keys
        top = maps.amax(-1)
        scales.append(top.cpu().numpy())
        weights.append((255 * maps / top[..., None]).round().to(torch.uint8).cpu().numpy())
    layers = tuple(values.layers[number].index for number in blocks)
    first = ["class token"] if has_class_token else []
    names = (*first, *(f"register {n + 1}" for n in range(P - len(first))))
    sentence = _left_out(len(layers), len(values.layers), len(heads), H, joined)
    return StoredAttention(layers, heads, np.stack(weights), np.stack(scales), names, (h, w), joined, sentence)


@torch.no_grad()
def head_maps(model: VisionTransformer, values: Intermediates) -> npt.NDArray[np.float32]:
    """Return how much the tokens that the pooling reads attend to each patch, by block and head: (L, H, h, w).

    The maps are those of the method `attention`. ``values`` are those of a pass of one image.
    """
    row = readout(model, values)[0]  # 1 T
    found = []
    for layer in values.layers:
        weights = layer.weights()[0]  # H T T
        found.append((row.to(weights.dtype) @ weights)[:, 0, values.prefix_tokens :].unflatten(-1, values.grid))
    return torch.stack(found).float().cpu().numpy()


def _choose(depth: int, H: int, T: int, max_bytes: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return positions of blocks, and heads, that fit; None if fewer than three blocks do."""
    maps = max_bytes // (T * T + 4 * T)
    if maps >= 2 * depth:
        return tuple(range(depth)), _spaced(H, min(H, maps // depth - 1))
    if maps >= min(depth, _FEWEST_BLOCKS):
        return _spaced(depth, min(depth, maps)), ()
    return None


def _spaced(n: int, count: int) -> tuple[int, ...]:
    """Return so many of the numbers from 0 to n - 1, evenly spaced, with the last."""
    return tuple(sorted({n - 1 - round(k * (n - 1) / max(count - 1, 1)) for k in range(count)}))


def _groups(grid: tuple[int, int], P: int, joined: int) -> torch.Tensor:
    """Return which tokens each stored token stands for, (stored tokens, tokens) of 0 and 1."""
    h, w = grid
    across = -(-w // joined)
    row, column = torch.arange(h)[:, None] // joined, torch.arange(w) // joined
    cells = (P + row * across + column).flatten()
    return torch.nn.functional.one_hot(torch.cat([torch.arange(P), cells])).T.float()


def _left_out(layers: int, depth: int, heads: int, H: int, joined: int) -> str:
    parts = [
        *([f"{layers} of {depth} blocks"] if layers < depth else []),
        *([f"{heads or 'none'} of {H} heads beside their mean"] if heads < H else []),
        *([f"{joined} x {joined} patches as one"] if joined > 1 else []),
    ]
    return f"To keep the page small, it has {', '.join(parts)}." if parts else ""
