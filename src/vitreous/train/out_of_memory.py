"""What to do when a step does not fit into memory: cut it into more parts, which add up to the same step."""

from __future__ import annotations

import gc
import re

import torch

__all__ = ["free_memory", "is_out_of_memory", "more_parts"]

_WORDS = (  # patterns of errors that are RuntimeErrors and no more
    "out of memory",  # CUDA's own, and MPS
    "can't allocate memory",  # torch's allocator on the CPU
    "could not create a primitive(?! descriptor)",  # oneDNN, which says no more; "descriptor": it has no such kernel
    "not enough memory",  # the same on Windows
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a tensor did not fit into the device's memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(re.search(words, str(error)) for words in _WORDS)


def more_parts(batch_size: int, parts: int) -> int | None:
    """Into how many equal parts to cut a step next: twice as many, or the next number above that divides it.

    Args:
        batch_size: Pictures of a step.
        parts: Into which it was cut.

    Returns:
        A divisor of `batch_size`; None where a part is one picture already.
    """
    return next((n for n in range(2 * parts, batch_size + 1) if batch_size % n == 0), None)


def free_memory() -> None:
    """Give back what a failed step held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
