"""The suppression of Lightning's own output. Lightning itself is imported by what trains."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

__all__ = ["lower_log_levels", "silence_lightning"]

_LOGS = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero", "lightning_utilities")


def lower_log_levels() -> None:
    """Let Lightning log errors only. Its import sets a level of its own, so this is called after it too."""
    for name in _LOGS:
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def silence_lightning() -> Iterator[None]:
    """Suppress Lightning's log messages below errors, and its warnings about workers, log intervals and the like.

    Also torch.compile's advice to round float32 products on a GPU to 10 bits: a run in float32 means float32.
    """
    logs = [logging.getLogger(name) for name in _LOGS]
    levels = [log.level for log in logs]
    lower_log_levels()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning(\.|$)")
            warnings.filterwarnings("ignore", category=UserWarning, message=".*(lightning|Lightning|Trainer).*")
            warnings.filterwarnings("ignore", category=UserWarning, message="TensorFloat32")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
