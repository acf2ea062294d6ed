"""The MLP of an encoder block, shared with attention pooling."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from vitreous.model.config import ViTConfig
from vitreous.model.kernels import Linear

__all__ = ["ACTIVATIONS", "Mlp"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
}


class Mlp(nn.Module):
    """Two dense layers with an activation between, dropout after each (section 3.1, appendix B.1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.width, config.mlp_dim)
        self.act = ACTIVATIONS[config.activation]()
        self.fc2 = Linear(config.mlp_dim, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map B x N x D to B x N x D."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))
