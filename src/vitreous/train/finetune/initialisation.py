"""Opens the pretrained model that a fine-tuning starts from, removes its head, and resizes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vitreous.checkpoint.adapters.common import join_first
from vitreous.checkpoint.licence import recorded_licence
from vitreous.checkpoint.memory_check import check_image
from vitreous.checkpoint.opening import OpenOptions, open_with_details
from vitreous.checkpoint.resize import Resample, resize_model
from vitreous.data.config import PreprocessConfig
from vitreous.errors import CheckpointError, ConfigError, pluralize
from vitreous.model.config import Size2d, ViTConfig, pair
from vitreous.model.vit import VisionTransformer
from vitreous.train.config import RunConfig
from vitreous.train.finetune.free_options import FREE_FIELDS, FREE_OF_PARTS, free_options

__all__ = ["Pretrained", "in_pixels", "open_pretrained"]

_FREE_IF_SET = ("shift", "jitter", "rescale")  # of rotary positions, in training alone; else as in the source
_FROM_SOURCE = ("image_size", "patch_size", "position.resample", "mlp.activation")  # unless the user sets them


@dataclass(frozen=True, eq=False)
class Pretrained:
    """An opened pretrained model."""

    name: str  # as the user wrote it
    family: str  # `vitreous`, `timm`, `google`, `huggingface` or `torchvision`
    config: ViTConfig  # at its original size
    preprocess: PreprocessConfig  # its evaluation pipeline
    assumed: bool  # whether that pipeline is an assumption, because the source does not specify one
    classes: tuple[str, ...]  # of its head
    state: dict[str, Tensor]  # the tensors that are kept, at the new size
    resampled: dict[str, Any]  # how position embeddings and patch filters were resampled; empty if they were not
    licence: str | None = None  # of the weights, if their origin states one
    terms: str = ""  # what it allows, or that a download states none, for the user
    commit: str | None = None  # of a download

    def load_into(self, model: VisionTransformer) -> None:
        """Load the tensors into a new model, whose head stays as it is."""
        missing, unexpected = model.load_state_dict(self.state, strict=False)
        missing = [name for name in missing if not name.startswith("head.")]
        if missing or unexpected:
            raise CheckpointError(
                f"'{self.name}' does not fit: missing {join_first(missing)}; unexpected {join_first(unexpected)}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return what the model file and the report record."""
        found = {"name": self.name, "family": self.family, "resampled": self.resampled, "classes": len(self.classes)}
        stated = {"licence": self.licence, "commit": self.commit}
        return {**found, **{name: text for name, text in stated.items() if text is not None}}

    def describe(self, new: ViTConfig) -> str:
        """Describe the model and how its classes, size and position embeddings change, in one line."""
        size = " -> ".join(dict.fromkeys(in_pixels(c.image_size) for c in (self.config, new)))
        classes = f"{pluralize(len(self.classes), 'class', 'classes')} -> {new.num_classes:,}"
        text = f"{self.name} ({self.family}), {classes}, {size} px"
        if "positions" in self.resampled:
            grids = " -> ".join("x".join(map(str, self.resampled["positions"][end])) for end in ("from", "to"))
            text += f", positions {grids} as {self.resampled['positions']['method']}"
        return text


def in_pixels(size: Size2d) -> str:
    """Format an image size as the user may type it: 384 or 480x640."""
    height, width = pair(size)
    return str(height) if height == width else f"{height}x{width}"


def open_pretrained(config: RunConfig, explicit: Collection[str]) -> tuple[RunConfig, Pretrained]:
    """Open the pretrained model, and take the model configuration and the evaluation pipeline from it.

    `explicit` names the fields that the user set: model fields by name, pipeline fields as `preprocess.mean`. Sizes,
    dropout and the like override those of the pretrained model; all other model fields must equal them. The classes of
    the returned configuration are still to be taken from the data.
    """
    name, asked = str(config.tune.source), config.model
    activation = asked.mlp.activation if "mlp.activation" in explicit else None
    opened = open_with_details(name, OpenOptions(activation=activation))
    own, pipeline = opened.model.config, opened.info.pipeline.config
    image_size = asked.image_size if "image_size" in explicit else None
    patch_size = asked.patch_size if "patch_size" in explicit else None
    method = _resampling(asked, own) if "position.resample" in explicit else None
    check_image(name, own, opened.info.pipeline, image_size, patch_size)
    model, state, record = resize_model(own, opened.model.state_dict(), image_size, patch_size, method)
    for part, options in FREE_OF_PARTS.items():
        model = model.with_options({part: {option: getattr(getattr(asked, part), option) for option in options}})
    model = model.with_options({field: getattr(asked, field) for field in FREE_FIELDS})
    chosen = [option for option in _FREE_IF_SET if f"position.{option}" in explicit]
    if chosen and model.position.kind == asked.position.kind:
        model = model.with_options({"position": {option: getattr(asked.position, option) for option in chosen}})
    keeps_hidden = own.head.kind == "mlp" and "head.kind" in explicit and asked.head.kind == "mlp"
    # Section 3.1: a single linear layer for fine-tuning; section 3.2: it starts at zero.
    zero = {"zero": asked.head.zero is not False}
    model = model.with_options({"head": zero if keeps_hidden else {"kind": "linear", **zero}})
    _check(name, model, asked, explicit)
    replaced = ("head.",) if keeps_hidden else ("head.", "pre_logits.")
    pretrained = Pretrained(
        name=name,
        family=opened.family,
        config=own,
        preprocess=pipeline,
        assumed=opened.assumed_pipeline,
        classes=opened.info.classes,
        state={key: value for key, value in state.items() if not key.startswith(replaced)},
        resampled=record,
        licence=recorded_licence(opened.info.provenance),
        terms=opened.terms,
        commit=opened.info.provenance.get("commit"),
    )
    fields = [field.name for field in dataclasses.fields(pipeline) if f"preprocess.{field.name}" in explicit]
    changes = {field: getattr(config.preprocess, field) for field in fields}
    return replace(config, model=model, preprocess=replace(pipeline, **changes)), pretrained


def _resampling(asked: ViTConfig, own: ViTConfig) -> Resample | None:
    """Return the interpolation that the user set, if it is more than what the recipe.yaml of a run repeats.

    That file has every option of the source's positions, also this one where there is no embedding to resample.
    """
    method: Resample | None = getattr(asked.position, "resample", None)
    repeats = asked.position.kind == own.position.kind and method == getattr(own.position, "resample", None)
    return None if repeats and not own.position.has_embedding else method


def _check(name: str, model: ViTConfig, asked: ViTConfig, explicit: Collection[str]) -> None:
    """Refuse an architecture, set by the user, that differs from that of the pretrained model."""
    free = {*free_options(), *_FROM_SOURCE, *(f"position.{option}" for option in _FREE_IF_SET)}
    values, theirs = _by_option(asked), _by_option(model)
    differing = [
        f"model.{option.removesuffix('.kind')} is {values[option]}, but '{name}' has {theirs.get(option)}"
        for option in sorted(explicit)
        if option in values and option not in free and values[option] != theirs.get(option)
    ]
    if differing:
        raise ConfigError(f"{'; '.join(differing)}: fine-tuning keeps the source's architecture, omit these options")


def _by_option(config: ViTConfig) -> dict[str, Any]:
    """Return every value of a configuration by option name, such as ``position.kind``."""
    found: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        inner = isinstance(value, dict)
        found |= {f"{name}.{option}": each for option, each in value.items()} if inner else {name: value}
    return found
