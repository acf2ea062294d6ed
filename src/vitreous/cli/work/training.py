"""Starts the run that a configuration asks for."""

from __future__ import annotations

from typing import Any, cast

from vitreous.train.config import RunConfig
from vitreous.train.finish import RunResult

__all__ = ["train"]


def train(config: RunConfig, **options: Any) -> RunResult:
    """Train or pretrain; the options are those of :func:`vitreous.train.run.run`."""
    if config.verb == "pretrain":
        from vitreous.train.pretrain.config import PretrainConfig
        from vitreous.train.pretrain.run import pretrain

        return pretrain(cast(PretrainConfig, config), **options)
    from vitreous.train.run import run

    return run(config, **options)
