"""The layers of an OpenVINO graph: which are quantised, what they are called, and how one goes back to float.

Shapes: O output and I input channels of a layer's weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.machine.openvino_package import import_openvino

__all__ = ["MOVING", "SMOOTH", "Unit", "constant", "float_layers", "layer_names", "quantised_units", "restore"]

SMOOTH = "nncf_smooth_quant"
"""What NNCF puts into the names of the factors that SmoothQuant inserts."""
_WEIGHTED = {"MatMul", "Convolution", "GroupConvolution"}
MOVING = {"Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze", "Gather", "VariadicSplit", "Split"}
"""Operations that move values without changing them; a quantiser may stand before them."""


@dataclass(frozen=True)
class Unit:
    """Layers that read one quantised tensor, such as queries, keys and values; they go back to float together."""

    name: str  # for people
    layers: tuple[str, ...]  # of operations of the graph
    attention: bool  # the products of attention, which have no weights


def constant(output: Any) -> NDArray[np.float32] | None:
    """Return the values that an output always has if it is a constant, perhaps converted; None otherwise."""
    node = output.get_node()
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node.data.astype(np.float32) if node.get_type_name() == "Constant" else None


def _weight(node: Any) -> NDArray[np.float32] | None:
    """Return the constant weight of a layer in float, or None if the operation is not a layer with such a weight."""
    return constant(node.input_value(1)) if node.get_type_name() in _WEIGHTED else None


def float_layers(graph: Any) -> tuple[list[str], list[str]]:
    """Return what a float graph should keep in float: names of preprocessing operations, and names of layers.

    The layers are those that read the image and those that compute the outputs from one row per image. They are a
    small part of the time and a large part of the error.
    """
    layers = {node.get_friendly_name() for node in graph.get_ordered_ops() if _weight(node) is not None}
    after: set[str] = set()  # operations that come after a layer
    followed: set[str] = set()  # layers that other layers come after
    preprocessing, first, last = [], [], []
    above: dict[str, set[str]] = {}  # the nearest layers above each operation
    for node in graph.get_ordered_ops():
        name = node.get_friendly_name()
        sources = [value.get_node().get_friendly_name() for value in node.input_values()]
        above[name] = set().union(*(({s} if s in layers else above[s]) for s in sources))
        if above[name]:
            after.add(name)
        elif name in layers:
            first.append(name)
        elif node.get_type_name() not in {"Constant", "Parameter", "Result"}:
            preprocessing.append(name)
        if name in layers:
            followed |= above[name]
    for node in graph.get_ordered_ops():
        name = node.get_friendly_name()
        if name in layers - followed and node.output(0).get_partial_shape().rank.get_length() == 2:
            last.append(name)
    return preprocessing, list(dict.fromkeys([*first, *last]))


def quantised_units(graph: Any, names: Mapping[str, str]) -> list[Unit]:
    """Return the units of a quantised graph in topological order; `names` are names for people, where known."""
    readers: dict[str, list[str]] = {}
    weightless = set()
    for node in graph.get_ordered_ops():
        if node.get_type_name() in {*_WEIGHTED, "ScaledDotProductAttention"}:
            quantiser = next(filter(None, map(_quantiser, node.input_values())), None)
            if quantiser is not None:
                readers.setdefault(quantiser, []).append(node.get_friendly_name())
                weightless |= {quantiser} if len(node.inputs()) > 2 or _activation(node.input_value(1)) else set()
    return [
        Unit(", ".join(dict.fromkeys(names.get(each, each) for each in layers)), tuple(layers), quantiser in weightless)
        for quantiser, layers in readers.items()
    ]


def _activation(output: Any) -> bool:
    """Return whether an output comes from a quantised activation rather than a quantised weight."""
    return _quantiser(output) is not None


def _quantiser(output: Any) -> str | None:
    """Return the name of the quantiser that an activation comes from, or None."""
    node = output.get_node()
    if node.get_type_name() == "FakeQuantize":
        return str(node.get_friendly_name())
    return _quantiser(node.input_value(0)) if node.get_type_name() in MOVING else None


def restore(graph: Any, original: Any, units: Collection[Unit]) -> Any:
    """Return a copy of a quantised graph in which the units compute in float with the weights of the original graph."""
    copy = graph.clone()
    nodes = {node.get_friendly_name(): node for node in copy.get_ordered_ops()}
    sources = {node.get_friendly_name(): node for node in original.get_ordered_ops()}
    for layer in (layer for unit in units for layer in unit.layers):
        _restore_layer(nodes[layer], sources[layer])
    copy.validate_nodes_and_infer_types()
    return copy


def _restore_layer(node: Any, original: Any) -> None:
    """Have an operation read what its quantisers read, and use its original weight and bias."""
    openvino = import_openvino()

    weight = _weight(original)
    for index in range(1 if weight is not None else len(node.inputs())):
        node.input(index).replace_source_output(_before_quantiser(node.input_value(index)))
    if weight is None:
        return
    factors = _smoothing(node.input_value(0))
    if factors is not None:  # the activation is still multiplied by these, one for each input channel
        inputs_last = node.get_type_name() == "MatMul" and node.get_attributes()["transpose_b"]
        weight = weight / (factors.reshape(-1) if inputs_last else factors.reshape(-1, 1))
    node.input(1).replace_source_output(openvino.opset13.constant(weight).output(0))
    _restore_bias(node, original)


def _before_quantiser(output: Any) -> Any:
    """Return the output without the quantiser that it comes from, if any."""
    openvino = import_openvino()

    node = output.get_node()
    if node.get_type_name() == "FakeQuantize":
        return node.input_value(0)
    if node.get_type_name() not in MOVING or _quantiser(output) is None:
        return output
    moved = [_before_quantiser(node.input_value(0)), *node.input_values()[1:]]
    factory = openvino.utils.node_factory.NodeFactory(node.get_type_info().version_id)
    copy = factory.create(node.get_type_name(), moved, node.get_attributes())
    return copy.output(output.get_index())


def _smoothing(output: Any) -> NDArray[np.float32] | None:
    """Return the factors by which SmoothQuant multiplies an activation, or None."""
    node = output.get_node()
    if node.get_type_name() == "Multiply" and SMOOTH in node.get_friendly_name():
        return constant(node.input_value(1))
    return _smoothing(node.input_value(0)) if node.get_type_name() in MOVING else None


def _restore_bias(node: Any, original: Any) -> None:
    """Undo NNCF's bias correction of a layer: its bias is the constant that is added to its output."""
    openvino = import_openvino()

    add, source = _bias(node), _bias(original)
    if add is not None and source is not None:
        add.replace_source_output(openvino.opset13.constant(constant(source.get_source_output())).output(0))


