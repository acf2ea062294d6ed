"""OpenVINO IR: the graph and its description as XML, and the weights in a second file beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.export.graph.core import Core
from vitreous.export.graph.openvino_resize import MODES, prepend_resize
from vitreous.export.graph.tracing import EXAMPLES, to_openvino, trace
from vitreous.machine.openvino_package import import_openvino

__all__ = [
    "ENGINE",
    "EXTRA",
    "NATIVE_FILTERS",
    "PACKAGES",
    "RESIZES",
    "REST",
    "Runner",
    "core",
    "read_unmapped",
    "write",
]

PACKAGES = ("openvino",)
"""The packages that writing needs beside PyTorch."""
EXTRA = "openvino"
"""The extra that brings them."""
ENGINE = "openvino"
"""The engine that runs the file."""
RESIZES = ("native",)
"""The ways of resizing in the graph; OpenVINO computes in float32 at most, where weights cannot be exact."""
NATIVE_FILTERS = tuple(MODES)
"""The filters for which OpenVINO has an operation of its own."""
PLAIN_NORMS = True  # its layer norm does not give what a gradient needs
SECTION = "vitreous"
"""Where the description is in the model's rt_info."""

REST = ("vitreous_int8", "rest")
"""Where an int8 file says in which precision the rest of it runs: `fastest` or `float32`."""


def write(
    core: Core,
    pipeline: EvalPipeline,
    *,
    outputs: Sequence[str],
    taps: Sequence[str],
    words: Mapping[str, str],
    file: Path,
) -> list[Path]:
    """Write a graph as :func:`vitreous.export.onnx_file.write` does; the file ends in ``.xml``, with a .bin beside."""
    openvino = import_openvino()

    example = torch.zeros(EXAMPLES, pipeline.channels, *pipeline.size)
    model = to_openvino(trace(core, example))
    results = model.get_results()
    for name, result in zip((*outputs, *taps), results, strict=True):
        result.input(0).get_source_output().get_tensor().set_names({name})
        result.set_friendly_name(name)
    for result in results[len(outputs) :]:
        model.remove_result(result)
    model = prepend_resize(model, pipeline)
    for name, text in words.items():
        model.set_rt_info(text, [SECTION, name])
    openvino.save_model(model, file, compress_to_fp16=False)
    return [file, file.with_suffix(".bin")]


class Runner:
    """A written file in OpenVINO, on the CPU, in float32: by default OpenVINO computes in bf16 where it is faster.

    Only an int8 file that was chosen with bf16 around its products runs so.
    """

    def __init__(self, file: Path, taps: Sequence[str] = ()) -> None:
        openvino = import_openvino()

        self.name = f"openvino {openvino.get_version().partition('-')[0]}"
        with open(file, "rb") as start:
            if b"<net" not in start.read(1000):  # other readers write to the terminal
                raise CheckpointError(f"'{file}' is damaged, or no OpenVINO IR")
        model = self._model = core().read_model(file)
        self.outputs = [output.get_any_name() for output in model.outputs]
        if taps:
            inside = {name: port for node in model.get_ops() for port in node.outputs() for name in port.get_names()}
            self.outputs = [tap for tap in taps if tap in inside]
            model = openvino.Model([inside[tap] for tap in self.outputs], model.get_parameters())
        is_free = self._model.has_rt_info(list(REST)) and self._model.get_rt_info(list(REST)).value == "fastest"
        self._graph = core().compile_model(model, "CPU", {} if is_free else {"INFERENCE_PRECISION_HINT": "f32"})

    @property
    def words(self) -> dict[str, str]:
        """The description in the file."""
        if not self._model.has_rt_info([SECTION]):
            return {}
        found = self._model.get_rt_info([SECTION]).value
        return {str(name): str(value) for name, value in found.items()}

    def __call__(self, images: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """Return all outputs for images (B, h, w, C)."""
        found = self._graph([np.ascontiguousarray(images)])
        return [np.array(found[output]) for output in self._graph.outputs]


def read_unmapped(file: Path) -> Any:
    """Read a graph whose files are written again while its weights are in use.

    The runtime that reads it computes nothing, so it may end before the process; :func:`core` must not.
    """
    openvino = import_openvino()

    reader = openvino.Core()
    reader.set_property({"ENABLE_MMAP": False})
    return reader.read_model(file)


@cache
def core() -> Any:
    """Return OpenVINO's runtime, which must live as long as the process.

    The runtime gives the thread that first uses the CPU a signal stack, and frees that stack with itself. If another
    thread frees the runtime, the next signal that Python handles in the first thread (Ctrl-C, or a data loader worker
    that exits) crashes the process. Seen with OpenVINO 2026.4.1.
    """
    openvino = import_openvino()

    return openvino.Core()
