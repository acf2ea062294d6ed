"""Writes what was decided on an OpenVINO graph into the ONNX graph that OpenVINO read it from.

Nodes of both have the same names. The input of a quantised product passes a QuantizeLinear and a DequantizeLinear, its
weight is stored in 8 bits, and constants that the quantisation changed, such as biases, are replaced.

Shapes: O output and I input channels of a product's weight, (I, O) in ONNX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import OutputError, first_line
from vitreous.export.graph.core import PIXELS
from vitreous.export.graph.onnx_builder import Graph
from vitreous.export.openvino_file import read_unmapped
from vitreous.export.quantisation.layers import MOVING, SMOOTH, constant
from vitreous.machine.openvino_package import import_openvino

__all__ = ["computed_in_float", "quantised_model", "read"]

_COSTLY = {"MatMul", "Convolution", "GroupConvolution", "ScaledDotProductAttention"}  # what NNCF would quantise
_ZERO = 128  # of unsigned bytes; ONNX Runtime multiplies unsigned activations by signed weights fastest


def read(file: Path) -> Any:
    """Return what an ONNX file computes after the resize as an OpenVINO graph whose weights are constants.

    Raises:
        OutputError: If OpenVINO cannot express the graph.
    """
    openvino = import_openvino()

    try:
        whole = read_unmapped(file)
    except Exception as error:  # of any class, also from the parser
        raise OutputError(
            f"int8 is chosen in OpenVINO, which cannot read this graph ({first_line(error)}): export it without int8"
        ) from error
    pixels = next(port for node in whole.get_ops() for port in node.outputs() if PIXELS in port.get_names())
    parameter = openvino.opset13.parameter(pixels.get_partial_shape(), pixels.get_element_type(), PIXELS)
    pixels.replace(parameter.output(0))  # NNCF does not know all operations of the resize
    graph = openvino.Model(whole.get_results(), [parameter], PIXELS)
    folding = openvino.passes.Manager()
    folding.register_pass(openvino.passes.ConstantFolding())  # a weight may be a part of a larger one
    folding.run_passes(graph)
    return graph


def computed_in_float(graph: Any, model: Any) -> list[str]:
    """Return the operations of a float graph that stay in float: all but products with a constant matrix."""
    products = {node.name for node in model.graph.node if node.op_type == "MatMul"}
    return [
        node.get_friendly_name()
        for node in graph.get_ordered_ops()
        if node.get_type_name() in _COSTLY
        and not (node.get_friendly_name() in products and constant(node.input_value(1)) is not None)
    ]


def quantised_model(graph: Any, original: Any, model: Any) -> Any:
    """Return an ONNX model that computes what a quantised graph does.

    Args:
        graph: The quantised graph, an ``openvino.Model``.
        original: The float graph.
        model: The ONNX model that was read as `original`; it is not changed.
    """
    after, before = ({node.get_friendly_name(): node for node in each.get_ordered_ops()} for each in (graph, original))
    built, activations = Graph("int8"), dict[tuple[str, ...], str]()
    for source in model.graph.node:
        node = type(source)()
        node.CopyFrom(source)
        if source.name in after and source.name in before:
            for index, value in _changed(node.op_type, after[node.name], before[node.name]):
                node.input[index] = built.name(value)
            if node.op_type == "MatMul":
                _quantise_product(built, node, after[node.name], activations)
        built.nodes.append(node)
    return _assembled(built, model)


def _quantise_product(built: Graph, node: Any, product: Any, activations: dict[tuple[str, ...], str]) -> None:
    """Have a product read the quantised activation and weight; `activations` are those that were built already."""
    factors, quantiser = _before(product.input_value(0))
    steps = [each for each in (factors, quantiser) if each is not None]
    key = (node.input[0], *(each.get_friendly_name() for each in steps))
    if steps and key not in activations:
        activations[key] = _activation(built, node.input[0], factors, quantiser)
    node.input[0] = activations.get(key, node.input[0])
    if quantiser is not None:
        scaled = product.input_value(1).get_node()  # int8 (I, O), converted, times a scale (1, O)
        weight, scale = scaled.input_value(0).get_node().input_value(0).get_node().data, constant(scaled.input_value(1))
        assert weight.dtype == np.int8
        assert scale is not None
        scales = np.broadcast_to(scale, (1, weight.shape[1])).ravel()
        node.input[1] = built.add("DequantizeLinear", np.ascontiguousarray(weight), scales, axis=1)


def _before(output: Any) -> tuple[Any, Any]:
    """Return the factors of SmoothQuant and the quantiser that an activation passes, each None if there is none."""
    factors = quantiser = None
    node = output.get_node()
    while True:
        if node.get_type_name() == "FakeQuantize":
            quantiser = node
        elif node.get_type_name() == "Multiply" and SMOOTH in node.get_friendly_name():
            factors = node
        elif node.get_type_name() not in MOVING:
            return factors, quantiser
        node = node.input_value(0).get_node()


def _activation(built: Graph, name: str, factors: Any, quantiser: Any) -> str:
    """Multiply an activation (..., I) by factors and quantise it, where there are such; return the result's name."""
    if factors is not None:
        values = constant(factors.input_value(1))
        assert values is not None
        name = built.add("Mul", name, values.ravel())
    if quantiser is None:
        return name
    low, high = (_single(quantiser.input_value(index)) for index in (1, 2))
    step = (high - low) / (quantiser.get_attributes()["levels"] - 1)
    scale, zero = np.array(step, np.float32), np.array(round(-low / step) if low else 0, np.uint8)
    assert zero in (0, _ZERO)  # symmetric, or without negative values
    return built.add("DequantizeLinear", built.add("QuantizeLinear", name, scale, zero), scale, zero)


