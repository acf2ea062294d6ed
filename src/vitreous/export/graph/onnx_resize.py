"""The resize of the evaluation pipeline in ONNX operators, from images of any size to the model's input.

ONNX's own antialiased Resize rounds filter weights otherwise than Pillow: a few pixels in ten thousand differ by one
level, which moves probabilities of trained models by up to 4e-4. It is here as the resize `native`, which is faster on
large images. The resize `exact` has the same bytes as Pillow: as in `torch_resize.py`, a pass is a product
with the matrix of Pillow's weights. They are rounded to 22 bits, and split into three digits of 8 bits, so that
MatMulInteger multiplies bytes and adds whole numbers, without rounding and as fast as int8 models are.

Shapes: B batch, C channels, h x w pixels of the images, H x W pixels of the model's input; n of one side of an image,
N of that side of the input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vitreous.data.preprocess import EvalPipeline
from vitreous.export.graph.core import PIXELS
from vitreous.export.graph.geometry import Geometry, first_pass, geometry, rows_first
from vitreous.export.graph.onnx_builder import Graph
from vitreous.export.graph.onnx_weights import filter_weights, nearest_pixels
from vitreous.export.graph.tracing import ONNX_OPSET

__all__ = ["NATIVE_MODES", "resize_model"]

NATIVE_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Filters that the operator Resize has, by Pillow's name."""

_BITS = 22  # of a weight: 32 less 8 for the pixel and 2 for overshoots (Pillow's Resample.c, PRECISION_BITS)
_DIGITS = 3  # of 8 bits each, from -128 to 127


def resize_model(pipeline: EvalPipeline, native: bool = False) -> Any:
    """Return an ONNX model from ``images``, uint8 (B, h, w, C), to ``pixels``, float32 (B, C, H, W) from 0 to 255.

    `native` uses the operator Resize, whose filters are `NATIVE_MODES`.
    """
    import onnx
    from onnx import TensorProto, helper

    graph, channels, (height, width) = Graph("resize"), pipeline.channels, pipeline.size
    h, w = (graph.number("Shape", "images", start=axis, end=axis + 1) for axis in (1, 2))
    at = geometry(h, w, pipeline.size, pipeline.config, graph.arithmetic)
    planes = graph.add("Transpose", "images", perm=[0, 3, 1, 2])
    if pipeline.config.interpolation == "nearest":
        for axis in (0, 1):
            planes = graph.add("Gather", planes, nearest_pixels(graph, at, pipeline.size, axis), axis=axis + 2)
    elif native:
        planes = _native(graph, planes, at, pipeline)
    else:
        planes = _filtered(graph, planes, at, pipeline)
    resized = graph.add("Cast", planes, to=TensorProto.FLOAT)
    if pipeline.config.fit == "pad":
        inside = [_inside(graph, at, pipeline.size, axis) for axis in (0, 1)]
        colour = np.array(pipeline.padding, np.float32).reshape(1, -1, 1, 1)
        within = graph.add("And", graph.add("Unsqueeze", inside[0], np.array([1])), inside[1])
        resized = graph.add("Where", within, resized, colour)
    graph.add("Reshape", resized, np.array([0, channels, height, width]), name=PIXELS)  # states the shape
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", "height", "width", channels])
    pixels = helper.make_tensor_value_info(PIXELS, TensorProto.FLOAT, ["batch", channels, height, width])
    built = helper.make_graph(graph.nodes, "resize", [images], [pixels], graph.constants)
    return onnx.helper.make_model(built, opset_imports=[helper.make_opsetid("", ONNX_OPSET)], ir_version=10)


def _filtered(graph: Graph, planes: str, at: Geometry, pipeline: EvalPipeline) -> str:
    """Resize (B, C, h, w), uint8, to (B, C, H, W) by both passes, in Pillow's order."""
    from onnx import TensorProto, helper

    down, across = (
        _digits(graph, filter_weights(graph, at, pipeline.size, axis, pipeline.config.interpolation)) for axis in (0, 1)
    )
    if rows_first():
        return _two_passes(graph, planes, across, down, rows=True)
    # The order shows in the height after the first pass.
    columns = graph.add("Not", graph.add("Equal", first_pass(at, graph.arithmetic)[0], at.cut[0]))
    branches = {}
    for name, rows in (("then", False), ("else", True)):
        branch = Graph(f"resize_{name}")
        result = _two_passes(branch, planes, across, down, rows)
        shape = [None, pipeline.channels, None, None]
        output = helper.make_tensor_value_info(result, TensorProto.UINT8, shape)
        branches[f"{name}_branch"] = helper.make_graph(branch.nodes, name, [], [output], branch.constants)
    return graph.add("If", columns, **branches)


