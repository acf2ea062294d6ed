"""Folds the factors of SmoothQuant into the constants before them, so that they take no time.

SmoothQuant multiplies the input of a layer by a factor for each channel and divides the layer's weight by it. After a
LayerNorm the factors belong to its scale and shift; after attention, to the weight and bias that compute the values.
After an activation function they stay, and are computed with it.

Without factors between them, a quantiser can follow attention directly.

Shapes: D width, T tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.export.quantisation.layers import SMOOTH, constant
from vitreous.machine.openvino_package import import_openvino

__all__ = ["fold"]

_HEADS = {"Reshape", "Transpose"}  # what splits channels into heads and joins them again


def fold(graph: Any) -> Any:
    """Return a copy of a graph with the factors of SmoothQuant folded where that is possible."""
    copy = graph.clone()
    _fold_factors(copy)
    for node in copy.get_ordered_ops():  # once those of the removed factors are gone, which read what they read
        if node.get_type_name() == "FakeQuantize":
            _move_to_attention(node)
    copy.validate_nodes_and_infer_types()
    return copy


def _fold_factors(graph: Any) -> None:
    """Fold the factors in place."""
    for node in graph.get_ordered_ops():
        if node.get_type_name() == "Multiply" and SMOOTH in node.get_friendly_name():
            factors = constant(node.input_value(1))
            if factors is not None and _fold_upwards(node.input_value(0), factors.reshape(-1)):
                node.output(0).replace(node.input_value(0))


def _fold_upwards(output: Any, factors: NDArray[np.float32]) -> bool:
    """Multiply the channels of an output by factors (D,) through constants above it; return whether that was done."""
    source = output.get_node()
    if len(output.get_target_inputs()) != 1:
        return False
    if source.get_type_name() in {"Add", "Multiply"}:
        return _fold_into_norm(source, factors)
    while source.get_type_name() in _HEADS:
        source = source.input_value(0).get_node()
    return source.get_type_name() == "ScaledDotProductAttention" and _fold_into_values(source, factors)


def _fold_into_norm(node: Any, factors: NDArray[np.float32]) -> bool:
    """Fold into the scale and shift of a LayerNorm: norm * scale + shift, or without the shift."""
    shift, scale = (node, node.input_value(0).get_node()) if node.get_type_name() == "Add" else (None, node)
    if scale.get_type_name() != "Multiply" or scale.input_value(0).get_node().get_type_name() != "MVN":
        return False
    affine = [each for each in (shift, scale) if each is not None]
    if any(constant(each.input_value(1)) is None or len(each.output(0).get_target_inputs()) != 1 for each in affine):
        return False
    for each in affine:
        _multiply_constant(each, 1, factors)
    return True


def _fold_into_values(attention: Any, factors: NDArray[np.float32]) -> bool:
    """Fold into the product and bias that compute the values, which attention averages by channel."""
    node = attention.input_value(2).get_node()
    while node.get_type_name() in _HEADS and len(node.output(0).get_target_inputs()) == 1:
        node = node.input_value(0).get_node()
    bias, product = (node, node.input_value(0).get_node()) if node.get_type_name() == "Add" else (None, node)
    alone = all(len(each.output(0).get_target_inputs()) == 1 for each in (bias, product) if each is not None)
    if not alone or product.get_type_name() != "MatMul":
        return False
    if bias is not None and constant(bias.input_value(1)) is None:
        return False
    by_output = factors[:, None] if product.get_attributes()["transpose_b"] else factors  # outputs are rows, or columns
    weight = product.input_value(1).get_node()  # (D, D): a constant, or int8 times a scale for each output
    if weight.get_type_name() == "Multiply" and constant(weight.input_value(1)) is not None:
        _multiply_constant(weight, 1, by_output)
    elif constant(product.input_value(1)) is not None:
        _multiply_constant(product, 1, by_output)
    else:
        return False
    if bias is not None:
        _multiply_constant(bias, 1, factors)
    return True


def _move_to_attention(quantiser: Any) -> None:
    """Put a quantiser of the joined heads directly after attention, where the runtime computes it with attention."""
    last = first = quantiser.input_value(0).get_node()
    if last.get_type_name() not in _HEADS:
        return
    while len(first.output(0).get_target_inputs()) == 1:
        above = first.input_value(0).get_node()
        if above.get_type_name() not in _HEADS:
            break
        first = above
    attention = first.input_value(0)
    single = all(len(output.get_target_inputs()) == 1 for output in (first.output(0), attention))
    ranges = [constant(quantiser.input_value(index)) for index in range(1, 5)]
    one_range = all(each is not None and each.size == 1 for each in ranges)
    if attention.get_node().get_type_name() == "ScaledDotProductAttention" and single and one_range:
        quantiser.output(0).replace(last.output(0))
        first.input(0).replace_source_output(quantiser.output(0))
        quantiser.input(0).replace_source_output(attention)


def _multiply_constant(node: Any, index: int, factors: NDArray[np.float32]) -> None:
    openvino = import_openvino()

    value = constant(node.input_value(index))
    assert value is not None
    node.input(index).replace_source_output(openvino.opset13.constant((value * factors).astype(np.float32)).output(0))
