"""The MLP of an encoder block (section 3.1, appendix B.1). Attention pooling uses the same module.

Shapes: B batch, T tokens, D width.
"""

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
    """`dense`: two dense layers with an activation between them, each followed by the model's ``dropout``.

    Args:
        activation: Activation between the layers. `gelu-tanh` is the tanh approximation, which JAX calls gelu.
    """

    kind = "dense"
    activation: Literal["gelu", "gelu-tanh", "relu"] = "gelu"

    def build(self, shape: Shape) -> Mlp:
        """Return the MLP of one block."""
        return Mlp(self, shape)

    def activations(self, shape: Shape, tokens: int) -> int:
        """Return how many numbers per image the MLP and the tensors around it hold in memory at once."""
        return 4 * tokens * shape.width + 2 * tokens * shape.mlp_dim


MLPS = (MlpConfig,)


class Mlp(nn.Module):
    """Expands each token from the width to ``mlp_dim`` and projects it back."""

    def __init__(self, config: MlpConfig, shape: Shape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.width, shape.mlp_dim)
        self.act = ACTIVATIONS[config.activation]()
        self.fc2 = nn.Linear(shape.mlp_dim, shape.width)
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, T, D)."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))

    def initialise(self, scheme: Scheme) -> None:
        """Initialise the layers in place."""
        scheme.mlp(self.fc1, self.fc2)
