"""The norms of a model. All of them are of one kind and have one epsilon. Shape: D width."""

from __future__ import annotations

from torch import nn

from vitreous.model.part import Shape

__all__ = ["build_norm"]


def build_norm(shape: Shape, width: int | None = None, used: bool = True) -> nn.Module:
    """Return a norm over the last dimension, of ``shape.norm`` and ``shape.norm_eps``.

    Args:
        shape: The model's dimensions and settings.
        width: Length of the dimension; None is the model's width (D).
        used: Whether the model has this norm. If not, the module returns its input.
    """
    if not used:
        return nn.Identity()
    kind = nn.RMSNorm if shape.norm == "rms" else nn.LayerNorm
    return kind(shape.width if width is None else width, eps=shape.norm_eps)
