"""What a model would take of this machine's memory for an image, before anything of it is taken."""

from __future__ import annotations

from dataclasses import replace

from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, ConfigError
from vitreous.machine.free_memory import memory_left
from vitreous.model.config import Size2d, ViTConfig, pair
from vitreous.model.footprint import forward_bytes

__all__ = ["check_batch", "check_image", "image_bytes"]

_LONGEST = 2  # sides of an image that is resized before its middle is cut, for one that is kept
_MARGIN = 1.2  # of what was measured to what was counted, at most (tests/checkpoint/test_allowance.py)


def image_bytes(config: ViTConfig, pipeline: EvalPipeline, images: int = 1, merged: int = 0) -> int:
    """Return the bytes that images take from their decoding to the logits, at the size that the pipeline gives.

    Args:
        config: The model.
        pipeline: What makes its input.
        images: That are computed together.
        merged: Tokens that each block joins with others.
    """
    height, width = pipeline.size
    ratio = pipeline.config.crop_ratio if pipeline.config.fit == "crop" else 1.0
    resized = int(height / ratio) * int(width / ratio) * _LONGEST
    pixels = pipeline.channels * (resized + 3 * images * height * width)  # those that wait are bytes
    return int(_MARGIN * (pixels + forward_bytes(config, pipeline.size, images, merged)))


def check_image(
    name: str,
    config: ViTConfig,
    pipeline: EvalPipeline,
    image_size: Size2d | None = None,
    patch_size: Size2d | None = None,
) -> None:
    """Raise if one image takes more memory than there is, at a size that is asked for or else the pipeline's.

    Args:
        name: The checkpoint, for messages.
        config: The model.
        pipeline: What makes its input.
        image_size: Height and width in pixels, where others are asked for.
        patch_size: Likewise, of a patch.

    Raises:
        ConfigError: If the size was asked for.
        CheckpointError: If the file says it.
    """
    if image_size is not None:
        pipeline = replace(pipeline, size=pair(image_size))
    if patch_size is not None:
        config = replace(config, image_size=pipeline.size, patch_size=patch_size)
    needed, left = image_bytes(config, pipeline), memory_left()
    if left is None or needed <= left:
        return
    height, width = pipeline.size
    text = (
        f"'{name}' sees images at {height} x {width} pixels: one takes about {_gib(needed)} of memory, "
        f"{_gib(left)} are free"
    )
    smaller = _smaller(config, pipeline, left)
    remedy = f"Give a smaller size, such as --image-size {smaller}" if smaller else "Use a machine with more memory"
    raise (CheckpointError if image_size is None else ConfigError)(f"{text}. {remedy}")


def check_batch(config: ViTConfig, pipeline: EvalPipeline, images: int, merged: int = 0) -> None:
    """Raise if a batch of images takes more memory than there is.

    Raises:
        ConfigError: With the largest batch that would fit.
    """
    left = memory_left()
    if left is None or image_bytes(config, pipeline, images, merged) <= left:
        return
    fitting = images
    while fitting > 1 and image_bytes(config, pipeline, fitting, merged) > left:
        fitting //= 2
    height, width = pipeline.size
    needed = _gib(image_bytes(config, pipeline, images, merged))
    raise ConfigError(
        f"{images} images of {height} x {width} pixels at a time take about {needed} of memory, {_gib(left)} are free. "
        f"Use --batch-size {fitting}"
    )


def _smaller(config: ViTConfig, pipeline: EvalPipeline, left: int) -> str | None:
    """The first half, quarter ... of the size that takes at most half of the memory, in whole patches, as typed."""
    patch = pair(config.patch_size)
    for halvings in range(1, 20):
        height, width = (max(p, (side >> halvings) // p * p) for side, p in zip(pipeline.size, patch, strict=True))
        size = (height, width)
        if 2 * image_bytes(config, replace(pipeline, size=size)) <= left:
            return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"
    return None


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
