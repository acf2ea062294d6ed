"""The table of sizes, and what a model of each costs. Adding a size is adding a row to ``SIZES``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from vitreous.errors import UsageError, did_you_mean
from vitreous.model.config import Size2d, ViTConfig, pair
from vitreous.model.vit import VisionTransformer

__all__ = ["SIZES", "Cost", "Size", "config_of", "cost", "create"]


@dataclass(frozen=True)
class Size:
    """One row: the shape of the encoder, the patch and picture (pixels) meant where none are named, and its source.

    A hybrid's ``resnet`` has the bottlenecks per stage of its stem, by patch size.
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
_R50 = {16: (3, 4, 9), 32: (3, 4, 6, 3)}  # for 16 pixels a token, stage 4 is moved into stage 3
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
    # For 32-pixel pictures, named width x depth.
    "128x6": Size(128, 6, 256, 2, 4, 32, "vitreous, for two CPU cores"),
    "192x9": Size(192, 9, 384, 12, 4, 32, "arXiv 2112.13492, section 4.1 (ViT)"),
    "256x6": Size(256, 6, 512, 8, 4, 32, "public notebook tutorials"),
    "256x7": Size(256, 7, 512, 4, 4, 32, "arXiv 2104.05704, table 1 (ViT-Lite-7)"),
    "256x24": Size(256, 24, 512, 8, 4, 32, "public notebook tutorials"),
    "384x7": Size(384, 7, 384, 12, 4, 32, "omihub777/ViT-CIFAR"),
}


def config_of(name: str, **overrides: Any) -> ViTConfig:
    """Return the configuration of a size such as ``"B/16"``, ``"H/14"``, ``"B"``, ``"R50+B/16"`` or ``"128x6/4"``.

    Args:
        name: A row of ``SIZES``, with or without a patch size in pixels.
        **overrides: Any other field of :class:`ViTConfig`.

    Raises:
        UsageError: If there is no such size, or the patch is no number.
    """
    size_name, slash, patch = name.partition("/")
    size = SIZES.get(size_name)
    if size is None:
        alike = [known for known in SIZES if known.lower() == size_name.lower()]
        hint = f" Did you mean '{alike[0]}'?" if alike else did_you_mean(size_name, SIZES)
        raise UsageError(f"there is no model size '{size_name}'.{hint} Known: {', '.join(SIZES)}")
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
            raise UsageError(f"'{name}': a ResNet leads to {patches} pixels a token, as in {size_name}/{patches[:2]}")
        fields |= {"stem": "resnet", "resnet_layers": size.resnet[fields["patch_size"]]}
    unknown = sorted(set(overrides) - set(ViTConfig.__dataclass_fields__))
    if unknown:
        known = ViTConfig.__dataclass_fields__
        raise UsageError(" ".join(f"A model has no option '{name}'.{did_you_mean(name, known)}" for name in unknown))
    return ViTConfig(**(fields | overrides))


def create(name: str, **overrides: Any) -> VisionTransformer:
    """Build a model of a named size with fresh weights, for example ``create("B/16", num_classes=10)``.

    Args and errors as :func:`config_of`.
    """
    return VisionTransformer(config_of(name, **overrides))


@dataclass(frozen=True)
class Cost:
    """What a model costs per picture.

    Attributes:
        parameters: Number of parameters.
        tokens: Length of the sequence.
        flops: Floating-point operations of one forward pass (2 per multiply-add), matrix products and convolutions
            counted, normalisation and activations not.
        activation_bytes: What one training step keeps for the backward pass, in float32, with attention's weights
            kept (a fused attention kernel keeps less).
    """

    parameters: int
    tokens: int
    flops: int
    activation_bytes: int


def cost(config: ViTConfig, image_size: Size2d | None = None) -> Cost:
    """Count exactly, by forward passes without data (on torch's meta device).

    Args:
        config: The model.
        image_size: Pixels, if not the configuration's own.
    """
    if image_size is not None:
        config = replace(config, image_size=image_size)
    with torch.device("meta"):
        model = VisionTransformer(config)
        image = torch.empty(1, config.in_channels, *pair(config.image_size))
        saved: dict[int, Tensor] = {}
        # Tensors that share one storage are kept once; holding them keeps their ids apart.
        keep = saved_tensors_hooks(lambda t: saved.setdefault(t.untyped_storage()._cdata, t), lambda t: t)
        with FlopCounterMode(display=False) as counter:
            model.eval().forward_head(model.forward_features(image))  # all tokens of all blocks, as the paper counts
        with keep:
            model.train()(image)
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    kept = sum(t.untyped_storage().nbytes() for key, t in saved.items() if key not in own)
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(parameters, config.tokens, counter.get_total_flops(), kept)
