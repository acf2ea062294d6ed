"""The trained model that a fine-tuning starts from: opened, given a new head, and brought to the size wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vitreous.checkpoint.adapters.common import few
from vitreous.checkpoint.memory_check import check_image
from vitreous.checkpoint.opening import OpenOptions, open_fully
from vitreous.checkpoint.resize import resized
from vitreous.data.config import PreprocessConfig
from vitreous.errors import CheckpointError, ConfigError
from vitreous.model.config import Size2d, ViTConfig, pair
from vitreous.model.vit import VisionTransformer
from vitreous.train.config import RunConfig

__all__ = ["Start", "in_pixels", "start_from"]

_FREE = (  # fields of the model that fine-tuning may set as it likes: they change no tensor that is kept
    *("num_classes", "zero_head", "zero_residual", "init", "checkpoint_blocks"),
    *("dropout", "attention_dropout", "proj_dropout", "drop_path", "patch_dropout"),
)
_ASKED = ("image_size", "patch_size", "resample")  # the source's, unless others are asked for


@dataclass(frozen=True, eq=False)
class Start:
    """A source, opened.

    Attributes:
        name: As the user wrote it.
        family: Where it comes from: `vitreous`, `timm`, `google`, `huggingface` or `torchvision`.
        config: Of the source, at its own size.
        preprocess: Its evaluation pipeline.
        assumed: Whether that pipeline is only assumed, because nothing beside the weights says how.
        classes: That its head knew.
        state: The tensors that are kept, at the size wanted.
        resampled: What was done to positions and patches; empty where nothing was.
    """

    name: str
    family: str
    config: ViTConfig
    preprocess: PreprocessConfig
    assumed: bool
    classes: tuple[str, ...]
    state: dict[str, Tensor]
    resampled: dict[str, Any]

    def give(self, model: VisionTransformer) -> None:
        """Give a new model all of the source's tensors; its head stays as it is.

        Raises:
            CheckpointError: If a tensor would be lost or is missing.
        """
        missing, lost = model.load_state_dict(self.state, strict=False)
        missing = [name for name in missing if not name.startswith("head.")]
        if missing or lost:
            raise CheckpointError(f"'{self.name}' does not fit: missing {few(missing)}; left over {few(lost)}")

    def to_dict(self) -> dict[str, Any]:
        """What a model file and a report say of it."""
        return {"name": self.name, "family": self.family, "resampled": self.resampled, "classes": len(self.classes)}

    def describe(self, new: ViTConfig) -> str:
        """The source in a line: where it comes from, and from what to what it changes."""
        size = " -> ".join(dict.fromkeys(in_pixels(c.image_size) for c in (self.config, new)))
        text = f"{self.name} ({self.family}), {len(self.classes)} classes -> {new.num_classes}, {size} px"
        if "positions" in self.resampled:
            grids = " -> ".join("x".join(map(str, self.resampled["positions"][end])) for end in ("from", "to"))
            text += f", positions {grids} as {self.resampled['positions']['method']}"
        return text


def in_pixels(size: Size2d) -> str:
    """A size for people, as it may be typed: 384 or 480x640."""
    height, width = pair(size)
    return str(height) if height == width else f"{height}x{width}"


def start_from(config: RunConfig, keep: Collection[str]) -> tuple[RunConfig, Start]:
    """Open the source of a fine-tuning, and take the model and the evaluation pipeline from it.

    Args:
        config: Of the run; its `tune.source` is named.
        keep: What the user set on purpose: fields of the model by their name, those of the pipeline as
            `preprocess.mean`. Sizes, dropout and the like are set; others must be as in the source.

    Returns:
        The configuration, with the classes still to be taken from the data, and the source.

    Raises:
        CheckpointError: If the source cannot be opened.
        ConfigError: If the user's model has another structure, or patches do not tile the size.
    """
    name, asked = str(config.tune.source), config.model
    activation = asked.activation if "activation" in keep else None
    opened = open_fully(name, OpenOptions(activation=activation))
    own, pipeline = opened.model.config, opened.info.pipeline.config
    image_size, patch_size, method = (getattr(asked, field) if field in keep else None for field in _ASKED)
    check_image(name, own, opened.info.pipeline, image_size, patch_size)
    sized, state, record = resized(own, opened.model.state_dict(), image_size, patch_size, method)
    model = replace(sized, **{field: getattr(asked, field) for field in _FREE})
    model = replace(model, zero_head=asked.zero_head is not False)  # section 3.2
    keeps_hidden = own.head == "mlp" and "head" in keep and asked.head == "mlp"
    if not keeps_hidden:  # section 3.1: one linear layer at fine-tuning time
        model = replace(model, head="linear", head_hidden=None)
    _check(name, model, asked, keep)
    replaced = ("head.",) if keeps_hidden else ("head.", "pre_logits.")
    wanted = {field.name: getattr(config.preprocess, field.name) for field in dataclasses.fields(pipeline)}
    start = Start(
        name=name,
        family=opened.family,
        config=own,
        preprocess=pipeline,
        assumed=any("nothing beside the weights says how" in reason for reason in opened.reasons),
        classes=opened.info.classes,
        state={key: value for key, value in state.items() if not key.startswith(replaced)},
        resampled=record,
    )
    changes = {field: value for field, value in wanted.items() if f"preprocess.{field}" in keep}
    return replace(config, model=model, preprocess=replace(pipeline, **changes)), start


def _check(name: str, model: ViTConfig, asked: ViTConfig, keep: Collection[str]) -> None:
    """Refuse what the user set about the model's structure, where the source has another."""
    fields = [field.name for field in dataclasses.fields(model) if field.name in keep]
    structure = [field for field in fields if field not in (*_FREE, *_ASKED)]
    differing = [
        f"model.{field} is {getattr(asked, field)}, but '{name}' has {getattr(model, field)}"
        for field in structure
        if getattr(asked, field) != getattr(model, field)
    ]
    if differing:
        raise ConfigError(f"{'; '.join(differing)}: fine-tuning keeps the source's structure, leave it away")
