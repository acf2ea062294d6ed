"""The MLP of an encoder block (section 3.1, appendix B.1). Attention pooling uses the same module.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vitreous.model.init import Scheme
from vitreous.model.norm import build_norm
from vitreous.model.part import Part, Shape

__all__ = ["ACTIVATIONS", "MLPS", "GatedMlp", "GatedMlpConfig", "Mlp", "MlpConfig", "QuickGelu"]


class QuickGelu(nn.Module):
    """An approximation of GELU by a sigmoid (arXiv 1606.08415, section 2)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the sigmoid of 1.702 x."""
        return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "quick-gelu": QuickGelu,
    "none": nn.Identity,
}
"""The activations by the name that configurations use."""


@dataclass(frozen=True)
class MlpConfig(Part):
    """`dense`: two dense layers with an activation between them, each followed by the model's ``dropout``.

    Args:
        activation: Activation between the layers. `gelu-tanh` is the tanh approximation, which JAX calls gelu;
            `quick-gelu` is x times the sigmoid of 1.702 x, which OpenAI's CLIP calls so; `silu` is x times its sigmoid.
        norm: Whether a norm stands before the second layer (arXiv 2110.09456).
    """

    kind = "dense"
    activation: Literal["gelu", "gelu-tanh", "relu", "quick-gelu", "silu"] = "gelu"
    norm: bool = False

    def build(self, shape: Shape) -> Mlp:
        """Return the MLP of one block."""
        return Mlp(self, shape)

    def activations(self, shape: Shape, tokens: int) -> int:
        """Return how many numbers per image the MLP and the tensors around it hold in memory at once."""
        return 4 * tokens * shape.width + 2 * tokens * shape.mlp_dim


@dataclass(frozen=True)
class GatedMlpConfig(MlpConfig):
    """`gated`: the hidden layer is the product of two dense layers, one of them activated (SwiGLU, arXiv 2002.05202).

    Its first matrix has 2 ``mlp_dim`` rows: those of the activated layer first.

    Args:
        activation: Activation of the gate.
        norm: Whether a norm stands before the second matrix.
    """

    kind = "gated"
    activation: Literal["gelu", "gelu-tanh", "relu", "quick-gelu", "silu"] = "silu"

    def build(self, shape: Shape) -> Mlp:
        return GatedMlp(self, shape)

    def activations(self, shape: Shape, tokens: int) -> int:
        return 4 * tokens * shape.width + 4 * tokens * shape.mlp_dim


MLPS = (MlpConfig, GatedMlpConfig)
"""The kinds of MLP."""


class Mlp(nn.Module):
    """Expands each token from the width to ``mlp_dim`` and projects it back."""

    layers = 1
    """Matrices that ``fc1`` stacks."""

    def __init__(self, config: MlpConfig, shape: Shape) -> None:
        super().__init__()
        self.fc1 = nn.Linear(shape.width, self.layers * shape.mlp_dim)
        self.act = ACTIVATIONS[config.activation]()
        self.norm = build_norm(shape, shape.mlp_dim, config.norm)
        self.fc2 = nn.Linear(shape.mlp_dim, shape.width)
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, T, D)."""
        return self.drop(self.fc2(self.hidden(x)))

    def hidden(self, x: Tensor) -> Tensor:
        """Return the hidden layer, which the last matrix reads, (B, T, ``mlp_dim``), of tokens (B, T, D)."""
        return self.norm(self.drop(self.act(self.fc1(x))))

    def initialise(self, scheme: Scheme) -> None:
        """Initialise the layers in place."""
        scheme.mlp(self.fc1, self.fc2)


class GatedMlp(Mlp):
    """The product of an activated layer, the gate, and another."""

    layers = 2

    def hidden(self, x: Tensor) -> Tensor:
        """Return the hidden layer, (B, T, ``mlp_dim``), of tokens (B, T, D)."""
        gate, value = self.fc1(x).chunk(2, -1)
        return self.norm(self.drop(self.act(gate) * value))
