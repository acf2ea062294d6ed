"""What to do if a step does not fit into memory: split it into more micro-batches, which add up to the same step."""

from __future__ import annotations

import gc
import re

import torch

__all__ = ["is_out_of_memory", "more_parts", "release_memory"]

_MESSAGES = (  # patterns of plain RuntimeErrors
    "out of memory",  # CUDA and MPS
    "can't allocate memory",  # torch's CPU allocator
    "could not create a primitive(?! descriptor)",  # oneDNN; with "descriptor" it lacks a kernel instead
    "not enough memory",  # torch's CPU allocator on Windows
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a tensor did not fit into the memory of its device."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(re.search(pattern, str(error)) for pattern in _MESSAGES)


def more_parts(batch_size: int, parts: int) -> int | None:
    """Return the smallest divisor of `batch_size` from ``2 * parts`` on; None if a part has only one image already."""
    return next((n for n in range(2 * parts, batch_size + 1) if batch_size % n == 0), None)


def release_memory() -> None:
    """Release the memory of a failed step."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
