"""The options of distillation. They belong to :class:`~vitreous.train.config.RunConfig`, as `distil`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vitreous.choices import unknown_choices
from vitreous.data.config import AugmentConfig
from vitreous.errors import ConfigError

__all__ = ["DistilConfig"]


@dataclass(frozen=True)
class DistilConfig:
    """A teacher: a trained model, usually a larger one, that the run learns from (:mod:`vitreous.train.distil`).

    Teacher and model see the same crop, flip, colours and mixing of each image (arXiv 2106.05237). The teacher has its
    own input size and normalisation.

    Args:
        teacher: The teacher: a model.safetensors, a run directory, or a file, folder or hub id of any supported family,
            or a short name of `vitreous models --pretrained`. None trains on the labels alone.
        targets: What to learn from it. `logits`: its probabilities of the classes (arXiv 1503.02531); its classes must
            be those of the data, in any order. `features`: its features; any model can teach these. `both`.
        features: Which features. `class-token`: the input of the head, which is the class token or what a model pools
            in its place. `patches`: the tokens of the patches after the last norm; those of another patch grid are
            interpolated. If the widths differ, a linear layer that is not saved maps the model's features to the
            teacher's.
        temperature: Divides the logits of both models before the softmax, or the sigmoid of several labels. Above 1,
            small probabilities count more.
        weight: Share of the teacher's probabilities in the loss of the classes, in (0, 1]; the labels have the rest.
        feature_weight: Factor of the loss of the features, which is added. That loss is the mean squared error to the
            teacher's features, each standardised (arXiv 2205.14141).
        views: Number of fixed views of each training image, drawn once by the seed; each epoch shows the next one. The
            teacher computes them once, before training, instead of in every step. This needs augmentation without
            mixing. None draws new views in each epoch; the teacher then computes in every step, or once if flips are
            the only augmentation.
    """

    teacher: str | None = None
    targets: Literal["logits", "features", "both"] = "logits"
    features: Literal["class-token", "patches"] = "class-token"
    temperature: float = 1.0
    weight: float = 0.9
    feature_weight: float = 1.0
    views: int | None = None

    def __post_init__(self) -> None:
        """Check choices and ranges, and report all problems in one error."""
        problems = list(unknown_choices(self))
        problems += [
            f"{name} is {getattr(self, name)}, it must be above 0"
            for name in ("temperature", "feature_weight")
            if not 0 < getattr(self, name) < float("inf")
        ]
        if not 0 < self.weight <= 1:
            problems.append(f"weight is {self.weight}, it is a share of the loss and must be in (0, 1]")
        if self.views is not None and self.views < 1:
            problems.append(f"views is {self.views}, it must be at least 1, or null for new views in each epoch")
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def uses_logits(self) -> bool:
        """Whether the model learns from the teacher's logits."""
        return self.targets != "features"

    @property
    def uses_features(self) -> bool:
        """Whether the model learns from the teacher's features."""
        return self.targets != "logits"

    def conflicts(self, augment: AugmentConfig, patch_dropout: float, mode: str, processes: int) -> Iterator[str]:
        """Yield a sentence for each contradiction to other options of a run with a teacher.

        ``mode`` is that of :class:`~vitreous.train.config.TuneConfig`.
        """
        if self.teacher is None:
            return
        if self.views is not None:
            if augment.mixes:
                yield (
                    f"distil.views {self.views} fixes the views of each image, but mixup {augment.mixup} and cutmix "
                    f"{augment.cutmix} mix other pairs in every step: set augment.mixup 0 and augment.cutmix 0, or "
                    "omit distil.views"
                )
            if augment.off_last and (augment.policy != "none" or augment.erasing):
                yield (
                    f"distil.views {self.views} fixes the views of each image, but augment.off_last "
                    f"{augment.off_last} changes them at the end: set it to 0, or omit distil.views"
                )
        if self.uses_features and self.features == "patches" and patch_dropout:
            yield (
                f"distil.features patches needs the tokens of all patches, but model.patch_dropout {patch_dropout} "
                "drops some: set it to 0, or use distil.features class-token"
            )
        if self.uses_features and mode == "linear":
            yield (
                f"distil.targets {self.targets} trains features, but tune linear keeps them as they are: use "
                "distil.targets logits, or tune full"
            )
        if processes > 1:
            yield "a run with a teacher uses one process: omit devices and nodes"
