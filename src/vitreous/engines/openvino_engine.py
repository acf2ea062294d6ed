"""OpenVINO as an engine: converts a model to its own format, and runs that on the CPU."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.engines.base import DynamicBatch
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
        outputs = _OfOneProduct(model).eval()
        program = torch.export.export(outputs, (traced.images,), dynamic_shapes=traced.shapes)
    openvino.save_model(openvino.convert_model(program), folder / _FILE, compress_to_fp16=False)


class _OfOneProduct(nn.Module):
    """A model from images to logits and features, both by the head's product, with an identity below its matrix.

    In bf16 OpenVINO keeps in float32 all that lies between an output and the products before it. For features that is
    the whole residual stream: each sum and its conversions, a tenth of the time. PyTorch's bf16 has it in bf16 too.
    """

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model, self.classes = model, model.config.num_classes
        weight, bias = torch.eye(model.config.features), torch.zeros(model.config.features)
        if isinstance(model.head, nn.Linear):
            weight, bias = torch.cat((model.head.weight, weight)), torch.cat((model.head.bias, bias))
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits B x K and features B x F of images B x C x H x W."""
        both = F.linear(self.model.pooled(images), self.weight, self.bias)
        logits, features = both.split((self.classes, both.shape[1] - self.classes), 1)
        return (logits if self.classes else features * 1), features  # OpenVINO wants two outputs to differ


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
