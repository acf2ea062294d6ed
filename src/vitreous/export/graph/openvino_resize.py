"""The resize of the evaluation pipeline in OpenVINO operators: from images of any size to the model's input.

OpenVINO has Pillow's filters as BILINEAR_PILLOW and BICUBIC_PILLOW, on uint8. Shapes: B batch, C channels, h x w pixels
of the images, H x W pixels of the model's input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vitreous.data.preprocess import EvalPipeline
from vitreous.export.graph.core import PIXELS
from vitreous.export.graph.geometry import Arithmetic, Geometry, first_pass, geometry
from vitreous.machine.openvino_package import import_openvino

__all__ = ["MODES", "prepend_resize"]

MODES = {"bilinear": "bilinear_pillow", "bicubic": "bicubic_pillow"}
"""Filters that Interpolate has, by Pillow's name."""


class _Number:
    """A whole number in the graph: a tensor with one element, with the arithmetic of Python's integers."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def __add__(self, other: _Number | int) -> _Number:
        return _compute("add", self, other)

    def __sub__(self, other: _Number | int) -> _Number:
        return _compute("subtract", self, other)

    def __mul__(self, other: _Number | int) -> _Number:
        return _compute("multiply", self, other)

    def __rsub__(self, other: int) -> _Number:
        return _compute("subtract", other, self)

    __radd__, __rmul__ = __add__, __mul__


_DO = Arithmetic(
    lambda a, b: _compute("divide", a, b),
    lambda a, b: _compute("minimum", a, b),
    lambda a, b: _compute("maximum", a, b),
)


def prepend_resize(model: Any, pipeline: EvalPipeline) -> Any:
    """Return a model whose input is ``images``, uint8 (B, h, w, C), in front of one that takes pixels (B, C, H, W)."""
    openvino = import_openvino()
    op = openvino.opset15

    images = op.parameter([-1, -1, -1, pipeline.channels], np.uint8, name="images")
    images.output(0).get_tensor().set_names({"images"})
    shape = op.shape_of(images)
    h, w = (_Number(op.gather(shape, np.array([axis]), np.array(0))) for axis in (1, 2))
    at = geometry(h, w, pipeline.size, pipeline.config, _DO)
    planes = op.transpose(images, np.array([0, 3, 1, 2]))
    if pipeline.config.fit == "crop":
        planes = _window(planes, (at.cut_top, at.cut_left), at.cut)
    for size in (first_pass(at, _DO), at.resized):
        mode = MODES[pipeline.config.interpolation]
        planes = op.interpolate(
            planes, _vector(*size), mode, "sizes", cube_coeff=-0.5, axes=np.array([2, 3]), pads_begin=[0], pads_end=[0]
        )
    if pipeline.config.fit == "crop":
        planes = _window(planes, (at.crop_top, at.crop_left), pipeline.size)
    pixels = op.convert(planes, "f32")
    if pipeline.config.fit == "pad":
        pixels = _pad(pixels, at, pipeline)
    pixels = op.reshape(pixels, np.array([0, pipeline.channels, *pipeline.size]), True, name=PIXELS)  # states the shape
    (old,) = model.get_parameters()
    for reader in old.output(0).get_target_inputs():
        reader.replace_source_output(pixels.output(0))
    pixels.output(0).get_tensor().set_names({PIXELS})
    return openvino.Model(model.get_results(), [images], "vitreous")


def _compute(kind: str, *values: _Number | int) -> _Number:
    op = import_openvino().opset15
    return _Number(getattr(op, kind)(*(_node(value) for value in values)))


def _node(value: _Number | int) -> Any:
    op = import_openvino().opset15
    return value.node if isinstance(value, _Number) else op.constant(np.array([value], np.int64))


def _vector(*numbers: _Number | int) -> Any:
    op = import_openvino().opset15
    return op.concat([_node(number) for number in numbers], 0)


def _window(planes: Any, start: tuple[Any, Any], size: tuple[Any, Any]) -> Any:
    """Cut a window out of (B, C, h, w)."""
    op = import_openvino().opset15
    (top, left), (height, width) = start, size
    last = _vector(top + height, left + width)
    return op.slice(planes, _vector(top, left), last, np.array([1, 1]), np.array([2, 3]))


def _pad(planes: Any, at: Geometry, pipeline: EvalPipeline) -> Any:
    """Pad (B, C, *at.resized), float32, with the mean colour: subtracted before, and added after."""
    op = import_openvino().opset15
    height, width = pipeline.size
    colour = np.array(pipeline.padding, np.float32).reshape(1, -1, 1, 1)
    bottom, right = height - at.resized[0] - at.pad_top, width - at.resized[1] - at.pad_left
    begin, end = _vector(0, 0, at.pad_top, at.pad_left), _vector(0, 0, bottom, right)
    shifted = op.subtract(planes, op.constant(colour))
    return op.add(op.pad(shifted, begin, end, "constant", arg_pad_value=np.float32(0)), op.constant(colour))
