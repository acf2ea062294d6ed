"""The MLP of an encoder block (section 3.1, appendix B.1). Attention pooling uses it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from vitreous.model.init import Scheme
from vitreous.model.part import Part, Shape

__all__ = ["ACTIVATIONS", "MLPS", "Mlp", "MlpConfig"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
}


@dataclass(frozen=True)
class MlpConfig(Part):
    """`dense`: two dense layers with an activation between them, and the model's ``dropout`` after each.

    Args:
        activation: `gelu-tanh` is the approximation that JAX calls gelu.
    """

    kind = "dense"
    activation: Literal["gelu", "gelu-tanh", "relu"] = "gelu"

    def build(self, shape: Shape) -> Mlp:
        """Return the module of one block."""
        return Mlp(self, shape)

    def numbers(self, shape: Shape, tokens: int) -> int:
        """Count the numbers per image that the hidden layer and its surroundings hold at once."""
        return 4 * tokens * shape.width + 2 * tokens * shape.mlp_dim


MLPS = (MlpConfig,)


class Mlp(nn.Module):
    """From the width to ``mlp_dim`` and back."""

    def __init__(self, config: MlpConfig, shape: Shape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.width, shape.mlp_dim)
        self.act = ACTIVATIONS[config.activation]()
        self.fc2 = nn.Linear(shape.mlp_dim, shape.width)
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map B x T x D to B x T x D."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))

    def initialise(self, scheme: Scheme) -> None:
        """Draw the weights in place."""
        scheme.mlp(self.fc1, self.fc2)