def _bias(node: Any) -> Any:
    """Return the input of an addition through which a layer's output gets its bias, or None."""
    readers = [reader.get_node() for reader in node.output(0).get_target_inputs()]
    if len(readers) != 1 or readers[0].get_type_name() != "Add":
        return None
    return next((each for each in readers[0].inputs() if constant(each.get_source_output()) is not None), None)


def layer_names(graph: Any, weights: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Return a name for people for each operation of a float graph that may be quantised.

    It is the name of the parameter that has the layer's weight, else the kind of operation with a number, in
    topological order: `blocks.0.mlp.fc1`, `Convolution 1`, `attention 3`.

    Args:
        graph: A float graph.
        weights: The model's matrices by name, such as ``blocks.0.mlp.fc1.weight`` (O, I). A graph may hold some of a
            matrix's rows as a layer of its own.
    """
    rows: dict[bytes, str] = {}
    for name, weight in weights.items():
        if weight.ndim >= 2:
            flat = np.ascontiguousarray(weight, np.float32).reshape(len(weight), -1)
            rows.update({row.tobytes(): name.removesuffix(".weight") for row in flat})
    found: dict[str, str] = {}
    count: dict[str, int] = {}
    for node in graph.get_ordered_ops():
        kind = {"ScaledDotProductAttention": "attention"}.get(node.get_type_name(), node.get_type_name())
        if kind in _WEIGHTED or kind == "attention":
            count[kind] = count.get(kind, 0) + 1
            matrix = _weight(node)
            row = b"" if matrix is None else (matrix[:, 0] if _inputs_first(node) else matrix[0]).tobytes()
            found[node.get_friendly_name()] = rows.get(row, f"{kind} {count[kind]}")
    return found


def _inputs_first(node: Any) -> bool:
    """Return whether a layer's weight is (I, O)."""
    return node.get_type_name() == "MatMul" and not node.get_attributes()["transpose_b"]
