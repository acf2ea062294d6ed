"""ONNX graphs that share one file of weights: a tensor that two graphs have, also transposed, is stored once.

The format calls it external data: a graph names the file, and where in it each tensor lies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["halve", "is_quantised", "share"]

_SMALL = 1024  # bytes; smaller tensors stay in their graph
_ALIGNMENT = 64  # bytes


def share(graphs: Sequence[Any], name: str) -> bytes:
    """Move the weights of ``onnx.ModelProto`` objects, in place, to one file, and return its content.

    Args:
        graphs: Their weights must be inside them. What a later graph shares with an earlier one is the earlier's.
        name: Of the file, which lies beside the graphs.
    """
    content, known = bytearray(), {}
    for graph in graphs:
        turned = []
        for tensor in graph.graph.initializer:
            values = _to_array(tensor)
            if values.nbytes < _SMALL:
                continue
            key = _key(values)
            if key not in known and values.ndim == 2 and _key(np.ascontiguousarray(values.T)) in known:
                turned.append(tensor.name)
                values = np.ascontiguousarray(values.T)
                tensor.name, key = f"{tensor.name}.transposed", _key(values)
            if key not in known:
                content.extend(bytes(-len(content) % _ALIGNMENT))
                known[key] = len(content)
                content.extend(values.tobytes())
            _point(tensor, values, name, known[key])
        _transpose_back(graph, turned)
    return bytes(content)


def halve(graph: Any) -> None:
    """Store the float32 weights of a graph in float16, in place, and compute with them in float32 as before."""
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for tensor in graph.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or _to_array(tensor).nbytes < _SMALL:
            continue
        half = numpy_helper.from_array(_to_array(tensor).astype(np.float16), f"{tensor.name}.half")
        casts.append(helper.make_node("Cast", [half.name], [tensor.name], to=TensorProto.FLOAT))
        tensor.CopyFrom(half)
    _prepend(graph, casts)


def is_quantised(graph: Any) -> bool:
    """Return whether a graph has weights of 8 bits; single numbers, such as a resize has, are none."""
    from onnx import TensorProto

    bytewise = (TensorProto.INT8, TensorProto.UINT8)
    return any(each.data_type in bytewise and _to_array(each).nbytes >= _SMALL for each in graph.graph.initializer)


def _to_array(tensor: Any) -> np.ndarray[Any, Any]:
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor)


def _key(values: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return values.dtype.str, values.shape, hashlib.sha256(values.tobytes()).digest()


def _point(tensor: Any, values: np.ndarray[Any, Any], name: str, offset: int) -> None:
    """Replace the values of a tensor by their place in a file."""
    from onnx import TensorProto

    moved = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=values.shape)
    moved.data_location = TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", offset), ("length", values.nbytes)):
        moved.external_data.add(key=key, value=str(value))
    tensor.CopyFrom(moved)


def _transpose_back(graph: Any, names: Sequence[str]) -> None:
    """Compute tensors of these names from what is stored transposed; a runtime does it once, when it loads."""
    from onnx import helper

    _prepend(graph, [helper.make_node("Transpose", [f"{name}.transposed"], [name], perm=[1, 0]) for name in names])


def _prepend(graph: Any, nodes: Sequence[Any]) -> None:
    everything = [*nodes, *graph.graph.node]  # nodes are in the order of computation
    del graph.graph.node[:]
    graph.graph.node.extend(everything)
