"""A model's configuration from untrusted JSON: types are checked before anything is built. Also file format 1."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any

from vitreous.choices import fits
from vitreous.model.config import PARTS, ViTConfig

__all__ = ["MAX_BLOCKS", "MOVED", "invalid_fields", "too_many_blocks", "upgraded"]

MAX_BLOCKS = 1000
"""Upper limit of encoder or ResNet blocks that a file may claim; building a block takes time."""

MOVED: dict[str, tuple[str, str]] = {
    "conv_stem": ("stem", "downsample"),
    "conv_width": ("stem", "width"),
    "resnet_layers": ("stem", "layers"),
    "resnet_width": ("stem", "width"),
    "resnet_norm": ("stem", "norm"),
    "patch_activation": ("stem", "activation"),
    "position_prefix": ("position", "prefix"),
    "resample": ("position", "resample"),
    "qkv_bias": ("attention", "qkv_bias"),
    "qk_norm": ("attention", "qk_norm"),
    "attention_dropout": ("attention", "dropout"),
    "proj_dropout": ("attention", "proj_dropout"),
    "activation": ("mlp", "activation"),
    "layer_scale": ("block", "layer_scale"),
    "drop_path": ("block", "drop_path"),
    "zero_residual": ("block", "zero_residual"),
    "checkpoint_blocks": ("block", "checkpoint"),
    "pool_prefix": ("pool", "prefix"),
    "head_hidden": ("head", "hidden"),
    "head_activation": ("head", "activation"),
    "zero_head": ("head", "zero"),
}
"""Fields of format 1, where parts had no options of their own, and the part and option that each became."""

_KINDS_OF = {"conv": ("conv_stem", "conv_width"), "resnet": ("resnet_layers", "resnet_width", "resnet_norm")}


def upgraded(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a :class:`~vitreous.model.config.ViTConfig` for the flat fields of format 1.

    An option that its part's kind does not have had no effect, and is dropped.
    """
    fields = {name: value for name, value in flat.items() if name not in MOVED}
    foreign = {name for kind, names in _KINDS_OF.items() if flat.get("stem") != kind for name in names}
    for part, kinds in PARTS.items():
        kind = next((k for k in kinds if k.kind == flat.get(part)), type(getattr(ViTConfig(), part)))
        options = {
            option: flat[name]
            for name, (owner, option) in MOVED.items()
            if owner == part and name in flat and name not in foreign and option in kind.__dataclass_fields__
        }
        if options.get("prefix", ...) is None:  # format 1 had null for the default of the kind
            del options["prefix"]
        if part in flat or options:
            fields[part] = {"kind": flat.get(part, kind.kind), **options}
    return fields


def invalid_fields(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each field of a configuration that is unknown or whose value is of the wrong type.

    Options of parts are checked where the configuration is built.
    """
    types = typing.get_type_hints(ViTConfig)
    for name, value in fields.items():
        if name not in types:
            yield f"unknown field '{name:.60}'"
        elif name not in PARTS:
            if not fits(value, types[name]):
                yield f"{name} is {value!r:.60}"
        elif not isinstance(value, dict) or not isinstance(value.get("kind", ""), str):
            yield f"{name} is {value!r:.60}"


def too_many_blocks(config: ViTConfig) -> str | None:
    """Return why a model of an untrusted file is not built: it would have more blocks than any real one."""
    counts = {"blocks": config.depth, "blocks in its ResNet stem": sum(getattr(config.stem, "layers", ()))}
    for what, count in counts.items():
        if count > MAX_BLOCKS:
            return f"the model has {count:,} {what}, the limit is {MAX_BLOCKS:,}"
    return None
