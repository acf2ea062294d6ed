"""Starts the run that a configuration asks for."""

from __future__ import annotations

from typing import Any, cast

from rich.console import Console

from vitreous.train.config import RunConfig
from vitreous.train.console import Display
from vitreous.train.finish import RunResult

__all__ = ["train"]


def train(config: RunConfig, *, on_stderr: bool, **options: Any) -> RunResult:
    """Train or pretrain; the further options are those of :func:`vitreous.train.run.run`.

    With `on_stderr`, the lines of the run go to stderr, because a JSON document goes to stdout.
    """
    options["view"] = Display(Console(stderr=True, soft_wrap=True)) if on_stderr else None
    if config.verb == "pretrain":
        from vitreous.train.pretrain.config import PretrainConfig
        from vitreous.train.pretrain.run import pretrain

        return pretrain(cast(PretrainConfig, config), **options)
    from vitreous.train.run import run

    return run(config, **options)
