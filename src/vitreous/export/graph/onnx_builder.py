"""Builds ONNX graphs node by node, with whole numbers that have the arithmetic of Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.export.graph.geometry import Arithmetic

__all__ = ["Graph", "Number"]


class Number:
    """A whole number in the graph: an int64 tensor with one element."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def __add__(self, other: Number | int) -> Number:
        return self.graph.number("Add", self, other)

    def __sub__(self, other: Number | int) -> Number:
        return self.graph.number("Sub", self, other)

    def __mul__(self, other: Number | int) -> Number:
        return self.graph.number("Mul", self, other)

    def __rsub__(self, other: int) -> Number:
        return self.graph.number("Sub", other, self)

    __radd__, __rmul__ = __add__, __mul__


class Graph:
    """A graph under construction; names begin with its prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.arithmetic = Arithmetic(
            lambda a, b: self.number("Div", a, b),
            lambda a, b: self.number("Min", a, b),
            lambda a, b: self.number("Max", a, b),
        )

    def add(self, kind: str, *inputs: Any, name: str | None = None, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        from onnx import helper

        output = name or f"{self.prefix}_{kind.lower()}_{len(self.nodes)}"
        names = [self.name(each) for each in inputs]
        self.nodes.append(helper.make_node(kind, names, [output], name=output, **attributes))
        return output

    def number(self, kind: str, *inputs: Any, **attributes: Any) -> Number:
        """Add a node whose output is a whole number."""
        return Number(self, self.add(kind, *inputs, **attributes))

    def vector(self, *numbers: Any) -> str:
        """Return the name of several whole numbers as one tensor."""
        return self.add("Concat", *numbers, axis=0)

    def double(self, value: Any) -> str:
        """Return the name of a value as float64."""
        from onnx import TensorProto

        return self.add("Cast", value, to=TensorProto.DOUBLE)

    def name(self, value: Any) -> str:
        """Return the name of a value, which becomes a constant if it is none yet."""
        from onnx import numpy_helper

        if isinstance(value, str):
            return value
        if isinstance(value, Number):
            return value.name
        array: npt.NDArray[Any] = np.array([value]) if isinstance(value, int) else np.asarray(value)
        name = f"{self.prefix}_constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name
