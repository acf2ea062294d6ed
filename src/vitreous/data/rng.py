"""Where every random draw of data comes from: a function of (seed, epoch, step, stream), on the CPU for any device.

A stream is one use of chance ("flip", "crop", ...): switching one on or off leaves the draws of the others alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["generator", "model_seed", "uniforms"]


def generator(seed: int, *coordinates: int, stream: str) -> np.random.Generator:
    """A generator that depends on its arguments only: counter-based Philox (Salmon et al. 2011), 128-bit key.

    Args:
        seed: Any integer; taken modulo 2^64.
        coordinates: Where in the run this is, such as epoch and step; each at least 0.
        stream: What the draws are for.
    """
    key = np.random.SeedSequence([seed % 2**64, zlib.crc32(stream.encode()), *coordinates])
    return np.random.Generator(np.random.Philox(key))


def uniforms(
    seed: int, epoch: int, step: int, *, stream: str, columns: int, count: int, offset: int = 0
) -> npt.NDArray[np.float32]:
    """Uniform numbers in [0, 1) for the images of a step, one row an image.

    Row i is the same however the step is cut into parts: a part that starts at image ``offset`` skips that many rows.

    Returns:
        Array of shape (count, columns).
    """
    rows = generator(seed, epoch, step, stream=stream).random((offset + count, columns), dtype=np.float32)
    return rows[offset:]


def model_seed(seed: int, batch: Mapping[str, Any]) -> int:
    """What a model's own draws on a training batch (dropout, stochastic depth) depend on: seed, epoch, step, part."""
    draws = generator(seed, batch["epoch"], batch["step"], stream="model")
    return int(draws.integers(2**62)) + int(batch.get("offset", 0))
