"""DINO (arXiv 2104.14294): a student predicts the output of a teacher, its moving average, for other crops; for GPUs.

The teacher sees the large crops, the student all. The teacher's outputs are centred by a moving average and sharpened
by a low temperature; without either, all images soon have the same output.

Shapes: V_t views of the teacher, V_s of the student, B batch, K outputs.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import ConfigError
from vitreous.train.loop.optim import move_average
from vitreous.train.pretrain.objectives.base import Losses
from vitreous.train.pretrain.objectives.views import MultiView, ViewsConfig

__all__ = ["Dino", "DinoConfig", "DinoHead", "dino_loss"]

_LEAST_INFORMATION = 0.05  # of the outputs on the image, as a fraction of what the batch could have
_FEW_OUTPUTS = 0.25  # entropy of the mean output, as the same fraction; healthy runs have 0.8 and more


@dataclass(frozen=True)
class DinoConfig:
    """Self-distillation (:mod:`vitreous.train.pretrain.objectives.dino`).

    Args:
        outputs: Outputs of the head. The paper has 65,536, for ImageNet.
        hidden: Width of the hidden layers of the head.
        bottleneck: Width of the last but one layer.
        momentum: Decay of the teacher's moving average at first; it rises to 1 along a cosine.
        teacher_temperature: Temperature of the teacher's outputs.
        student_temperature: Temperature of the student's outputs.
        center_momentum: Decay of the moving average of the teacher's outputs; 1 turns centring off.
    """

    outputs: int = 4096
    hidden: int = 1024
    bottleneck: int = 256
    momentum: float = 0.996
    teacher_temperature: float = 0.04
    student_temperature: float = 0.1
    center_momentum: float = 0.9

    def __post_init__(self) -> None:
        """Check ranges, and report all problems in one error."""
        problems = [
            f"dino.{name} is {getattr(self, name)}, it must be from 2 to 1048576"
            for name in ("outputs", "hidden", "bottleneck")
            if not 2 <= getattr(self, name) <= 1 << 20
        ]
        problems += [
            f"dino.{name} is {getattr(self, name)}, it must be in [0, 1]"
            for name in ("momentum", "center_momentum")
            if not 0 <= getattr(self, name) <= 1
        ]
        problems += [
            f"dino.{name} is {getattr(self, name)}, it must be above 0"
            for name in ("teacher_temperature", "student_temperature")
            if not getattr(self, name) > 0
        ]
        if problems:
            raise ConfigError("; ".join(problems))


class Dino(MultiView):
    """A student and a teacher. The teacher's backbone is what is evaluated and saved."""

    remedy = "Keep dino.center_momentum below 1 and dino.teacher_temperature low, or lower --optim.lr"
    part_names = ("teacher_entropy", "divergence")
    watched_in_warmup = False  # centring makes the output of a teacher that has learnt little nearly uniform
    center: Tensor

    def __init__(
        self, backbone: FastVisionTransformer, pipeline: EvalPipeline, options: DinoConfig, views: ViewsConfig
    ) -> None:
        super().__init__(backbone, pipeline, options, views)
        self.head = DinoHead(backbone.config.features, options)
        self.teacher = copy.deepcopy(backbone).requires_grad_(False)
        self.teacher_head = copy.deepcopy(self.head).requires_grad_(False)
        self.register_buffer("center", torch.zeros(options.outputs))

    @property
    def trained_backbone(self) -> FastVisionTransformer:
        """The teacher's backbone."""
        return self.teacher

    def forward(self, views: Sequence[Tensor]) -> Losses:
        """Return the cross-entropy; the watched embeddings are the teacher's probabilities for the first view."""
        own, count = self.options, self.view_options.count
        with torch.no_grad():
            watched = self.features_of(self.teacher, views[:count])
            teacher = self.teacher_head(watched.flatten(0, 1)).float().view(count, len(views[0]), -1)
        features = self.features_of(self.backbone, views)
        student = self.head(features.flatten(0, 1)).float().view(len(views), len(views[0]), -1)
        target = torch.softmax((teacher - self.center) / own.teacher_temperature, -1)
        loss = dino_loss(target, student / own.student_temperature)
        if self.training:
            self.center.lerp_(teacher.mean((0, 1)), 1 - own.center_momentum)
        entropy = torch.special.entr(target).sum(-1).mean()
        parts = {"teacher_entropy": entropy, "divergence": loss.detach() - entropy}
        return Losses(loss, target[0].detach(), watched[0], parts)

    @torch.no_grad()
    def after_update(self, progress: float) -> None:
        """Move the teacher towards the student, also batch norm's statistics: frozen, it gathers none itself."""
        decay = 1 - (1 - self.options.momentum) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
        for teacher, student in ((self.teacher, self.backbone), (self.teacher_head, self.head)):
            move_average(teacher.state_dict(), student.state_dict(), decay)

    def find_collapse(self, embeddings: Tensor) -> str | None:
        """Name a collapse of the teacher: its output says nothing about the image.

        The mutual information of image and output is the entropy of the mean output minus the mean entropy.
        """
        mean = embeddings.mean(0)
        of_mean = float(torch.special.entr(mean).sum())
        information = of_mean - float(torch.special.entr(embeddings).sum(1).mean())
        most = math.log(min(embeddings.shape))
        if information >= _LEAST_INFORMATION * most and of_mean >= _FEW_OUTPUTS * most:
            return None
        kind = "on few outputs" if of_mean < 0.5 * most else "uniform over the outputs"
        return (
            f"complete collapse: the teacher's output is nearly the same for all images, {kind}, and has "
            f"{information:.2g} nats of information on the image"
        )


class DinoHead(nn.Module):
    """Three layers to a unit vector, whose products with K unit vectors are the outputs."""

    def __init__(self, features: int, options: DinoConfig) -> None:
        super().__init__()
        widths = (features, options.hidden, options.hidden, options.bottleneck)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.GELU()]
        self.mlp = nn.Sequential(*layers[:-1])
        self.prototypes = nn.Parameter(torch.randn(options.outputs, options.bottleneck))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Map (B, F) to (B, K), in [-1, 1]."""
        return F.linear(F.normalize(self.mlp(features), dim=-1), F.normalize(self.prototypes, dim=-1))


def dino_loss(target: Tensor, student: Tensor) -> Tensor:
    """Return the mean cross-entropy of a student's logits for other views.

    Args:
        target: The teacher's probabilities, (V_t, B, K).
        student: Logits, (V_s, B, K), whose first V_t views are the teacher's. No view is compared with itself.
    """
    with torch.autocast(target.device.type, enabled=False):  # bfloat16 would round a loss of 8 nats to 0.03
        terms = -torch.einsum("tbk,sbk->ts", target, F.log_softmax(student, dim=-1))
    others = 1 - torch.eye(*terms.shape, device=terms.device)
    return (terms * others).sum() / (others.sum() * target.shape[1])
