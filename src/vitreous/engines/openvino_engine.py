"""OpenVINO as an engine: converts a model to its own format, and runs that on the CPU."""

from __future__ import annotations

import math
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
_EACH = 8  # pictures from which on a thread computes some of a batch alone, which spares it waiting for the others
_MOST = 4  # threads that do; more were not measured


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
        batch: Pictures that come at a time, mostly. Large batches are cut into one part for each thread; fewer pictures
            than threads then leave some idle.
    """

    name = "openvino"

    def __init__(self, folder: Path, precision: Precision, batch: int) -> None:
        threads = torch.get_num_threads()
        parts = threads if threads <= _MOST and batch >= _EACH * threads else 1
        hints: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": {"bf16": "bf16", "float32": "f32"}[precision],
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "THROUGHPUT" if parts > 1 else "LATENCY",
            "NUM_STREAMS": parts,
        }
        graph = _core().compile_model(folder / _FILE, "CPU", hints)
        used = graph.get_property("INFERENCE_PRECISION_HINT").to_string()
        self.precision: Precision = "bf16" if used == "bf16" else "float32"
        self._requests = [graph.create_infer_request() for _ in range(parts)]

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits B x K and features B x F of normalised images B x C x H x W."""
        parts = images.contiguous().split(math.ceil(len(images) / len(self._requests)))
        requests = self._requests[: len(parts)]
        for request, part in zip(requests, parts, strict=True):
            request.start_async([part.numpy()], share_inputs=True)
        for request in requests:
            request.wait()
        logits, features = (
            torch.cat([torch.from_numpy(request.get_output_tensor(which).data) for request in requests])
            for which in (0, 1)
        )
        return logits, features


@cache
def _core() -> Any:
    """OpenVINO's runtime, one for as long as the process lives.

    It gives the thread that first uses the CPU a stack for signals, and frees that stack with itself. If another thread
    happens to free the runtime, the next signal that Python handles in the first (Ctrl-C, the end of a process that
    reads pictures) has no stack left and crashes the process. Seen with OpenVINO 2026.4.1.
    """
    import openvino

    return openvino.Core()
