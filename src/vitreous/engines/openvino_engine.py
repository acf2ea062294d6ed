"""OpenVINO as an engine: converts a model to its own format, and runs that on the CPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.engines.base import DynamicBatch, Outputs
from vitreous.engines.names import Precision
from vitreous.model.vit import VisionTransformer

__all__ = ["PACKAGES", "Graph", "convert"]

_FILE = "graph.xml"  # its weights go into graph.bin beside it
PACKAGES = ("openvino",)


def convert(model: VisionTransformer, size: tuple[int, int], folder: Path) -> None:
    """Write a model's graph for pictures of one size and any number of them; weights stay float32."""
    import openvino

    traced = DynamicBatch(model, size)
    with torch.no_grad():
        program = torch.export.export(Outputs(model).eval(), (traced.images,), dynamic_shapes=traced.shapes)
    openvino.save_model(openvino.convert_model(program), folder / _FILE, compress_to_fp16=False)


class Graph:
    """A converted graph on the CPU.

    Args:
        folder: Where :func:`convert` wrote it.
        precision: What it is to multiply in; the same graph serves all. A processor without bf16 is given float32 by
            OpenVINO, which the attribute of this name then says.
    """

    name = "openvino"

    def __init__(self, folder: Path, precision: Precision) -> None:
        hints: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": {"bf16": "bf16", "float32": "f32"}[precision],
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",  # all threads on one batch
        }
        self._graph = _core().compile_model(folder / _FILE, "CPU", hints)
        used = self._graph.get_property("INFERENCE_PRECISION_HINT").to_string()
        self.precision: Precision = "bf16" if used == "bf16" else "float32"

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits B x K and features B x F of normalised images B x C x H x W."""
        found = self._graph([images.contiguous().numpy()])
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])


@cache
def _core() -> Any:
    """OpenVINO's runtime, one for as long as the process lives.

    It gives the thread that first uses the CPU a stack for signals, and frees that stack with itself. If another thread
    happens to free the runtime, the next signal that Python handles in the first (Ctrl-C, the end of a process that
    reads pictures) has no stack left and crashes the process. Seen with OpenVINO 2026.4.1.
    """
    import openvino

    return openvino.Core()
