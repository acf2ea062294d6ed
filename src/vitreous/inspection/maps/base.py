"""What a map method is, and the class scores that it explains.

Shapes: B batch, C channels, (h, w) patches down and across, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.model.part import Part
from vitreous.model.vit import VisionTransformer

__all__ = ["ClassMaps", "MapMethod", "block_name", "by_patch", "chosen", "method_options", "score"]


@dataclass(frozen=True)
class ClassMaps:
    """Maps of a batch.

    Attributes:
        values: One per patch, B x h x w; which range, the method says.
        logits: Of the images, B x K.
        targets: The class that each map is for, B; -1 where the model has none.
    """

    values: Tensor
    logits: Tensor
    targets: Tensor


@dataclass(frozen=True)
class MapMethod(Part):
    """A method with its options. A subclass with a ``kind`` is one that users can choose."""

    title: ClassVar[str]
    """The method's name for readers."""
    uses_class: ClassVar[bool] = True
    """Whether the map depends on the class; otherwise it is the same for all."""

    def __call__(self, model: VisionTransformer, images: Tensor, targets: Tensor | None = None) -> ClassMaps:
        """Map classes to patches.

        Args:
            model: Plain or fast, in evaluation mode, with classes if the map depends on one. Its parameters and their
                gradients stay as they are.
            images: Normalised, B x C x (h patch) x (w patch).
            targets: A class for each image, integers (B,). None: the predicted one.

        Raises:
            ConfigError: If the map depends on the class and the model has none, a target is none of them, the model is
                in training mode or merges tokens, or an option is out of range.
        """
        K = model.config.num_classes
        if not K and self.uses_class:
            raise ConfigError(
                "the model has no classes, so there is no class to explain: use a model with a head, or the method "
                "rollout or attention"
            )
        if model.training:
            raise ConfigError("a model in training mode has no maps, dropout changes them: call model.eval() first")
        if problems := list(self.problems(model.config)):
            raise ConfigError("; ".join(problems))
        if targets is not None:
            targets = torch.as_tensor(targets, device=images.device)
            if targets.shape != images.shape[:1] or targets.is_floating_point():
                raise ConfigError(f"targets have shape {tuple(targets.shape)}: give one class number per image")
            if wrong := sorted({int(target) for target in targets if not 0 <= target < K}):
                raise ConfigError(f"targets are {', '.join(map(str, wrong))}, the model has classes 0 to {K - 1}")
        with torch.inference_mode(False), torch.enable_grad():
            own = images.clone() if images.is_inference() else images.detach()  # autograd takes no inference tensor
            maps = self.compute(model, own, None if targets is None else targets.clone())
        if not K:
            return ClassMaps(
                maps.values.detach(), images.new_empty(len(images), 0), maps.targets.new_full((len(images),), -1)
            )
        return ClassMaps(maps.values.detach(), maps.logits.detach(), maps.targets)

    def heading(self) -> str:
        """Return the title of a map, with the options that say what it shows."""
        return self.title

    def remark(self) -> str:
        """Return a clause about other options that matter to a reader, or an empty string."""
        return ""

    def compute(self, model: VisionTransformer, images: Tensor, targets: Tensor | None) -> ClassMaps:
        """Return the maps; arguments are checked, and gradients are enabled."""
        raise NotImplementedError


def block_name(layer: int) -> str:
    """Return a name for a layer's block; negative numbers count from the end."""
    if layer < 0:
        return "the last block" if layer == -1 else f"block {-layer} from the end"
    return f"block {layer}"


def method_options(method: MapMethod) -> dict[str, Any]:
    """Return the options of a method by name, as plain values."""
    return {name: value for name, value in method.to_dict().items() if name != "kind"}


def chosen(logits: Tensor, targets: Tensor | None) -> Tensor:
    """Return the classes to explain, B: the targets, or the predicted classes of logits B x K."""
    return logits.detach().argmax(1) if targets is None else targets


def score(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum over a batch of each image's logit; its gradient by one image's values is that image's own."""
    return logits.gather(1, targets[:, None]).sum()


def by_patch(values: Tensor, grid: tuple[int, int]) -> Tensor:
    """Sum values per pixel, B x C x H x W, over channels and the pixels of each patch: B x h x w."""
    h, w = grid
    return values.unflatten(2, (h, -1)).unflatten(4, (w, -1)).sum((1, 3, 5))
