"""What networks are that are no plain Vision Transformers, by the name that their config.json states.

They are refused; the line says why, in place of the tensors that do not fit.
"""

from __future__ import annotations

import re

from vitreous.checkpoint.adapters.common import ForeignCheckpoint
from vitreous.errors import CheckpointError

__all__ = ["refuse_others"]

_WINDOWS = "attends within windows"
_STAGES = "has stages of different resolution"
_CONVOLUTIONS = "is made of convolutions"
_OTHERS = {
    **dict.fromkeys(("swin", "swinv2", "swin_v2"), f"{_WINDOWS} that shift, and {_STAGES}"),
    **dict.fromkeys(("sam", "sam_vision_model", "vitdet"), f"{_WINDOWS} in most of its blocks"),
    **dict.fromkeys(("maxvit", "maxxvit", "coatnet", "nest", "twins", "davit"), f"{_WINDOWS}, and {_STAGES}"),
    **dict.fromkeys(
        ("hiera", "mvit", "mvitv2", "pvt", "pvt_v2", "segformer", "cvt"), f"pools its tokens, and {_STAGES}"
    ),
    "xcit": "attends across channels in place of tokens",
    "yolos": "detects objects, and classifies no images",
    **dict.fromkeys(
        ("levit", "mobilevit", "mobilevitv2", "tiny_vit", "efficientformer", "efficientvit"),
        f"mixes convolutions with attention, and {_STAGES}",
    ),
    **dict.fromkeys(
        ("convnext", "convnextv2", "resnet", "efficientnet", "regnet", "focalnet", "poolformer"),
        f"{_CONVOLUTIONS} or pooling, without attention",
    ),
}
"""Beginnings of names, with what is said of the network."""


def refuse_others(source: ForeignCheckpoint) -> None:
    """Raise a CheckpointError that says what a network is, if its config.json states one of these."""
    document = source.documents.get("config.json") or {}
    stated = str(document.get("model_type") or document.get("architecture") or "").lower()
    for name, what in _OTHERS.items():
        if re.match(rf"{name}(?![a-z])", stated):
            raise CheckpointError(
                f"'{source.name}' is no plain Vision Transformer: config.json says {stated[:60]}, which {what}"
            )
