"""The suppression of Lightning's own output. Lightning itself is imported by what trains."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

__all__ = ["lower_log_levels", "silence_lightning"]

_LOGS = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero", "lightning_utilities")


_levels: dict[str, int] = {}  # that the logs have outside


def lower_log_levels() -> None:
    """Let Lightning log errors only. Its import sets levels of its own, so this is called after it too."""
    for log in map(logging.getLogger, _LOGS):
        if log.name not in _levels or log.level != logging.ERROR:
            _levels[log.name] = log.level
        log.setLevel(logging.ERROR)


@contextlib.contextmanager
def silence_lightning() -> Iterator[None]:
    """Suppress Lightning's log messages below errors, and its warnings about workers, log intervals and the like.

    Also torch.compile's advice to round float32 products on a GPU to 10 bits: a run in float32 means float32.
    """
    is_outermost = not _levels
    lower_log_levels()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning(\.|$)")
            warnings.filterwarnings("ignore", category=UserWarning, message=".*(lightning|Lightning|Trainer).*")
            warnings.filterwarnings("ignore", category=UserWarning, message="TensorFloat32")
            yield
    finally:
        if is_outermost:
            for name, level in _levels.items():
                logging.getLogger(name).setLevel(level)
            _levels.clear()
