"""What timm's entry points set that no tensor shows: data, in the words of timm's constructors, by pattern of the name.

A file names its entry point and the arguments that differ from it, but not those that the entry point itself sets.
The rows are those of timm 1.0.31, ``timm/models/vision_transformer.py``, ``eva.py``, ``beit.py``, ``deit.py``,
``vision_transformer_relpos.py`` and ``naflexvit.py``; ``benchmarks/coverage.py`` compares every entry. A name with a
word that no row explains is refused, because it may change what the model computes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from vitreous.errors import CheckpointError

__all__ = ["entry_arguments", "other_kind", "refusal", "rope_of"]

_ROPE = {"use_rot_pos_emb": True}
_DINOV3 = {
    **_ROPE,
    "rope_type": "dinov3",
    "rope_temperature": 100.0,
    "rope_rotate_half": True,
    "norm_eps": 1e-5,
}
_PE = {
    **_ROPE,
    "rope_grid_indexing": "xy",
    "rope_grid_offset": 1.0,
    "norm_eps": 1e-5,
    "attn_pool_num_heads": 8,
}

_ENTRIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vit_base_patch32_siglip_*", {"act_layer": "gelu_tanh"}),
    ("vit_large_patch16_siglip_512", {"act_layer": "gelu_tanh"}),
    ("vit_large_patch16_siglip_gap_512", {"act_layer": "gelu_tanh"}),
    ("vit_so400m_patch16_siglip_*", {"act_layer": "gelu_tanh"}),
    ("vit_giantopt_patch16_siglip_*", {"act_layer": "gelu_tanh"}),
    ("vit_*_clip_*", {"norm_eps": 1e-5}),
    ("*_clip_quickgelu_*", {"act_layer": "quick_gelu"}),
    ("beit3_*", {"norm_eps": 1e-5}),
    ("naflexvit_*_siglip", {"act_layer": "gelu_tanh", "pos_embed_interp_mode": "bilinear"}),
    ("*_rpn_*", {"block_fn": "norm-after"}),
    ("test_vit3", {"num_heads": 3, "pool_include_prefix": True}),
    ("test_vit", {"num_heads": 2}),
    ("test_vit2", {"num_heads": 2}),
    ("test_vit4", {"num_heads": 3}),
    ("test_vit_relpos", {"num_heads": 3}),
    ("vit_base_patch16_gap_224", {"num_heads": 16}),
    ("*_huge_*", {"num_heads": 16}),
    ("vit_giant*_patch14_224", {"num_heads": 16}),
    ("vit_giant_patch16_gap_224", {"num_heads": 16}),
    ("vit_giant_patch14_clip_*", {"num_heads": 16}),
    ("vit_giantopt_*", {"num_heads": 16}),
    ("vit_gigantic_*", {"num_heads": 16}),
    ("*_gigantic_*", {"num_heads": 16}),
    ("*so400m_*", {"num_heads": 16}),
    ("beit3_giant_*", {"num_heads": 16}),
    ("eva_giant_*", {"num_heads": 16}),
    ("eva02_enormous_*", {"num_heads": 16, "block_fn": "norm-after"}),
    ("*_huge_plus_*", {"num_heads": 20}),
    ("vit_7b_*", {"num_heads": 32}),
    ("eva02_[!e]*", {**_ROPE, "ref_feat_shape": 16}),
    ("vit_*_rope_reg*", {**_ROPE, "ref_feat_shape": 16}),
    ("vit_*_rope_224", {**_ROPE, "rope_grid_indexing": "xy", "rope_temperature": 100.0}),
    ("vit_*_rope_ape_224", {**_ROPE, "rope_grid_indexing": "xy", "rope_temperature": 100.0}),
    ("vit_*_rope_mixed_*", {**_ROPE, "rope_grid_indexing": "xy", "rope_type": "mixed", "rope_temperature": 10.0}),
    ("vit_pe_*", _PE),
    ("vit_pe_*_gigantic_*", {"rope_grid_offset": 0.0}),
    ("vit_*_dinov3*", _DINOV3),
    ("vit_*_lingbot", _DINOV3),
)

_WORDS = re.compile(
    r"vit|deit3?|flexivit|eva|eva02|beit|beit3|beitv2|naflexvit|test|vit[234]?|tiny|xsmall|small|medium|mediumd|betwixt|base|"
    r"large|huge|giant|giantopt|gigantic|enormous|so150m2?|so400m|wee|pwee|little|patch\d+|r|r\d+|s\d+|p\d+|\d+|\d+x\d+|plus|"
    r"miil|gap|map|siglip|clip|quickgelu|dinov[23]|qkvb|tipsv2|reg\d*|rpn|xp|intern300m|distilled|rope|ape|mixed|pe|core|"
    r"spatial|lang|lingbot|relpos|srelpos|cls|clsgap|radio|v[34]|par|parfac|in21k|in1k|dino|sam|openai|laion2b|augreg|7b"
)
_OTHER_MODELS = (
    ("naflexvit_*_radio_*", "positions that are cropped from a square, as RADIO has"),
    ("naflexvit_*_par*", "positions that are cropped from a square, to keep the aspect ratio"),
    ("cait_*", "class attention behind layers without a class token, and attention that mixes its heads (CaiT)"),
    ("samvit_*", "attention in windows (SAM)"),
    ("*_sapiens2", "fewer heads for keys and values than for queries (Sapiens 2)"),
    ("vit_d*wee_*", "attention that is the difference of two maps"),
    ("vit_dlittle_*", "attention that is the difference of two maps"),
    ("vit_*_18x2_*", "two attentions and two MLPs side by side in each block"),
    ("vit_*_resnet*", "a stem of another ResNet than BiT's (a hybrid)"),
    ("vit_*_mci_*", "a stem of MobileOne blocks (a hybrid)"),
)
_OTHER_TENSORS = {
    "blocks.0.attn.lambda_q1": "attention that is the difference of two maps",
    "blocks.0.lambda_q1": "attention that is the difference of two maps",
    "blocks.0.attns.0.attn.qkv.weight": "two attentions and two MLPs side by side in each block",
    "blocks.0.attn.rel_pos_h": "attention with the decomposed relative positions of SAM",
    "blocks.0.attn.proj_l.weight": "attention that mixes its heads, as CaiT has",
    "blocks.0.attn.gate.weight": "attention with a gate",
}


def entry_arguments(architecture: str) -> dict[str, Any]:
    """Return the arguments that an entry point sets and that no tensor shows; later rows have precedence.

    ``norm_eps`` stands for timm's ``norm_layer``, and ``ref_feat_shape`` is one number, for a square.
    """
    architecture = architecture.partition(".")[0]  # without the tag of the weights
    found: dict[str, Any] = {}
    for pattern, arguments in _ENTRIES:
        if fnmatchcase(architecture, pattern):
            found |= arguments
    if architecture.startswith("vit_pe_"):  # scaled to the grid of the entry point's own image size
        sizes = re.search(r"patch(\d+)_(\d+)$", architecture)
        found["ref_feat_shape"] = int(sizes[2]) // int(sizes[1]) if sizes else None
    return found


def refusal(architecture: str) -> str | None:
    """Return what an entry point is, if it is no Vision Transformer that this package can express, else None."""
    architecture = architecture.partition(".")[0]
    for pattern, why in _OTHER_MODELS:
        if fnmatchcase(architecture, pattern):
            return f"{architecture} has {why}, which vitreous does not support"
    words = [word for word in architecture.split("_") if not _WORDS.fullmatch(word)]
    if architecture.startswith(("vit_", "deit", "flexivit", "eva", "beit", "naflexvit")) and words:
        return f"vitreous does not know what '{words[0]}' in the name of {architecture} changes"
    return None


def other_kind(tensors: Collection[str]) -> str | None:
    """Return what the names of tensors say about a model that is no Vision Transformer as this package has them."""
    for name, why in _OTHER_TENSORS.items():
        if name in tensors:
            return f"it has {why} ({name})"
    return None


def rope_of(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the options of rotary positions for timm's arguments, empty without; `name` is the checkpoint's."""
    if not arguments.get("use_rot_pos_emb"):
        return {}
    kind = arguments.get("rope_type", "cat")
    if kind == "mixed" and arguments.get("rope_grid_indexing", "ij") == "xy":
        return {"kind": "rope-mixed"}
    reference = arguments.get("ref_feat_shape")
    sides = set(reference) if isinstance(reference, list | tuple) else {reference}
    if kind not in ("cat", "dinov3") or len(sides) > 1:
        raise CheckpointError(
            f"'{name}' is a timm model that vitreous does not support: rotary positions of type {kind}"
        )
    return {
        "kind": "rope-2d",
        "theta": float(arguments.get("rope_temperature", 10000.0)),
        "coordinates": "centred" if kind == "dinov3" else "index",
        "offset": float(arguments.get("rope_grid_offset", 0.0)),
        "reference": sides.pop() if kind == "cat" else None,
        "first": "column" if arguments.get("rope_grid_indexing", "ij") == "xy" else "row",
        "pairs": "halves" if arguments.get("rope_rotate_half") else "adjacent",
        "rounding": arguments.get("rope_rounding", "none"),
        "shift": float(arguments.get("rope_shift_coords") or 0.0),
        "jitter": float(arguments.get("rope_jitter_coords") or 1.0) - 1,
        "rescale": float(arguments.get("rope_rescale_coords") or 1.0) - 1,
    }
