"""The resize of the evaluation pipeline in ONNX operators: from images of any size to the model's input.

ONNX Runtime's antialiased Resize of uint8 is a port of Pillow's, with rounding between its two passes: few pixels in
ten thousand differ, by 1. Shapes: B batch, C channels, h x w pixels of the images, H x W pixels of the model's input.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.data.preprocess import EvalPipeline
from vitreous.export.graph.core import PIXELS
from vitreous.export.graph.geometry import Arithmetic, Geometry, first_pass, geometry
from vitreous.export.graph.tracing import ONNX_OPSET

__all__ = ["MODES", "resize_model"]

MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Filters that Resize has, by Pillow's name; nearest is a Gather here."""


class _Number:
    """A whole number in the graph: an int64 tensor with one element, with the arithmetic of Python's integers."""

    def __init__(self, graph: _Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def __add__(self, other: _Number | int) -> _Number:
        return self.graph.number("Add", self, other)

    def __sub__(self, other: _Number | int) -> _Number:
        return self.graph.number("Sub", self, other)

    def __mul__(self, other: _Number | int) -> _Number:
        return self.graph.number("Mul", self, other)

    def __rsub__(self, other: int) -> _Number:
        return self.graph.number("Sub", other, self)

    __radd__, __rmul__ = __add__, __mul__


class _Graph:
    """A graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.arithmetic = Arithmetic(
            lambda a, b: self.number("Div", a, b),
            lambda a, b: self.number("Min", a, b),
            lambda a, b: self.number("Max", a, b),
        )

    def add(self, kind: str, *inputs: Any, name: str | None = None, **attributes: Any) -> str:
        """Add a node and return the name of its output; inputs are names, numbers and arrays."""
        from onnx import helper

        output = name or f"resize_{kind.lower()}_{len(self.nodes)}"
        names = [self._name(each) for each in inputs]
        self.nodes.append(helper.make_node(kind, names, [output], name=output, **attributes))
        return output

    def number(self, kind: str, *inputs: Any, **attributes: Any) -> _Number:
        """Add a node whose output is a whole number."""
        return _Number(self, self.add(kind, *inputs, **attributes))

    def vector(self, *numbers: Any) -> str:
        """Return the name of several whole numbers as one tensor."""
        return self.add("Concat", *numbers, axis=0)

    def _name(self, value: str | _Number | int | npt.NDArray[Any]) -> str:
        from onnx import numpy_helper

        if isinstance(value, str):
            return value
        if isinstance(value, _Number):
            return value.name
        array = np.array([value]) if isinstance(value, int) else value
        name = f"resize_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name


def resize_model(pipeline: EvalPipeline) -> Any:
    """Return an ONNX model from ``images``, uint8 (B, h, w, C), to ``pixels``, float32 (B, C, H, W) from 0 to 255."""
    import onnx
    from onnx import TensorProto, helper

    graph, channels, (height, width) = _Graph(), pipeline.channels, pipeline.size
    planes = graph.add("Transpose", "images", perm=[0, 3, 1, 2])
    h, w = (graph.number("Shape", "images", start=axis, end=axis + 1) for axis in (1, 2))
    at = geometry(h, w, pipeline.size, pipeline.config, graph.arithmetic)
    planes = _window(graph, planes, (at.cut_top, at.cut_left), at.cut, skip=at.cut == (h, w))
    planes = _resize(graph, planes, at, pipeline.config.interpolation)
    if pipeline.config.fit == "crop":
        planes = _window(graph, planes, (at.crop_top, at.crop_left), pipeline.size)
    as_float = graph.add("Cast", planes, to=TensorProto.FLOAT)
    if pipeline.config.fit == "pad":
        as_float = _pad(graph, as_float, at, pipeline)
    graph.add("Reshape", as_float, np.array([0, channels, height, width]), name=PIXELS)  # states the shape
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", "height", "width", channels])
    pixels = helper.make_tensor_value_info(PIXELS, TensorProto.FLOAT, ["batch", channels, height, width])
    built = helper.make_graph(graph.nodes, "resize", [images], [pixels], graph.constants)
    return onnx.helper.make_model(built, opset_imports=[helper.make_opsetid("", ONNX_OPSET)], ir_version=10)


def _window(
    graph: _Graph, planes: str, start: tuple[Any, Any], size: tuple[Any, Any], skip: bool = False
) -> str:
    """Cut a window out of (B, C, h, w)."""
    if skip:
        return planes
    (top, left), (height, width) = start, size
    first = graph.vector(top, left)
    last = graph.vector(top + height, left + width)
    return graph.add("Slice", planes, first, last, np.array([2, 3]))


def _resize(graph: _Graph, planes: str, at: Geometry, interpolation: str) -> str:
    """Resize (B, C, h, w), uint8, to (B, C, *at.resized)."""
    if interpolation == "nearest":
        for axis, (source, target) in enumerate(zip(at.cut, at.resized, strict=True), start=2):
            planes = graph.add("Gather", planes, _nearest(graph, source, target), axis=axis)
        return planes
    sides = graph.add("Shape", planes, start=0, end=2)
    for size in (first_pass(at, graph.arithmetic), at.resized):
        planes = graph.add(
            "Resize",
            planes,
            "",
            "",
            graph.vector(sides, *size),
            mode=MODES[interpolation],
            antialias=1,
            exclude_outside=1,  # as Pillow, filters end at the edge of the image
            cubic_coeff_a=-0.5,
            coordinate_transformation_mode="half_pixel",
        )
    return planes


def _nearest(graph: _Graph, source: Any, target: Any) -> str:
    """Return the input index of each output pixel; Pillow adds up the steps in float64, and so does this."""
    from onnx import TensorProto

    step = graph.add("Div", _as_double(graph, source), _as_double(graph, target))
    count = graph.add("Sub", target, 1)
    others = graph.add("Expand", step, count)
    steps = graph.add("Concat", graph.add("Mul", step, np.array([0.5])), others, axis=0)
    return graph.add("Cast", graph.add("CumSum", steps, np.array(0)), to=TensorProto.INT64)


def _as_double(graph: _Graph, value: _Number | int) -> str:
    from onnx import TensorProto

    return graph.add("Cast", value, to=TensorProto.DOUBLE)


def _pad(graph: _Graph, planes: str, at: Geometry, pipeline: EvalPipeline) -> str:
    """Pad (B, C, *at.resized), float32, with the mean colour: subtracted before, and added after."""
    height, width = pipeline.size
    colour = np.array(pipeline.padding, np.float32).reshape(1, -1, 1, 1)
    bottom, right = height - at.resized[0] - at.pad_top, width - at.resized[1] - at.pad_left
    sides = graph.vector(0, 0, at.pad_top, at.pad_left, 0, 0, bottom, right)
    shifted = graph.add("Sub", planes, colour)
    return graph.add("Add", graph.add("Pad", shifted, sides), colour)
