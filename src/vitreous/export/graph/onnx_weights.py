"""Pillow's filter weights, computed in an ONNX graph in float64 from the size of the image.

Shapes: n pixels of one side of an image, N of that side of the model's input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vitreous.export.graph.geometry import Geometry
from vitreous.export.graph.onnx_builder import Graph

__all__ = ["filter_weights", "nearest_pixels"]

_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}


def filter_weights(graph: Graph, at: Geometry, size: tuple[int, int], axis: int, interpolation: str) -> str:
    """Return the weights of an image's pixels for those of the input, (n, N) in float64; each column sums to 1."""
    source, start = graph.double(at.cut[axis]), (at.cut_top, at.cut_left)[axis]
    scale = graph.add("Div", source, graph.double(at.resized[axis]))  # 1
    stretch = graph.add("Max", scale, np.array([1.0]), name=f"resize_max_stretch_{axis}")  # of the filter: antialias
    support = graph.add("Mul", stretch, np.array([_SUPPORT[interpolation]]))
    out = graph.double(_resized_pixels(graph, at, size, axis))
    centre = graph.add("Mul", graph.add("Add", out, np.array([0.5])), scale)  # (N,)
    length = graph.add("Squeeze", graph.add("Shape", "images", start=axis + 1, end=axis + 2))
    pixels = graph.add("Range", np.array(0), length, np.array(1))  # (n,)
    position = graph.double(graph.add("Unsqueeze", graph.add("Sub", pixels, start), np.array([1])))  # (n, 1)
    used = _used(graph, position, centre, support, source)
    distance = graph.add("Sub", graph.add("Add", position, np.array([0.5])), centre)  # (n, N)
    x = graph.add("Abs", graph.add("Mul", distance, graph.add("Reciprocal", stretch)))
    raw = graph.add("Where", used, _FILTERS[interpolation](graph, x), np.array(0.0))
    total = graph.add("ReduceSum", raw, np.array([0]), keepdims=1)
    return graph.add("Div", raw, graph.add("Max", total, np.array([1e-9])))  # columns of padding are empty


def nearest_pixels(graph: Graph, at: Geometry, size: tuple[int, int], axis: int) -> str:
    """Return the pixel that each pixel of the input takes, (N,); Pillow adds up the steps in float64, as here."""
    from onnx import TensorProto

    step = graph.add("Div", graph.double(at.cut[axis]), graph.double(at.resized[axis]))
    others = graph.add("Expand", step, graph.add("Sub", at.resized[axis], 1))
    steps = graph.add("Concat", graph.add("Mul", step, np.array([0.5])), others, axis=0)
    taken = graph.add("Cast", graph.add("CumSum", steps, np.array(0)), to=TensorProto.INT64)
    last = graph.add("Sub", at.resized[axis], 1)
    kept = graph.add("Min", graph.add("Max", _resized_pixels(graph, at, size, axis), np.array([0])), last)
    return graph.add("Add", graph.add("Gather", taken, kept), (at.cut_top, at.cut_left)[axis])


def _resized_pixels(graph: Graph, at: Geometry, size: tuple[int, int], axis: int) -> str:
    """Return for each pixel of the input where it lies in the resized image, (N,); outside of it in the padding."""
    cropped: Any = graph.add("Add", np.arange(size[axis]), (at.crop_top, at.crop_left)[axis])
    return graph.add("Sub", cropped, (at.pad_top, at.pad_left)[axis])


def _used(graph: Graph, position: str, centre: str, support: str, source: str) -> str:
    """Return which pixels lie within the filter, (n, N)."""
    first = graph.add("Floor", graph.add("Add", graph.add("Sub", centre, support), np.array([0.5])))
    last = graph.add("Floor", graph.add("Add", graph.add("Add", centre, support), np.array([0.5])))
    first = graph.add("Max", first, np.array([0.0]))
    last = graph.add("Min", last, source)
    return graph.add("And", graph.add("GreaterOrEqual", position, first), graph.add("Less", position, last))


def _triangle(graph: Graph, x: str) -> str:
    return graph.add("Max", graph.add("Sub", np.array(1.0), x), np.array(0.0))


def _cubic(graph: Graph, x: str, a: float = -0.5) -> str:
    near = _horner(graph, x, (a + 2.0, -(a + 3.0), 0.0, 1.0))
    far = graph.add("Mul", _horner(graph, x, (1.0, -5.0, 8.0, -4.0)), np.array(a))
    is_far = graph.add("Less", x, np.array(2.0))
    outer = graph.add("Where", is_far, far, np.array(0.0))
    return graph.add("Where", graph.add("Less", x, np.array(1.0)), near, outer)


def _horner(graph: Graph, x: str, coefficients: tuple[float, ...]) -> str:
    value: Any = np.array(coefficients[0])
    for coefficient in coefficients[1:]:
        value = graph.add("Add", graph.add("Mul", value, x), np.array(coefficient))
    return str(value)


def _lanczos(graph: Graph, x: str) -> str:
    product = graph.add("Mul", _sinc(graph, x), _sinc(graph, graph.add("Div", x, np.array(3.0))))
    return graph.add("Where", graph.add("Less", x, np.array(3.0)), product, np.array(0.0))


def _sinc(graph: Graph, x: str) -> str:
    angle = graph.add("Mul", x, np.array(np.pi))
    is_zero = graph.add("Equal", angle, np.array(0.0))
    ratio = graph.add("Div", graph.add("Sin", angle), graph.add("Where", is_zero, np.array(1.0), angle))
    return graph.add("Where", is_zero, np.array(1.0), ratio)


_FILTERS = {"bilinear": _triangle, "bicubic": _cubic, "lanczos": _lanczos}
