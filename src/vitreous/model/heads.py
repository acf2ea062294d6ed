"""Classification heads (section 3.1, equation 4). Shapes: B batch, D width, K classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from vitreous.model.init import Scheme
from vitreous.model.mlp import ACTIVATIONS
from vitreous.model.part import Part, Shape

__all__ = ["HEADS", "Head", "LinearHead", "MlpHead", "PreLogits"]


@dataclass(frozen=True)
class Head(Part):
    """A kind of head. The last layer is always linear, from ``features`` inputs to one output per class.

    Args:
        zero: Whether the last layer starts at zero (section 3.2), so that all classes are equally likely at first. None
            leaves this to the model's ``init``.
    """

    zero: bool | None = None

    def features(self, pooled_width: int, shape: Shape) -> int:
        """Return the length of the vector that the last layer reads."""
        return pooled_width

    def build_pre_logits(self, pooled_width: int, shape: Shape) -> nn.Module:
        """Return the module before the last layer. It maps (B, ``pooled_width``) to (B, ``features``)."""
        return nn.Identity()

    def initialise(self, layer: nn.Module, scheme: Scheme) -> None:
        """Set the last layer to zero if ``zero`` is on, or if it is None and the scheme has ``zero_head``."""
        if isinstance(layer, nn.Linear) and (scheme.zero_head if self.zero is None else self.zero):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)


@dataclass(frozen=True)
class LinearHead(Head):
    """`linear`: one linear layer, as in the paper's fine-tuning."""

    kind = "linear"


@dataclass(frozen=True)
class MlpHead(Head):
    """`mlp`: one hidden layer before the last, as in the paper's pre-training.

    Args:
        hidden: Size of the hidden layer. None uses the model's width.
        activation: Activation of the hidden layer. The paper's code uses `tanh`; with `none` the layer is a projection,
            such as the one into the space that CLIP's images and texts share.
        bias: Whether the hidden layer has a bias.
    """

    kind = "mlp"
    hidden: int | None = None
    activation: Literal["tanh", "relu", "gelu", "none"] = "tanh"
    bias: bool = True

    def problems(self, shape: Shape) -> Iterator[str]:
        if self.hidden is not None and self.hidden < 1:
            yield f"head.hidden is {self.hidden}, it must be at least 1, or null for the width"

    def features(self, pooled_width: int, shape: Shape) -> int:
        return self.hidden or shape.width

    def build_pre_logits(self, pooled_width: int, shape: Shape) -> nn.Module:
        return PreLogits(pooled_width, self.features(pooled_width, shape), self.activation, self.bias)


HEADS: tuple[type[Head], ...] = (LinearHead, MlpHead)
"""The kinds of head."""


class PreLogits(nn.Module):
    """The hidden layer of the MLP head. The paper's code calls its output "pre_logits"."""

    def __init__(self, width: int, hidden: int, activation: str, bias: bool = True) -> None:
        super().__init__()
        self.fc = nn.Linear(width, hidden, bias=bias)
        self.act = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, D) to (B, hidden)."""
        return self.act(self.fc(x))

    def initialise(self, scheme: Scheme) -> None:
        """Initialise the layer in place."""
        scheme.pre_logits(self.fc)
