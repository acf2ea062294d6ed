"""No position embedding."""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.model.positions.base import Position

__all__ = ["NoPosition"]


@dataclass(frozen=True)
class NoPosition(Position):
    """`none`: no positions, so the model ignores the order of the patches."""

    kind = "none"
