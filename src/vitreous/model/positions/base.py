"""What a position embedding may contribute to the model.

Shapes: B batch, H heads, P prefix tokens ([CLS] and registers), (h, w) patches down and across,
N = h w patches in raster order, n of them kept by patch dropout, D width, d channels per head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.model.part import Part, Shape

__all__ = ["Grid", "Position", "needs_multiple_of_4", "raster"]

Grid = tuple[int, int]
"""Rows and columns of patches."""


@dataclass(frozen=True)
class Position(Part):
    """A kind of position embedding. Subclasses override what they contribute; the defaults contribute nothing.

    There are two ways to tell the model where a patch lies. An *embedding* is added to the tokens once, before the
    first block (equation 1). Alternatively, every block uses positions: :meth:`context` computes what it needs once per
    image size, and :meth:`before_block`, or :meth:`rotate` and :meth:`bias` in attention, receive the result.
    """

    @property
    def has_embedding(self) -> bool:
        """Whether an embedding is added to the tokens."""
        return False

    @property
    def draws_in_training(self) -> bool:
        """Whether :meth:`context` is random in training."""
        return False

    @property
    def acts_in_blocks(self) -> bool:
        """Whether every block uses the position of each token. If so, tokens cannot be merged."""
        return False

    @property
    def acts_in_attention(self) -> bool:
        """Whether attention itself uses positions: in the angle of queries and keys, or in a bias on the scores."""
        own = type(self)
        return own.rotate is not Position.rotate or own.bias is not Position.bias

    def parameters(self, shape: Shape) -> dict[str, Tensor]:
        """Return the learned tensors that the model owns, filled with zeros, by name.

        Names start with ``pos_embed``, by which the optimiser's layer-wise decay knows them. A block owns a parameter
        whose name begins with that of the block, such as ``blocks.1.pos_embed``.
        """
        return {}

    def context_parameters(self, shape: Shape) -> Collection[str]:
        """Return the names of those of the model's parameters that :meth:`context` reads; by default all."""
        return self.parameters(shape)

    def attention_parameters(self, shape: Shape) -> dict[str, Tensor]:
        """Return the learned tensors that the attention of each block owns, filled with zeros, by name."""
        return {}

    def initialise(self, module: nn.Module, std: float) -> None:
        """Initialise the parameters of a module in place.

        Args:
            module: The model, or the attention of one block. It owns the parameters that the methods above named.
            std: Standard deviation of position embeddings in the model's initialisation scheme.
        """

    def embedding(self, module: nn.Module, shape: Shape, grid: Grid) -> Tensor:
        """Return E_pos of equation 1 for a grid, (1, P + N, D). Tokens without a position get zeros.

        ``module`` is the model. A kind without an embedding returns zeros of shape (1, 1, 1), which broadcast.
        """
        return torch.zeros(1, 1, 1)

    def context(self, model: Any, shape: Shape, grid: Grid) -> Any:
        """Return what blocks need for a grid, with the device and dtype of the model's patch projection."""
        return None

    def select(self, context: Any, kept: Tensor) -> Any:
        """Return the context of the patches that patch dropout keeps, given their raster indices (B, n)."""
        return context

    def before_block(self, z: Tensor, index: int, context: Any) -> Tensor:
        """Return what block ``index``, counted from 0, reads, given the tokens z that reach it, (B, P + N, D)."""
        return z

    def rotate(self, attention: nn.Module, x: Tensor, context: Any) -> Tensor:
        """Rotate queries or keys of an attention, (B, H, P + N, d), by an angle that depends on their position."""
        return x

    def bias(self, attention: nn.Module, q: Tensor, context: Any) -> Tensor | None:
        """Return a bias that is added to the attention scores of queries q, (B, H, P + N, P + N)."""
        return None

    def resized(self, state: dict[str, Tensor], old: Shape, new: Shape) -> dict[str, Tensor]:
        """Return the tensors of a state dict that depend on the grid, resampled from the old grid to the new one."""
        return {}

    def score_activations(self, shape: Shape, patches: int) -> int:
        """Return how many numbers per image attention holds in memory in addition to the fused kernel's."""
        return 0

    def table_bytes(self, shape: Shape, grid: Grid) -> int:
        """Return how many bytes it takes to compute the embedding or context of a grid."""
        return 0


def raster(grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the row and the column of each patch in raster order, (N,) each, in float64."""
    rows, columns = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    return rows.flatten(), columns.flatten()


def needs_multiple_of_4(name: str, shape: Shape) -> Iterator[str]:
    """Yield a problem unless the width splits evenly into sines and cosines of rows and columns."""
    if shape.width % 4:
        yield f"position {name} needs a width that is a multiple of 4, it is {shape.width}"