def _native(graph: Graph, planes: str, at: Geometry, pipeline: EvalPipeline) -> str:
    """Resize (B, C, h, w), uint8, to (B, C, H, W) by the operator Resize, once for each pass of Pillow."""
    height, width = pipeline.size
    if pipeline.config.fit == "crop":
        planes = _window(graph, planes, (at.cut_top, at.cut_left), at.cut)
    sides = graph.add("Shape", planes, start=0, end=2)
    for size in (first_pass(at, graph.arithmetic), at.resized):
        planes = graph.add(
            "Resize",
            planes,
            "",
            "",
            graph.vector(sides, *size),
            mode=NATIVE_MODES[pipeline.config.interpolation],
            antialias=1,
            exclude_outside=1,  # as Pillow, filters end at the edge of the image
            cubic_coeff_a=-0.5,
            coordinate_transformation_mode="half_pixel",
        )
    if pipeline.config.fit == "crop":
        return _window(graph, planes, (at.crop_top, at.crop_left), pipeline.size)
    bottom, right = height - at.resized[0] - at.pad_top, width - at.resized[1] - at.pad_left
    return graph.add("Pad", planes, graph.vector(0, 0, at.pad_top, at.pad_left, 0, 0, bottom, right))


def _window(graph: Graph, planes: str, start: tuple[Any, Any], size: tuple[Any, Any]) -> str:
    """Cut a window out of (B, C, h, w)."""
    (top, left), (height, width) = start, size
    last = graph.vector(top + height, left + width)
    return graph.add("Slice", planes, graph.vector(top, left), last, np.array([2, 3]))


def _two_passes(graph: Graph, planes: str, across: list[str], down: list[str], rows: bool) -> str:
    """Resize (B, C, h, w) along rows, then along columns; or in the other order."""
    if rows:
        return _transposed(graph, _pass(graph, _transposed(graph, _pass(graph, planes, across)), down))
    return _pass(graph, _transposed(graph, _pass(graph, _transposed(graph, planes), down)), across)


def _pass(graph: Graph, planes: str, digits: list[str]) -> str:
    """Multiply (B, C, m, n), uint8, by weights (n, N) given as digits; round to uint8, (B, C, m, N)."""
    from onnx import TensorProto

    total = ""
    for place, digit in enumerate(digits):
        product = graph.add("MatMulInteger", planes, digit, "", np.array(128, np.uint8))
        part = graph.add("Mul", product, np.array(256**place, np.int32)) if place else product
        total = graph.add("Add", total, part) if total else part
    half = graph.add("Add", total, np.array(1 << (_BITS - 1), np.int32))
    positive = graph.add("Max", half, np.array(0, np.int32))  # a division drops the fraction
    levels = graph.add("Div", positive, np.array(1 << _BITS, np.int32))
    return graph.add("Cast", graph.add("Min", levels, np.array(255, np.int32)), to=TensorProto.UINT8)


def _digits(graph: Graph, weights: str) -> list[str]:
    """Split weights (n, N), float64, into whole digits d of base 256, as uint8 d + 128, the smallest first."""
    from onnx import TensorProto

    scaled = graph.add("Mul", weights, np.array(2.0**_BITS))
    up, down = (graph.add("Add", scaled, np.array(shift)) for shift in (0.5, -0.5))
    is_negative = graph.add("Less", scaled, np.array(0.0))
    rest = graph.add("Where", is_negative, graph.add("Ceil", down), graph.add("Floor", up))
    found = []
    for _ in range(_DIGITS):
        # rest = 256 next + digit, with a digit from -128 to 127
        shifted = graph.add("Add", rest, np.array(128.0))
        following = graph.add("Floor", graph.add("Div", shifted, np.array(256.0)))
        digit = graph.add("Sub", shifted, graph.add("Mul", following, np.array(256.0)))  # plus 128
        found.append(graph.add("Cast", digit, to=TensorProto.UINT8))
        rest = following
    return found


def _transposed(graph: Graph, planes: str) -> str:
    return graph.add("Transpose", planes, perm=[0, 1, 3, 2])


def _inside(graph: Graph, at: Geometry, size: tuple[int, int], axis: int) -> str:
    """Return which rows or columns of the input are not padding, (N,)."""
    out = graph.add("Sub", np.arange(size[axis]), (at.pad_top, at.pad_left)[axis])
    first: Any = graph.add("GreaterOrEqual", out, np.array([0]))
    return graph.add("And", first, graph.add("Less", out, at.resized[axis]))
