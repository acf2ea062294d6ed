"""Random numbers of the data, a function of (seed, epoch, step, stream), drawn on the CPU whatever the device.

Each use of randomness ("flip", "crop", ...) has its own stream, so turning one on or off does not change the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["generator", "image_uniforms", "model_seed", "uniforms"]


def generator(seed: int, *coordinates: int, stream: str) -> np.random.Generator:
    """Return a generator that depends on its arguments only: counter-based Philox (Salmon et al. 2011), 128-bit key.

    The coordinates are the position in the run, such as epoch and step, each at least 0; ``stream`` names the use.
    """
    key = np.random.SeedSequence([seed % 2**64, zlib.crc32(stream.encode()), *coordinates])
    return np.random.Generator(np.random.Philox(key))


def uniforms(
    seed: int,
    epoch: int,
    step: int,
    *,
    stream: str,
    columns: int,
    count: int,
    offset: int = 0,
    positions: Sequence[int] | None = None,
) -> npt.NDArray[np.float32]:
    """Return uniform numbers in [0, 1) of shape (count, columns), one row per image of a step.

    The rows of a step do not depend on how it is cut into parts: a part that starts at image ``offset`` skips as many
    rows, and one with other ``positions`` in the step has theirs.
    """
    last = offset + count if positions is None else max(positions, default=-1) + 1
    rows = generator(seed, epoch, step, stream=stream).random((last, columns), dtype=np.float32)
    return rows[offset:] if positions is None else rows[list(positions)]


def image_uniforms(
    seed: int, view: int, index: npt.NDArray[np.int64], *, stream: str, columns: int
) -> npt.NDArray[np.float32]:
    """Return uniform numbers in [0, 1) of shape (B, columns) that depend on each image, not on when it is shown.

    The numbers are those of SplitMix64 (Steele et al. 2014) at the position of the image, ``index`` (B,) in its split.
    """
    key = np.random.SeedSequence([seed % 2**64, zlib.crc32(stream.encode()), view]).generate_state(1, np.uint64)[0]
    at = index.astype(np.uint64)[:, None] * np.uint64(columns) + np.arange(1, columns + 1, dtype=np.uint64)
    bits = key + at * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def model_seed(seed: int, batch: Mapping[str, Any]) -> int:
    """Return the seed of the model's own randomness (dropout, stochastic depth) on a training batch."""
    draws = generator(seed, batch["epoch"], batch["step"], stream="model")
    return int(draws.integers(2**62)) + int(batch.get("offset", 0))
