"""What a model is asked for: logits, pooled features, or tokens."""

from __future__ import annotations

from typing import Literal, get_args

from vitreous.errors import ConfigError

__all__ = ["Output", "check_output"]

Output = Literal["logits", "features", "tokens"]
"""What a model returns: logits, pooled features, or all tokens after the last norm."""


def check_output(output: str) -> None:
    """Raise a ConfigError unless a model can return this output."""
    if output not in get_args(Output):
        raise ConfigError(f"output is '{output}', it must be {', '.join(get_args(Output))}")
