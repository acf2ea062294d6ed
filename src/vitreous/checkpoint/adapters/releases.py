"""What the names of facebookresearch's files and tensors say: licence, preparation of images, and DINOv2's own names.

:mod:`facebookresearch` reads and writes the files of DINOv3 and of MAE with its decoder. DINOv2 is so close to
timm that :mod:`timm` reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["from_dinov2", "images_of_dinov3", "is_cropped", "licence_of_file", "to_dinov2"]

# In fields of PreprocessConfig, as README.md of facebookresearch/dinov3 says.
_DINOV3: dict[str, Any] = {"fit": "squash", "interpolation": "bilinear"}
_SATELLITE: dict[str, Any] = {**_DINOV3, "mean": (0.430, 0.411, 0.296), "std": (0.213, 0.156, 0.143)}

_RELEASES = (  # beginnings of file names, the licence, and whether images are cropped (of a .pth)
    (r"vit_[blh]_1[46]_(lc_)?swag", "CC-BY-NC-4.0", False),  # which torchvision publishes
    (r"mae_(pretrain|finetuned|visualize)_vit_", "CC-BY-NC-4.0", True),
    (r"dinov3_vit\w+_pretrain", "DINOv3", False),
    (r"dinov2_vit[\w-]+\.pth", "Apache-2.0", False),
    (r"(deit_|dino_deit|dino_vit)[\w-]+\.pth", "Apache-2.0", True),
)
_DINOV2 = {"register_tokens": "reg_token"}
_DINOV2_GATED = {"mlp.w12.": "mlp.fc1.", "mlp.w3.": "mlp.fc2."}


def is_cropped(name: str) -> bool:
    """Return whether a file has the name of facebookresearch's MAE, DeiT or DINO, which crop 224 of 256 pixels."""
    return name.endswith(".pth") and any(crops for _, crops in _releases(name))


def images_of_dinov3(name: str) -> Mapping[str, Any]:
    """Return how images are prepared for a file of DINOv3; weights trained on satellite images have their own mean."""
    return _SATELLITE if "sat493m" in os.path.basename(name).lower() else _DINOV3


def licence_of_file(name: str) -> str | None:
    """Return the licence of a file with the name of one of facebookresearch's, or None."""
    return next((licence for licence, _ in _releases(name)), None)


def _releases(name: str) -> list[tuple[str, bool]]:
    return [row[1:] for row in _RELEASES if re.match(row[0], os.path.basename(name))]


def from_dinov2(name: str) -> str:
    """Return the name of a tensor here; others than DINOv2's stay as they are."""
    for theirs, ours in _DINOV2_GATED.items():
        name = name.replace(theirs, ours)
    return _DINOV2.get(name, name)


def to_dinov2(name: str, gated: bool) -> str:
    """Invert :func:`from_dinov2`; `gated` is whether the MLPs are."""
    for theirs, ours in _DINOV2_GATED.items() if gated else ():
        name = name.replace(ours, theirs)
    return {ours: theirs for theirs, ours in _DINOV2.items()}.get(name, name)
