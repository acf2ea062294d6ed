"""The resize of the evaluation pipeline in PyTorch operators that can be traced: the same bytes as Pillow's.

Pillow resizes rows, then columns, each by filter weights rounded to 22 bits, and rounds to uint8 after each pass. Here
a pass is a product with the matrix of these weights, whose rows outside of the model's input are never computed.
float64 holds all sums exactly. The sizes of images stay free in the traced graph, because only matrices have them.

Shapes: B batch, C channels, h x w pixels of the images, H x W pixels of the model's input; n of one side of an image,
N of that side of the input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitreous.data.preprocess import EvalPipeline
from vitreous.export.graph.geometry import Arithmetic, Geometry, first_pass, geometry, rows_first

__all__ = ["Resize"]

_BITS = 22  # of a weight: 32 less 8 for the pixel and 2 for overshoots (Pillow's Resample.c, PRECISION_BITS)
_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}


class Resize(nn.Module):
    """Images of any size to pixels of the model's input."""

    padding: Tensor

    def __init__(self, pipeline: EvalPipeline) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.do = Arithmetic(lambda a, b: torch.div(a, b, rounding_mode="floor"), _smaller, _larger)
        self.register_buffer("padding", torch.tensor(pipeline.padding, dtype=torch.float64).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Map uint8 (B, h, w, C) to float32 (B, C, H, W), whole numbers from 0 to 255."""
        x = images.permute(0, 3, 1, 2).to(torch.float64)
        rows, columns = (torch.arange(x.shape[axis], device=x.device) for axis in (2, 3))
        # Tensors, not numbers: the program must not depend on the sizes of the example.
        h, w = (each[-1] + 1 for each in (rows, columns))
        at = geometry(h, w, self.pipeline.size, self.pipeline.config, self.do)
        down, down_inside = self._side(rows, at, 0)  # (H, h), (H,)
        across, across_inside = self._side(columns, at, 1)  # (W, w), (W,)
        if rows_first():
            x = _rows_first(x, across, down)
        else:  # the order shows in the height after the first pass
            columns = first_pass(at, self.do)[0] != at.cut[0]
            x = torch.cond(columns, _columns_first, _rows_first, (x, across, down))  # (B, C, H, W)
        if self.pipeline.config.fit == "pad":
            x = torch.where(down_inside[:, None] & across_inside, x, self.padding)
        return x.to(torch.float32)

    def _side(self, pixels: Tensor, at: Geometry, axis: int) -> tuple[Tensor, Tensor]:
        """Return the matrix (N, n) of one side, in units of 2^-22, and which rows are not padding, (N,).

        Args:
            pixels: The indices of the image's pixels, (n,).
            at: Where they lie.
            axis: 0 for the height, 1 for the width.
        """
        start = (at.cut_top, at.cut_left)[axis]
        source, target = at.cut[axis], at.resized[axis]
        shift = (at.crop_top - at.pad_top, at.crop_left - at.pad_left)[axis]
        out = torch.arange(self.pipeline.size[axis], device=pixels.device) + shift  # (N,) rows of the resized part
        inside = (out >= 0) & (out < target)
        position = (pixels - start).double()  # (n,) in the cut part
        interpolation = self.pipeline.config.interpolation
        if interpolation == "nearest":
            matrix = (_nearest(out, source, target)[:, None] == position).to(torch.float64) * 2.0**_BITS
        else:
            matrix = _weights(out, position, source, target, interpolation)
        return matrix, inside


def _rows_first(x: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Resize (B, C, h, w) by matrices (W, w) and (H, h), rows before columns."""
    return _rounded(down @ _rounded(x @ across.T))


def _columns_first(x: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Resize (B, C, h, w) by matrices (W, w) and (H, h), columns before rows."""
    return _rounded(_rounded(down @ x) @ across.T)


def _weights(out: Tensor, position: Tensor, source: Any, target: Any, interpolation: str) -> Tensor:
    """Return the weights of pixels at `position` (n,) for the resized pixels `out` (N,), rounded, (N, n)."""
    scale = source.double() / target
    stretch = scale.clamp_min(1.0)  # of the filter, which makes it antialias
    support = _SUPPORT[interpolation] * stretch
    centre = ((out.double() + 0.5) * scale)[:, None]  # (N, 1)
    first = (centre - support + 0.5).trunc().clamp_min(0)
    last = torch.minimum((centre + support + 0.5).trunc(), source.double())
    used = (position >= first) & (position < last)
    x = (position - centre + 0.5) * (1 / stretch)
    weights = torch.where(used, _FILTERS[interpolation](x.abs()), 0.0)
    weights = weights / weights.sum(1, keepdim=True).clamp_min(1e-9)  # rows outside of the resized part are empty
    scaled = weights * 2.0**_BITS
    return torch.where(scaled < 0, (scaled - 0.5).ceil(), (scaled + 0.5).floor())


def _nearest(out: Tensor, source: Any, target: Any) -> Tensor:
    """Return the pixel that each resized pixel takes, (N,); Pillow adds up the steps in float64, and so does this."""
    scale = source.double() / target
    steps = torch.arange(_MOST_STEPS, device=out.device)
    places = torch.where(steps == 0, scale * 0.5, scale).cumsum(0)
    return places.trunc()[out.clamp(0, _MOST_STEPS - 1)]


_MOST_STEPS = 16_384  # pixels of a resized side, as data/preprocess.py limits it


def _rounded(x: Tensor) -> Tensor:
    """Return sums in units of 2^-22 rounded to whole numbers from 0 to 255."""
    return ((x + 2.0 ** (_BITS - 1)) * 2.0**-_BITS).floor().clamp(0, 255)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x).clamp_min(0)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _lanczos(x: Tensor) -> Tensor:
    return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)


_FILTERS = {"bilinear": _triangle, "bicubic": _cubic, "lanczos": _lanczos}


def _smaller(a: Any, b: Any) -> Tensor:
    return a.clamp_max(b) if isinstance(b, int) else torch.minimum(a, b)


def _larger(a: Any, b: Any) -> Tensor:
    return a.clamp_min(b)