def _single(output: Any) -> float:
    value = constant(output)
    assert value is not None
    return float(value.item())


def _changed(kind: str, after: Any, before: Any) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield index and value of each constant input of an ONNX node that the quantisation changed."""
    constants = _norm_constants if kind == "LayerNormalization" else _constants
    was = constants(before)
    for index, value in constants(after).items():
        if index in was and not np.array_equal(value, was[index]):
            yield index, value.reshape(was[index].shape)


def _constants(node: Any) -> dict[int, NDArray[np.float32]]:
    found = {index: constant(value) for index, value in enumerate(node.input_values())}
    return {index: value for index, value in found.items() if value is not None}


def _norm_constants(node: Any) -> dict[int, NDArray[np.float32]]:
    """Return scale and shift of a LayerNorm by index: in OpenVINO it is norm * scale + shift, or has no shift."""
    parts = {2: node, 1: node.input_value(0).get_node()} if node.get_type_name() == "Add" else {1: node}
    found = {index: constant(part.input_value(1)) for index, part in parts.items()}
    return {index: value.ravel() for index, value in found.items() if value is not None}


def _assembled(built: Graph, model: Any) -> Any:
    """Return the model with other nodes, and without what computed or held the weights that were replaced."""
    ends = {each.name for each in model.graph.output} | _unread(model.graph.node)  # these are names of inner layers
    nodes, reads = list[Any](), Counter(name for node in built.nodes for name in _reads(node))
    for node in reversed(built.nodes):
        if any(reads[name] or name in ends for name in node.output):
            nodes.insert(0, node)
        else:
            reads.subtract(_reads(node))
    weights = [each for each in (*model.graph.initializer, *built.constants) if reads[each.name]]
    found = type(model)()
    found.CopyFrom(model)
    del found.graph.node[:], found.graph.initializer[:]
    found.graph.node.extend(nodes)
    found.graph.initializer.extend(weights)
    return found


def _unread(nodes: Iterable[Any]) -> set[str]:
    return {name for node in nodes for name in node.output} - {name for node in nodes for name in _reads(node)}


def _reads(node: Any) -> Iterator[str]:
    """Yield the names that a node reads, also inside its branches."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _reads(inner)
