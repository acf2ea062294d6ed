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
_DEPTH = "estimates depth by a decoder on features of several blocks"
_VIDEO = "takes videos"
_BOXES = "detects objects, and classifies no images"
_MASKS = "segments images, and classifies none"
_TEXT = "reads texts beside images"
_CONVOLUTIONS = "is made of convolutions"
_OTHERS = {
    **dict.fromkeys(("swin", "swinv2", "swin_v2"), f"{_WINDOWS} that shift, and {_STAGES}"),
    **dict.fromkeys(("sam", "sam2", "edgetam", "vitdet"), f"{_WINDOWS} in most of its blocks"),
    **dict.fromkeys(("maxvit", "maxxvit", "coatnet", "nest", "twins", "davit"), f"{_WINDOWS}, and {_STAGES}"),
    **dict.fromkeys(
        ("hiera", "mvit", "mvitv2", "pvt", "pvt_v2", "segformer", "cvt"), f"pools its tokens, and {_STAGES}"
    ),
    "xcit": "attends across channels in place of tokens",
    **dict.fromkeys(("dpt", "depth_anything", "prompt_depth_anything", "depth_pro", "zoedepth", "glpn"), _DEPTH),
    **dict.fromkeys(("videomae", "vivit", "timesformer", "vjepa2", "videoprism", "xclip"), _VIDEO),
    **dict.fromkeys(
        (
            *("yolos", "detr", "conditional_detr", "deformable_detr", "dab_detr", "rt_detr", "rt_detr_v2", "d_fine"),
            *("lw_detr", "rf_detr", "deimv2", "owlvit", "owlv2", "grounding_dino", "mm_grounding_dino", "omdet_turbo"),
        ),
        _BOXES,
    ),
    **dict.fromkeys(
        ("maskformer", "mask2former", "oneformer", "eomt", "eomt_dinov3", "upernet", "clipseg", "seggpt"), _MASKS
    ),
    **dict.fromkeys(("vilt", "blip", "blip_2", "flava", "groupvit", "git", "bridgetower"), _TEXT),
    **dict.fromkeys(("vitpose", "vitpose_backbone"), "finds the joints of people, and classifies no images"),
    **dict.fromkeys(("vitmatte", "swin2sr"), "returns images, and classifies none"),
    "perceiver": "attends from a few latents to all pixels",
    "imagegpt": "predicts the next pixel, with causal attention",
    **dict.fromkeys(
        (
            *("levit", "mobilevit", "mobilevitv2", "tiny_vit", "efficientformer", "efficientvit", "swiftformer"),
            "fastvit",
        ),
        f"mixes convolutions with attention, and {_STAGES}",
    ),
    **dict.fromkeys(
        (
            *(
                "convnext",
                "convnextv2",
                "resnet",
                "efficientnet",
                "regnet",
                "focalnet",
                "poolformer",
                "bit",
                "hgnet_v2",
            ),
            *("dinov3_convnext", "mobilenet_v1", "mobilenet_v2", "textnet"),
        ),
        f"{_CONVOLUTIONS} or pooling, without attention",
    ),
}
"""Beginnings of names, with what is said of the network."""


def refuse_others(source: ForeignCheckpoint) -> None:
    """Raise a CheckpointError that says what a network is, if its config.json states one of these."""
    document = source.documents.get("config.json") or {}
    stated = str(document.get("model_type") or document.get("architecture") or "").lower()
    for name, what in _OTHERS.items():
        if re.match(rf"{name}(?![a-z])", stated.replace("-", "_")):
            raise CheckpointError(
                f"'{source.name}' is no plain Vision Transformer: config.json says {stated[:60]}, which {what}"
            )
