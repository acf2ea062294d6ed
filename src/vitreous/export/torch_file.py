"""torch.export (.pt2): graph, weights and description, which PyTorch runs without the model's code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_structure

from vitreous.data.preprocess import EvalPipeline
from vitreous.export.graph.core import PIXELS, Core
from vitreous.export.graph.torch_resize import Resize
from vitreous.export.graph.tracing import EXAMPLES, quiet, trace
from vitreous.export.untrusted_program import checked_archive

__all__ = ["DESCRIPTION", "ENGINE", "EXTRA", "PACKAGES", "RESIZES", "Runner", "trace_whole", "traced", "write"]

PACKAGES: tuple[str, ...] = ()
"""The packages that writing needs beside PyTorch."""
EXTRA = ""
"""The extra that brings them; empty if none does."""
ENGINE = "torch"
"""The engine that runs the file."""
RESIZES = ("exact",)
"""The ways of resizing in the graph, best first."""
DESCRIPTION = "vitreous.json"
"""Name of the description among the extra files of the archive."""


class _Graph(nn.Module):
    """Resize and core in one module."""

    def __init__(self, core: Core, pipeline: EvalPipeline, results: int | None) -> None:
        super().__init__()
        self.resize, self.core, self.results = Resize(pipeline), core, results

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Map images (B, h, w, C) to the first results of the core, then the pixels."""
        pixels = self.resize(images)
        return (*self.core(pixels)[: self.results], pixels)


def write(
    core: Core,
    pipeline: EvalPipeline,
    *,
    outputs: Sequence[str],
    taps: Sequence[str],
    words: Mapping[str, str],
    file: Path,
) -> list[Path]:
    """Write a graph as :func:`vitreous.export.onnx_file.write` does; the description is the file ``vitreous.json``.

    The outputs keep their order but not their names.
    """
    program = traced(core, pipeline, outputs, taps)
    with quiet():
        torch.export.save(program, file, extra_files={DESCRIPTION: json.dumps(dict(words), indent=2)})
    return [file]


def trace_whole(core: Core, pipeline: EvalPipeline, results: int | None = None) -> ExportedProgram:
    """Trace resize and core; the program returns the first `results` of the core, or all, then the resized pixels."""
    height, width = (side + 3 for side in pipeline.size)  # unequal to the input: no size of the example may matter
    example = torch.zeros(EXAMPLES, height, width + 1, pipeline.channels, dtype=torch.uint8)
    return trace(_Graph(core, pipeline, results).eval(), example, free=(0, 1, 2))


def traced(core: Core, pipeline: EvalPipeline, outputs: Sequence[str], taps: Sequence[str]) -> Any:
    """Trace the whole graph; the names of taps are those of nodes, in the form of :func:`_node_name`."""
    program: Any = trace_whole(core, pipeline)
    (last,) = (node for node in program.graph.nodes if node.op == "output")
    found = list(last.args[0])
    named: set[Any] = set(found[: len(outputs)])
    for name, node in zip((*taps, PIXELS), found[len(outputs) :], strict=True):
        if node.op == "call_function" and node not in named:
            named.add(node)
            node.name = _node_name(name)
    last.args = (tuple(found[: len(outputs)]),)
    del program.graph_signature.output_specs[len(outputs) :]
    whole = program.module_call_graph[0].signature
    whole.out_spec = tree_structure(tuple(outputs))
    del whole.outputs[len(outputs) :]
    return program


def _node_name(tap: str) -> str:
    return "at_" + tap.replace(" ", "_").replace("-", "_")


class Runner:
    """A written file in PyTorch, on the CPU."""

    def __init__(self, file: Path, taps: Sequence[str] = ()) -> None:
        self.name = f"torch {torch.__version__.partition('+')[0]}"
        extra = {DESCRIPTION: ""}
        with quiet():
            self._program = torch.export.load(checked_archive(file), extra_files=extra)
        self._module: Any = self._program.module()
        self.words = {str(name): str(text) for name, text in json.loads(extra[DESCRIPTION] or "{}").items()}
        self._taps: dict[str, str] = {}
        if taps:
            nodes = {node.name for node in self._module.graph.nodes}
            self._taps = {_node_name(tap): tap for tap in taps if _node_name(tap) in nodes}
        self.outputs = list(self._taps.values()) or self.words.get("outputs", "").split(", ")

    def __call__(self, images: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """Return all outputs for images (B, h, w, C)."""
        batch = torch.from_numpy(np.array(images))
        with torch.inference_mode():
            if not self._taps:
                return [output.numpy() for output in self._module(batch)]
            seen = _Seen(self._module, self._taps)
            seen.run(batch)
        return [seen.values[name].float().numpy() for name in self._taps]


class _Seen(torch.fx.Interpreter):
    """Runs a graph and keeps the values of some of its nodes."""

    def __init__(self, module: Any, names: Mapping[str, str]) -> None:
        super().__init__(module)
        self.names, self.values = names, dict[str, Tensor]()

    def run_node(self, n: Any) -> Any:
        """Run one node."""
        value = super().run_node(n)
        if n.name in self.names:
            self.values[n.name] = value
        return value
