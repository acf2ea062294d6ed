"""The table of named sizes. To add a size, add a row to ``SIZES``. :mod:`vitreous.accelerate.cost` computes costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitreous.errors import UsageError, did_you_mean
from vitreous.model.config import ViTConfig
from vitreous.model.stems import ResNetStem

__all__ = ["SIZES", "Size", "config_of"]


@dataclass(frozen=True)
class Size:
    """One row of the table: dimensions of the encoder, default patch and image size in pixels, and their source.

    For hybrids, ``resnet`` maps a patch size to the number of bottleneck blocks in each stage of the stem.
    """

    width: int
    depth: int
    mlp_dim: int
    heads: int
    patch_size: int
    image_size: int
    source: str
    resnet: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


_PAPER = "arXiv 2010.11929, table 1"
_DEIT = "arXiv 2012.12877, table 1"
_SCALING = "arXiv 2106.04560, table 2"
_HYBRID = "arXiv 2010.11929, section 4.1 and appendix B.1.1"
_AUGREG = "arXiv 2106.10270, table 2"
_R50 = {16: (3, 4, 9), 32: (3, 4, 6, 3)}  # at patch size 16, the blocks of stage 4 are part of stage 3
_BIG_VISION = "big_vision, models/vit.py, decode_variant"
SIZES: dict[str, Size] = {
    "mu": Size(32, 1, 128, 2, 16, 224, _BIG_VISION),
    "Ti": Size(192, 12, 768, 3, 16, 224, _DEIT),
    "S": Size(384, 12, 1536, 6, 16, 224, _DEIT),
    "M": Size(512, 12, 2048, 8, 16, 224, _BIG_VISION),
    "B": Size(768, 12, 3072, 12, 16, 224, _PAPER),
    "L": Size(1024, 24, 4096, 16, 16, 224, _PAPER),
    "H": Size(1280, 32, 5120, 16, 14, 224, _PAPER),
    "g": Size(1408, 40, 6144, 16, 14, 224, _SCALING),
    "G": Size(1664, 48, 8192, 16, 14, 224, _SCALING),
    "So400m": Size(1152, 27, 4304, 16, 14, 224, "arXiv 2305.13035, section 4"),
    "R26+S": Size(384, 12, 1536, 6, 32, 224, _AUGREG, {32: (2, 2, 2, 2)}),
    "R50+B": Size(768, 12, 3072, 12, 16, 224, _HYBRID, _R50),
    "R50+L": Size(1024, 24, 4096, 16, 16, 224, _HYBRID, _R50),
    # For images of 32 pixels. The names are width x depth.
    "128x6": Size(128, 6, 256, 2, 4, 32, "vitreous, for two CPU cores"),
    "192x9": Size(192, 9, 384, 12, 4, 32, "arXiv 2112.13492, section 4.1 (ViT)"),
    "256x6": Size(256, 6, 512, 8, 4, 32, "public notebook tutorials"),
    "256x7": Size(256, 7, 512, 4, 4, 32, "arXiv 2104.05704, table 1 (ViT-Lite-7)"),
    "256x24": Size(256, 24, 512, 8, 4, 32, "public notebook tutorials"),
    "384x7": Size(384, 7, 384, 12, 4, 32, "omihub777/ViT-CIFAR"),
}
"""The sizes by name, from the ViT paper (table 1) and later ones."""


def config_of(name: str, **overrides: Any) -> ViTConfig:
    """Return the configuration of a size such as ``"B/16"``, ``"H/14"``, ``"B"``, ``"R50+B/16"`` or ``"128x6/4"``.

    Args:
        name: A row of ``SIZES``, with or without a patch size in pixels.
        **overrides: Any other field of :class:`ViTConfig`.

    Raises:
        UsageError: If there is no such size or field, or the patch size is not a number.
    """
    size_name, slash, patch = name.partition("/")
    size = SIZES.get(size_name)
    if size is None:
        raise UsageError(f"there is no model size '{size_name}'.{_suggest(name)} Known: {', '.join(SIZES)}")
    if slash and not (patch.isdecimal() and int(patch)):
        raise UsageError(f"'{name}': the part after / is the patch size in pixels, such as {size_name}/16")
    fields: dict[str, Any] = {
        "width": size.width,
        "depth": size.depth,
        "mlp_dim": size.mlp_dim,
        "heads": size.heads,
        "patch_size": int(patch) if patch else size.patch_size,
        "image_size": size.image_size,
    }
    if size.resnet:
        if fields["patch_size"] not in size.resnet:
            patches = " or ".join(map(str, size.resnet))
            raise UsageError(f"'{name}': with a ResNet stem the patch is {patches}, as in {size_name}/{patches[:2]}")
        fields["stem"] = ResNetStem(layers=size.resnet[fields["patch_size"]])
    return ViTConfig().with_options(fields | overrides)


_WORDS = {"tiny": "Ti", "t": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H", "giant": "g"}


def _suggest(name: str) -> str:
    """Return a "did you mean" hint for other spellings of a size, such as S16, vit-b/16 or vit_small_patch16_224."""
    bare = re.sub(r"^(vit|deit3?)(?=[^a-z]|[a-z]+[^a-z])", "", name.lower()).strip("-_ ")
    words = {known.lower(): known for known in SIZES} | _WORDS
    for word in sorted(words, key=len, reverse=True):
        found = re.fullmatch(rf"{re.escape(word)}[-_ /]?(?:patch|p)?(\d*)(?:[-_ ]\d+)?(?:\..*)?", bare)
        if found:
            return f" Did you mean '{words[word]}{'/' + found[1] if found[1] else ''}'?"
    return did_you_mean(name.partition("/")[0], SIZES)
