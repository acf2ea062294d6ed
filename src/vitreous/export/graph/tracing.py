"""Traces modules into programs, and writes these as ONNX or OpenVINO graphs: for exported files and engines alike.

A traced graph has a free batch size; its other sizes are those of the example. Shapes: B batch.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitreous.machine.openvino_package import import_openvino

__all__ = ["EXAMPLES", "ONNX_OPSET", "forget_machine", "quiet", "to_onnx", "to_openvino", "trace"]

EXAMPLES = 2
"""Images in an example to trace with: torch.export takes a dimension of 1 as constant."""

ONNX_OPSET = 23
"""The first opset with Attention; since 17 there is LayerNormalization, since 18 antialiased Resize, since 20 Gelu."""


def trace(module: nn.Module, example: Tensor, free: Sequence[int] = (0,)) -> ExportedProgram:
    """Trace a module with an example batch of `EXAMPLES` images; the dimensions `free` stay free.

    Call the module once before, so that it builds its tables of positions, which must not become part of the graph.
    """
    shapes: Any = ({axis: Dim("batch") if axis == 0 else Dim.AUTO for axis in free},)
    with torch.no_grad(), quiet():
        program = torch.export.export(module, (example,), dynamic_shapes=shapes, strict=False)
    for graph in (each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)):
        for node in graph.graph.nodes:
            node.meta.pop("stack_trace", None)  # has paths of this machine
    return program


def to_onnx(program: ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Convert a program to an ONNX model (:class:`torch.onnx.ONNXProgram`), without traces of this machine."""
    with torch.no_grad(), quiet():
        converted = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=ONNX_OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
        )
    assert converted is not None  # None only with dynamo=False
    forget_machine(converted)
    return converted


def forget_machine(converted: Any) -> None:
    """Remove the stack traces of a converted program, which have paths of this machine."""
    for node in converted.model.graph.all_nodes():
        node.metadata_props.clear()


def to_openvino(program: ExportedProgram) -> Any:
    """Convert a program to an OpenVINO model (:class:`openvino.Model`)."""
    openvino = import_openvino()

    with quiet():
        return openvino.convert_model(program)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what exporters say about their own internals: warnings, log lines and progress on standard output."""
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
