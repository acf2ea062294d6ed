"""Checks that a model's forward pass fits in this machine's memory, before any of it is allocated."""

from __future__ import annotations

from dataclasses import replace

from vitreous.accelerate.cost import forward_bytes
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError
from vitreous.machine.free_memory import memory_left
from vitreous.model.config import Size2d, ViTConfig, pair

__all__ = ["check_batch", "check_image", "image_bytes"]

_ASPECT_RATIO = 2  # assumed of an image that is resized before its center crop
_MARGIN = 1.2  # largest ratio of measured to counted memory (tests/checkpoint/test_costs.py)


def image_bytes(config: ViTConfig, pipeline: EvalPipeline, images: int = 1, merged: int = 0) -> int:
    """Return the memory in bytes that a batch takes from decoding to logits, at the pipeline's size.

    `images` is the batch size, and `merged` the number of tokens that each block merges.
    """
    height, width = pipeline.size
    ratio = pipeline.config.crop_ratio if pipeline.config.fit == "crop" else 1.0
    resized = int(height / ratio) * int(width / ratio) * _ASPECT_RATIO
    pixels = pipeline.channels * (resized + 3 * images * height * width)  # uint8
    return int(_MARGIN * (pixels + forward_bytes(config, pipeline.size, images, merged)))


def check_image(
    name: str,
    config: ViTConfig,
    pipeline: EvalPipeline,
    image_size: Size2d | None = None,
    patch_size: Size2d | None = None,
) -> None:
    """Raise if the forward pass of one image does not fit in the free memory.

    `name` is the checkpoint's in messages. A requested image size (height, width) or patch size in pixels replaces the
    pipeline's or the model's; the error is a ConfigError if an image size was requested, else a CheckpointError.
    """
    if image_size is not None:
        pipeline = replace(pipeline, size=pair(image_size))
    if patch_size is not None:
        config = replace(config, image_size=pipeline.size, patch_size=patch_size)
    needed, free = image_bytes(config, pipeline), memory_left()
    if free is None or needed <= free:
        return
    height, width = pipeline.size
    text = (
        f"'{name}' takes images of {height} x {width} pixels: one needs about {_gib(needed)} of memory, "
        f"{_gib(free)} are free"
    )
    smaller = _smaller_size(config, pipeline, free)
    remedy = f"Give a smaller size, such as --image-size {smaller}" if smaller else "Use a machine with more memory"
    raise (CheckpointError if image_size is None else ConfigError)(f"{text}. {remedy}")


def check_batch(config: ViTConfig, pipeline: EvalPipeline, images: int, merged: int = 0) -> None:
    """Raise if a batch does not fit in the free memory; arguments as :func:`image_bytes`."""
    free = memory_left()
    if free is None or image_bytes(config, pipeline, images, merged) <= free:
        return
    fitting = images
    while fitting > 1 and image_bytes(config, pipeline, fitting, merged) > free:
        fitting //= 2
    height, width = pipeline.size
    needed = _gib(image_bytes(config, pipeline, images, merged))
    raise ConfigError(
        f"a batch of {images} images of {height} x {width} pixels needs about {needed} of memory, {_gib(free)} are "
        f"free. Use --batch-size {fitting}"
    )


def _smaller_size(config: ViTConfig, pipeline: EvalPipeline, free: int) -> str | None:
    """Halve the size until it takes at most half of the free memory; return it in whole patches, as an option value."""
    patch = pair(config.patch_size)
    for halvings in range(1, 20):
        height, width = (max(p, (side >> halvings) // p * p) for side, p in zip(pipeline.size, patch, strict=True))
        size = (height, width)
        if 2 * image_bytes(config, replace(pipeline, size=size)) <= free:
            return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"
    return None


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
