"""Joins a teacher to the training step: its answers to the images of a batch, and the loss that has part in them.

Shapes: B images, C channels, H x W pixels, K classes, N patches of the model, D width of the teacher's features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.accelerate.batch_parts import Forward, PartLoss
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.sources.opening import ImageData
from vitreous.errors import ConfigError
from vitreous.model.config import pair
from vitreous.train.config import RunConfig
from vitreous.train.distil.answers import Answers
from vitreous.train.distil.losses import feature_loss, label_logit_loss, logit_loss, match_grid, standardise
from vitreous.train.distil.teacher import Compute, Teacher, adapt_images, class_order
from vitreous.train.distil.views import Views, choose_views
from vitreous.train.multilabel.losses import choose_loss

__all__ = ["Distiller"]

_STORED = torch.float16  # of features, whose standardised values need no more


class Distiller(nn.Module):
    """What a training step needs of a teacher.

    Its only parameters are those of the projection. The teacher is no submodule: it is neither trained nor saved.

    Args:
        teacher: The opened teacher.
        config: The run, with the classes of the data.
        data: The images; their classes must be the teacher's if it teaches logits.
        augment: Augmentation and normalisation of the run.
    """

    def __init__(self, teacher: Teacher, config: RunConfig, data: ImageData, augment: BatchAugment) -> None:
        super().__init__()
        self.options, self.augment = config.distil, augment
        self.loss = choose_loss(config.labels, data.several)
        self.logit_loss = label_logit_loss if data.several else logit_loss
        self._teacher = (teacher,)  # in a tuple: not a submodule
        order = class_order(teacher, data.classes, data.name, data.several) if self.options.uses_logits else None
        self.register_buffer("order", order, persistent=False)
        self.order: Tensor | None
        self.patch_size = pair(config.model.patch_size)
        self.grid = self._grid_of(augment.pipeline.size)
        self.projection = self._build_projection(config)
        self.answers: Answers | None = None  # to all views of all images, (n, V, ...)
        self.digest: str | None = None  # of these answers
        self.views = self._choose_views(config, len(data.splits["train"]))
        self._compute: Compute | None = None

    @property
    def teacher(self) -> Teacher:
        """The teacher."""
        return self._teacher[0]

    @property
    def in_loop(self) -> bool:
        """Whether the teacher computes in every step."""
        return self.views is None

    def ask(self, images: Tensor, compute: Compute, grid: tuple[int, int]) -> Answers:
        """Return the teacher's answers to normalised images of the model, (B, C, H, W), without gradients.

        Args:
            images: The images.
            compute: What computes the teacher.
            grid: The model's patches (h, w), to which those of the teacher are interpolated.
        """
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            logits, features = compute(adapt_images(images, self.augment.pipeline, self.teacher.pipeline))
            logits, features = logits.clone(), features.clone()  # those of inference mode cannot take part in a loss
            learnt = None
            if self.options.uses_features:
                learnt = standardise(features)
                if self.options.features == "patches":
                    learnt = match_grid(learnt, self.teacher.grid, grid)
            return Answers(logits[:, self.order] if self.order is not None else None, learnt)

    def loss_of(
        self, model: Any, images: Tensor, targets: Tensor, batch: Mapping[str, Any], weight: Tensor | None
    ) -> PartLoss:
        """Return the loss of a training batch, which has the teacher's answers.

        Args:
            model: The model in training.
            images: Augmented and normalised, (B, C, H, W).
            targets: Distributions of the labels, (B, K), or several labels between 0 and 1.
            batch: The batch as it was loaded (:mod:`vitreous.data.batches.dataset`).
            weight: Of each class in the loss of the labels, (K,).
        """
        answers, options = self._answers(images, batch), self.options

        def loss_of(forward: Forward, part: slice) -> Tensor:
            logits, features = self._outputs(model, forward)
            told, share = answers.at(part), options.weight if options.uses_logits else 0.0
            loss = logits.new_zeros((), dtype=torch.float32)
            if share < 1:
                loss = (1 - share) * self.loss(logits.float(), targets[part], weight=weight)
            if told.logits is not None:
                loss = loss + share * self.logit_loss(logits, told.logits, options.temperature)
            if told.features is not None and features is not None:
                loss = loss + options.feature_weight * feature_loss(self.projection(features), told.features)
            return loss

        return loss_of

    def _answers(self, images: Tensor, batch: Mapping[str, Any]) -> Answers:
        grid = self._grid_of((images.shape[2], images.shape[3]))
        if self.views is None:
            return self.answer_now(images)
        if self.answers is None:
            raise ConfigError("the teacher's answers are not computed yet: assign `answers` first")
        found = self.answers.at(batch["index"], self.views.shown(batch, self.augment))
        if found.features is not None and found.features.ndim == 3:
            found = Answers(found.logits, match_grid(found.features, self.grid, grid))
        return found

    def answer_now(self, images: Tensor) -> Answers:
        """Return the teacher's answers to a batch of normalised images (B, C, H, W), as in a step."""
        if self._compute is None:
            self._compute = self.teacher.in_loop(images.device, self.kind)
        return self.ask(images, self._compute, self._grid_of((images.shape[2], images.shape[3])))

    def _outputs(self, model: Any, forward: Forward) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, K), and the features that are trained, (B, ...), if any are."""
        if not self.options.uses_features:
            return forward("logits"), None
        if self.options.features == "class-token":
            features = forward("features")
            return model.head(features), features
        tokens = forward("tokens")
        return model.head(model.read_out(tokens)), tokens[:, model.config.prefix_tokens :]

    @property
    def kind(self) -> str:
        """The features that the teacher computes besides its logits."""
        return self.options.features if self.options.uses_features else "class-token"

    def _grid_of(self, size: tuple[int, int]) -> tuple[int, int]:
        return size[0] // self.patch_size[0], size[1] // self.patch_size[1]

    def _build_projection(self, config: RunConfig) -> nn.Module:
        """Return the layer from the model's features to the teacher's: drawn by the seed, none if widths agree."""
        if not self.options.uses_features:
            return nn.Identity()
        own = config.model.width if self.kind == "patches" else config.model.features
        theirs = self.teacher.feature_width(self.kind)
        if own == theirs:
            return nn.Identity()
        layer = nn.utils.skip_init(nn.Linear, own, theirs)
        nn.init.xavier_uniform_(layer.weight, generator=torch.Generator().manual_seed(config.seed))
        nn.init.zeros_(layer.bias)
        return layer

    def _choose_views(self, config: RunConfig, images: int) -> Views | None:
        """Return the views whose answers are computed once, as far as these fit into memory."""
        views = choose_views(config.augment, self.options.views)
        if views is None:
            return None
        needed, limit = images * views.count * self._bytes_per_view(), config.data.memory_gb
        if needed <= limit * 2**30:
            return views
        if self.options.views is None:
            return None
        raise ConfigError(
            f"the teacher's answers to distil.views {views.count} of {images:,} images take {needed / 2**30:.3g} GiB, "
            f"data.memory_gb allows {limit:g}: use fewer views, or omit distil.views, so that the teacher computes in "
            "every step"
        )

    def _bytes_per_view(self) -> int:
        empty = self.blank(1)
        return sum(each.nbytes for each in (empty.logits, empty.features) if each is not None)

    def blank(self, images: int) -> Answers:
        """Return answers of zeros to one view of some images, as they are stored."""
        logits = features = None
        if self.order is not None:
            logits = torch.zeros(images, len(self.order))
        if self.options.uses_features:
            tokens = (self.grid[0] * self.grid[1],) if self.kind == "patches" else ()
            features = torch.zeros(images, *tokens, self.teacher.feature_width(self.kind), dtype=_STORED)
        return Answers(logits, features)

    def stored(self, answers: Answers) -> Answers:
        """Return answers as they are stored: on the CPU, features in half precision."""
        features = answers.features.to("cpu", _STORED) if answers.features is not None else None
        return Answers(answers.logits.cpu() if answers.logits is not None else None, features)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs: the projection, and the digest of answers that were computed once."""
        weights = {name: value.detach().to("cpu", copy=True) for name, value in self.projection.state_dict().items()}
        return {"projection": weights, "answers": self.digest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the projection of :meth:`state`."""
        self.projection.load_state_dict(state["projection"])

    def restart(self, config: RunConfig) -> None:
        """Begin another training of the same run, with a new projection."""
        self.projection = self._build_projection(config)

    def describe(self) -> str:
        """Say what is learnt, and when the teacher computes."""
        options = self.options
        learnt = [f"logits (temperature {options.temperature:g}, weight {options.weight:g})"] * options.uses_logits
        if options.uses_features:
            own = f", projected from {self.projection.in_features}" if isinstance(self.projection, nn.Linear) else ""
            kind = options.features.replace("patches", "patch")
            learnt.append(f"{kind} features of width {self.teacher.feature_width(self.kind)}{own}")
        if self.views is None:
            return f"{' and '.join(learnt)}; computes in every step"
        kind = "the images and their mirror images" if self.views.are_flips else f"{self.views.count} views per image"
        return f"{' and '.join(learnt)}; computes {kind if self.views.count > 1 else 'the images'} once"

    def to_dict(self) -> dict[str, Any]:
        """Return what the model file and the report record."""
        options = self.options
        found: dict[str, Any] = {"teacher": self.teacher.to_dict(), "targets": options.targets}
        if options.uses_logits:
            found |= {"temperature": options.temperature, "weight": options.weight}
        if options.uses_features:
            found |= {"features": options.features, "feature_weight": options.feature_weight}
        return found | {"views": self.views.count if self.views is not None else None}
