"""Opens a teacher, and computes its answers to the images of the model that learns from it.

Shapes: B images, C channels, H x W pixels, K classes, N patches, D width of the teacher's features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.accelerate.cost import cost
from vitreous.accelerate.model import FastVisionTransformer
from vitreous.checkpoint.licence import recorded_licence
from vitreous.checkpoint.opening import OpenOptions, open_with_details
from vitreous.checkpoint.pretrained import find_row
from vitreous.data.preprocess import EvalPipeline
from vitreous.engines.cache import digest
from vitreous.engines.names import Precision
from vitreous.engines.torch_engine import TorchEngine
from vitreous.errors import ConfigError, pluralize
from vitreous.machine.device import computes_bf16
from vitreous.model.config import pair
from vitreous.model.vit import VisionTransformer
from vitreous.train.distil.config import DistilConfig

__all__ = ["PatchOutputs", "Teacher", "adapt_images", "class_order", "open_teacher"]

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as `EvalPipeline` makes grey images

Compute = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Logits and features of the teacher's own normalised images."""


class PatchOutputs(nn.Module):
    """A model that returns its logits, (B, K), and the tokens of its patches after the last norm, (B, N, D)."""

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = cast(FastVisionTransformer, model)  # as `open_teacher` makes it

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and patches of images (B, C, H, W)."""
        model = self.model
        tokens = model(images, "tokens")
        return model.head(model.read_out(tokens)), tokens[:, model.config.prefix_tokens :]


@dataclass(frozen=True, eq=False)
class Teacher:
    """An opened teacher."""

    name: str  # as the user wrote it; the full hub id for a short name
    family: str  # `vitreous`, `timm`, `google`, `huggingface` or `torchvision`
    model: FastVisionTransformer  # float32, in evaluation mode
    pipeline: EvalPipeline  # its own evaluation pipeline
    classes: tuple[str, ...]  # of its head
    licence: str | None  # of its weights, if their origin states one
    several: bool = False  # whether its logits are of several labels, each with a sigmoid
    terms: str = ""  # what the licence allows, or that a download states none, for the user
    commit: str | None = None  # of a download

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its configuration and weights."""
        return digest(self.model)

    @cached_property
    def flops(self) -> float:
        """Operations for one image."""
        return cost(self.model.config).flops

    @property
    def grid(self) -> tuple[int, int]:
        """Its patches down and across."""
        (height, width), (ph, pw) = self.pipeline.size, pair(self.model.config.patch_size)
        return height // ph, width // pw

    def feature_width(self, kind: str) -> int:
        """Return the width of its features; `kind` is that of :class:`DistilConfig`."""
        return self.model.config.width if kind == "patches" else self.model.config.features

    def in_loop(self, device: torch.device, kind: str) -> Compute:
        """Return what computes in every step: torch, in bf16 where the device computes that in hardware."""
        precision: Precision = "bf16" if computes_bf16(device) else "float32"
        model = self.model.to(device)
        return TorchEngine(model, precision, PatchOutputs) if kind == "patches" else TorchEngine(model, precision)

    def to_dict(self) -> dict[str, Any]:
        """Return what the model file and the report record."""
        found = {
            "name": self.name,
            "family": self.family,
            "digest": self.digest,
            "classes": len(self.classes),
            "image_size": list(self.pipeline.size),
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }
        stated = {"licence": self.licence, "commit": self.commit}
        return {**found, **{name: text for name, text in stated.items() if text is not None}}

    def describe(self) -> str:
        """Describe the teacher in a few words."""
        size = "x".join(map(str, dict.fromkeys(self.pipeline.size)))
        parameters = sum(p.numel() for p in self.model.parameters())
        return f"{self.name} ({self.family}), {parameters / 1e6:.3g} M parameters, {size} px"


def open_teacher(config: DistilConfig) -> Teacher:
    """Open the teacher of a run, at its own input size or, for a short name, at the size in the table."""
    name = str(config.teacher)
    row = None if Path(name).exists() else find_row(name)
    name, size = (name, None) if row is None else (row.full_id, row.image_size)
    opened = open_with_details(name, OpenOptions(image_size=size))
    info = opened.info
    model = opened.model.requires_grad_(False).eval()
    return Teacher(
        name,
        opened.family,
        model,
        info.pipeline,
        info.classes,
        recorded_licence(info.provenance),
        info.multilabel is not None,
        opened.terms,
        info.provenance.get("commit"),
    )


def class_order(teacher: Teacher, classes: Sequence[str], data: str, several: bool = False) -> Tensor:
    """Return the teacher's output for each class of the data, (K,), where both have the same classes by name.

    Raises:
        ConfigError: If they do not, or if only one of them has several labels for an image, as the data has if
            `several`. `data` is the name of the data in the message.
    """
    remedy = "give a teacher of these classes, or use --distil.targets features, for which any model can be the teacher"
    if not teacher.model.config.num_classes:
        raise ConfigError(f"the teacher '{teacher.name}' has no classes, so it has no logits to learn from: {remedy}")
    if teacher.several != several:
        kinds = ("one class to each image", "several labels or none")
        raise ConfigError(
            f"the teacher '{teacher.name}' gives {kinds[teacher.several]}, {data} gives {kinds[several]}: {remedy}"
        )
    theirs, missing = set(teacher.classes), [name for name in classes if name not in set(teacher.classes)]
    if missing or len(teacher.classes) != len(classes):
        others = [name for name in teacher.classes if name not in set(classes)]
        differing = [
            f"{whose} lacks {', '.join(map(repr, names[:3]))}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
            for whose, names in (("it", missing), (data, others))
            if names
        ]
        twice = [] if len(theirs) == len(teacher.classes) else ["it names a class twice"]
        raise ConfigError(
            f"the teacher '{teacher.name}' has {pluralize(len(teacher.classes), 'class', 'classes')}, {data} has "
            f"{len(classes):,}: {'; '.join(differing + twice)}. Logits need the same classes by name: {remedy}"
        )
    place = {name: index for index, name in enumerate(teacher.classes)}
    return torch.tensor([place[name] for name in classes])


def adapt_images(images: Tensor, own: EvalPipeline, theirs: EvalPipeline) -> Tensor:
    """Turn normalised images of the model into those of its teacher: the same view in its size and normalisation.

    Args:
        images: (B, C, H, W), after augmentation, of any size.
        own: The pipeline that normalised them.
        theirs: The teacher's pipeline, from which size, channels, mean and std are taken.
    """
    constant = partial(images.new_tensor, dtype=torch.float32)
    with torch.autocast(images.device.type, enabled=False):
        pixels = own.denormalise(images)
        if own.channels > theirs.channels:
            pixels = (pixels * constant(_LUMA).view(-1, 1, 1)).sum(1, keepdim=True)
        pixels = pixels.expand(-1, theirs.channels, -1, -1)
        if pixels.shape[2:] != theirs.size:
            pixels = F.interpolate(pixels, theirs.size, mode="bilinear", antialias=True)
        mean, std = (constant(values).view(-1, 1, 1) for values in (theirs.config.mean, theirs.config.std))
        return (pixels - mean) / std
