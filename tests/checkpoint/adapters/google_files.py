"""Builds .npz files in Google's layouts with random values in every array."""

from __future__ import annotations

from pathlib import Path

import numpy as np

RELEASED = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
FLAX = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")


class Arrays:
    """Arrays by name; norms around 1, kernels scaled by fan-in, all others small."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.tree: dict[str, np.ndarray] = {}

    def kernel(self, name: str, *shape: int, fan_in: int) -> None:
        self.tree[name] = (self.random.standard_normal(shape) / fan_in**0.5).astype(np.float32)

    def small(self, name: str, *shape: int) -> None:
        self.tree[name] = (0.3 * self.random.standard_normal(shape)).astype(np.float32)

    def norm(self, name: str, *shape: int) -> None:
        self.tree[f"{name}/scale"] = (1 + 0.2 * self.random.standard_normal(shape)).astype(np.float32)
        self.small(f"{name}/bias", *shape)

    def dense(self, name: str, inputs: int, outputs: int) -> None:
        self.kernel(f"{name}/kernel", inputs, outputs, fan_in=inputs)
        self.small(f"{name}/bias", outputs)

    def attention(self, name: str, width: int, heads: int) -> None:
        for part in ("query", "key", "value"):
            self.kernel(f"{name}/{part}/kernel", width, heads, width // heads, fan_in=width)
            self.small(f"{name}/{part}/bias", heads, width // heads)
        self.kernel(f"{name}/out/kernel", heads, width // heads, width, fan_in=width)
        self.small(f"{name}/out/bias", width)

    def mlp(self, name: str, width: int, hidden: int) -> None:
        self.dense(f"{name}/Dense_0", width, hidden)
        self.dense(f"{name}/Dense_1", hidden, width)


def google(
    *,
    width: int = 64,
    depth: int = 2,
    heads: int = 2,
    mlp: int = 128,
    patch: int = 8,
    side: int = 6,
    classes: int = 7,
    names: tuple[str, ...] = RELEASED,
    cls: bool = True,
    position: str = "Transformer/posembed_input/pos_embedding",
    own_position: bool = True,
    representation: int = 0,
    pool: str | None = None,
    stages: tuple[int, ...] | None = None,
    norm_rank: int = 1,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return the arrays of a Vision Transformer, or of a hybrid if ``stages`` are given."""
    a = Arrays(seed)
    channels = 3 if stages is None else _resnet(a, stages, norm_rank)
    a.kernel("embedding/kernel", patch, patch, channels, width, fan_in=patch * patch * channels)
    a.small("embedding/bias", width)
    if cls:
        a.small("cls", 1, 1, width)
    if position:
        a.small(position, 1, side * side + int(cls and own_position), width)
    for i in range(depth):
        block = f"Transformer/encoderblock_{i}"
        a.norm(f"{block}/{names[0]}", width)
        a.attention(f"{block}/{names[1]}", width, heads)
        a.norm(f"{block}/{names[2]}", width)
        a.mlp(f"{block}/{names[3]}", width, mlp)
    a.norm("Transformer/encoder_norm", width)
    if pool is not None:
        a.small(f"{pool}probe", 1, 1, width)
        a.attention(f"{pool}MultiHeadDotProductAttention_0", width, heads)
        a.norm(f"{pool}LayerNorm_0", width)
        a.mlp(f"{pool}MlpBlock_0", width, mlp)
    if representation:
        a.dense("pre_logits", width, representation)
    if classes:
        a.dense("head", representation or width, classes)
    return a.tree


def _resnet(a: Arrays, stages: tuple[int, ...], norm_rank: int) -> int:
    """Add the stem of a hybrid and return its number of channels."""
    lead = (1,) * (norm_rank - 1)
    a.kernel("conv_root/kernel", 7, 7, 3, 64, fan_in=147)
    a.norm("gn_root", *lead, 64)
    channels = 64
    for i, length in enumerate(stages):
        width = 64 * 2**i
        for j in range(length):
            unit = f"block{i + 1}/unit{j + 1}"
            if j == 0:
                a.kernel(f"{unit}/conv_proj/kernel", 1, 1, channels, 4 * width, fan_in=channels)
                a.norm(f"{unit}/gn_proj", *lead, 4 * width)
            a.kernel(f"{unit}/conv1/kernel", 1, 1, channels, width, fan_in=channels)
            a.kernel(f"{unit}/conv2/kernel", 3, 3, width, width, fan_in=9 * width)
            a.kernel(f"{unit}/conv3/kernel", 1, 1, width, 4 * width, fan_in=width)
            for k, size in ((1, width), (2, width), (3, 4 * width)):
                a.norm(f"{unit}/gn{k}", *lead, size)
            channels = 4 * width
    return channels


def stacked(tree: dict[str, np.ndarray], depth: int) -> dict[str, np.ndarray]:
    """Stack the blocks along a first axis, like big_vision's scan."""
    first = "Transformer/encoderblock_0/"
    out = {name: array for name, array in tree.items() if "encoderblock_" not in name}
    for name in (name for name in tree if name.startswith(first)):
        inner = name.removeprefix(first)
        rows = [tree[f"Transformer/encoderblock_{i}/{inner}"] for i in range(depth)]
        out[f"Transformer/encoderblock/{inner}"] = np.stack(rows)
    return out


def save(path: Path, tree: dict[str, np.ndarray], prefix: str = "") -> Path:
    """Write an .npz."""
    np.savez(path, **{f"{prefix}{name}": array for name, array in tree.items()})
    return path
