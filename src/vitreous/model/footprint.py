"""Memory that images take in a forward pass without gradients: a closed form, for questions that must cost nothing.

What a training step keeps is counted by :func:`vitreous.model.sizes.cost`, in forward passes.

Shapes: N tokens, D width, M width of the MLP, H heads, d channels of a head; H x W pixels.
"""

from __future__ import annotations

from vitreous.model.config import ViTConfig, pair

__all__ = ["forward_bytes"]

_FLOAT, _DOUBLE = 4, 8  # bytes


def forward_bytes(config: ViTConfig, size: tuple[int, int], images: int = 1, merged: int = 0) -> int:
    """Return the bytes that are held at once, at most, beside the weights; float32.

    Args:
        config: The model.
        size: Height and width in pixels of the images.
        images: That are computed together.
        merged: Tokens that each block joins with others (:mod:`vitreous.model.merging`).
    """
    height, width = size
    ph, pw = pair(config.patch_size)
    patches = (height // ph) * (width // pw)
    N, D = patches + config.prefix_tokens, config.width
    pixels = height * width * config.in_channels
    block = max(6 * N * D, 4 * N * D + 2 * N * config.mlp_dim)  # attention's projections, or the MLP's hidden layer
    scores = 0
    if config.position == "relative":  # no fused kernel: offsets' scores, gathered, padded, and added
        scores = config.heads * N * (2 * patches) + 3 * config.heads * N * N + 2 * patches * patches
    pool = 15 * N * D if config.pool == "map" else 0  # keys and values of all tokens, scaled for one query
    if merged:  # how alike the tokens of the two halves are, and then which of them join
        half = patches // 2
        scores += half * max(half, 5 * min(merged, half) // 4)
    stem = _stem(config, height, width)
    each = pixels + max(stem, 2 * N * D, block + scores, pool)
    return _FLOAT * images * each + _table(config, size, patches)


def _stem(config: ViTConfig, height: int, width: int) -> int:
    """Numbers that the stem's largest layer holds: before and after its functions, and as its kernel lays them out."""
    pixels = height * width * config.in_channels
    if config.stem == "conv":
        layers = max(1, pair(config.patch_size)[0].bit_length() - 1)
        first = max(8, config.width >> (layers - 1)) if config.conv_width is None else config.conv_width
        return 5 * first * height * width // (1 if config.conv_stem == "max-pool" else 4) + pixels
    return 3 * config.resnet_width * height * width // 4 if config.stem == "resnet" else 0


def _table(config: ViTConfig, size: tuple[int, int], patches: int) -> int:
    """Bytes of the positions' table while it is made."""
    if config.position == "sincos-2d":  # float64: angles, their sines and cosines, all of them side by side
        return patches * config.width * (2 * _DOUBLE + _DOUBLE // 2)
    if config.position == "rope-2d":
        return patches * config.head_dim * 5 * _DOUBLE
    if config.position in ("learned", "learned-2d") and size != pair(config.image_size):
        return patches * config.width * 3 * _FLOAT
    return 0
