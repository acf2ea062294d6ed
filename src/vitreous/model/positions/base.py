"""What a position embedding may contribute to the model.

Shapes: B batch, H heads, P prefix tokens ([CLS] and registers), N patches in raster order, D width, d head channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitreous.model.part import Part, Shape

__all__ = ["Grid", "Position", "needs_multiple_of_4", "raster"]

Grid = tuple[int, int]


@dataclass(frozen=True)
class Position(Part):
    """A kind of position embedding. It overrides the methods for what it contributes; the defaults contribute nothing.

    An embedding is added to the tokens once (equation 1). What attention needs in every block is its *context*: it is
    made once for an image size, and :meth:`rotate` and :meth:`bias` receive it.
    """

    adds: ClassVar[bool] = False
    """Whether there is an embedding."""

    acts_in_attention: ClassVar[bool] = False
    """Whether every block needs the position of each token, so that tokens cannot be merged."""

    def parameters(self, shape: Shape) -> dict[str, Tensor]:
        """Return the learned tensors of the model, zero, by name."""
        return {}

    def attention_parameters(self, shape: Shape) -> dict[str, Tensor]:
        """Return the learned tensors of each block's attention, zero, by name."""
        return {}

    def initialise(self, module: nn.Module, std: float) -> None:
        """Draw the parameters of a module in place: the model's, or those of one block's attention.

        Args:
            module: The module that has the parameters named above.
            std: Standard deviation of a position embedding in the model's initialisation scheme.
        """

    def embedding(self, model: nn.Module, shape: Shape, grid: Grid) -> Tensor:
        """Return E_pos of equation 1 for a grid, 1 x (P + N) x D, with zeros for tokens that have no position.

        A kind without an embedding returns a zero that broadcasts, 1 x 1 x 1.
        """
        return torch.zeros(1, 1, 1)

    def context(self, shape: Shape, grid: Grid, like: Tensor) -> Any:
        """Return what attention needs for a grid, on the device of ``like`` and in its dtype."""
        return None

    def select(self, context: Any, kept: Tensor) -> Any:
        """Return the context of the patches that patch dropout keeps; their raster indices are B x n."""
        return context

    def rotate(self, x: Tensor, context: Any) -> Tensor:
        """Return queries or keys, B x H x (P + N) x d, turned by their position."""
        return x

    def bias(self, attention: nn.Module, q: Tensor, context: Any) -> Tensor | None:
        """Return what is added to the scores of attention, B x H x (P + N) x (P + N), for queries q."""
        return None

    def resized(self, state: dict[str, Tensor], old: Shape, new: Shape) -> dict[str, Tensor]:
        """Return the tensors of a state dict that another grid changes, resampled from one shape's to the other's."""
        return {}

    def score_numbers(self, shape: Shape, patches: int) -> int:
        """Return how many numbers per image attention needs in addition to those of the fused kernel."""
        return 0

    def table_bytes(self, shape: Shape, grid: Grid) -> int:
        """Return the bytes needed to build the tables of a grid."""
        return 0


def raster(grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the row and the column of each patch in raster order, N each, in float64."""
    rows, columns = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    return rows.flatten(), columns.flatten()


def needs_multiple_of_4(name: str, shape: Shape) -> Iterator[str]:
    """Yield the problem of an embedding whose width is split into sines and cosines of rows and columns."""
    if shape.width % 4:
        yield f"position {name} needs a width that is a multiple of 4, it is {shape.width}"
