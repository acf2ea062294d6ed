"""OpenVINO as an engine: converts a model to OpenVINO's format, and runs that on the CPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.engines.names import Precision
from vitreous.export.graph.tracing import EXAMPLES, to_openvino, trace
from vitreous.export.openvino_file import core
from vitreous.machine.openvino_package import import_openvino
from vitreous.model.vit import VisionTransformer

__all__ = ["Graph", "convert"]

_FILE = "graph.xml"  # OpenVINO writes the weights to graph.bin beside it
_IMAGES_PER_THREAD = 8  # batches of at least this many are split, so that threads need not wait for each other
_MOST_THREADS = 4  # with more threads, splitting was not measured


def convert(model: VisionTransformer, size: tuple[int, int], folder: Path) -> None:
    """Write a model's graph for images of one size and batches of any size; weights stay float32."""
    openvino = import_openvino()

    example = torch.zeros(EXAMPLES, model.config.in_channels, *size)
    program = trace(_JoinedOutputs(model).eval(), example)
    openvino.save_model(to_openvino(program), folder / _FILE, compress_to_fp16=False)


class _JoinedOutputs(nn.Module):
    """Computes logits and features by one product: the head's matrix with an identity below it.

    In bf16, OpenVINO keeps in float32 everything between an output and the products before it. If the features were an
    output of their own, that would be the whole residual stream, which takes time and which PyTorch keeps in bf16.
    """

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model, self.classes = model, model.config.num_classes
        weight, bias = torch.eye(model.config.features), torch.zeros(model.config.features)
        if isinstance(model.head, nn.Linear):
            weight, bias = torch.cat((model.head.weight, weight)), torch.cat((model.head.bias, bias))
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)  # (K + F) x F, K + F

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, K) and features (B, F) of images (B, C, H, W)."""
        both = F.linear(self.model(images, "features"), self.weight, self.bias)
        logits, features = both.split((self.classes, both.shape[1] - self.classes), 1)
        return (logits if self.classes else features * 1), features  # a graph's outputs must be distinct


class Graph:
    """A converted graph on the CPU, for both precisions; if `batch`, the usual size, is large, threads share batches.

    On a processor without bf16 OpenVINO uses float32, and the attribute `precision` says so.
    """

    name = "openvino"

    def __init__(self, folder: Path, precision: Precision, batch: int) -> None:
        threads = torch.get_num_threads()
        parts = threads if threads <= _MOST_THREADS and batch >= _IMAGES_PER_THREAD * threads else 1
        hints: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": {"bf16": "bf16", "float32": "f32"}[precision],
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "THROUGHPUT" if parts > 1 else "LATENCY",
            "NUM_STREAMS": parts,
        }
        graph = core().compile_model(folder / _FILE, "CPU", hints)
        used = graph.get_property("INFERENCE_PRECISION_HINT").to_string()
        self.precision: Precision = "bf16" if used == "bf16" else "float32"
        self._requests = [graph.create_infer_request() for _ in range(parts)]

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, K) and features (B, F) of normalised images (B, C, H, W)."""
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
