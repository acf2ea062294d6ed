"""ONNX Runtime as an engine: exports a model to ONNX, and runs that on the CPU in float32."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vitreous.engines.base import Outputs
from vitreous.engines.names import Precision
from vitreous.errors import ConfigError
from vitreous.export.graph.tracing import EXAMPLES, to_onnx, trace
from vitreous.model.vit import VisionTransformer

__all__ = ["Graph", "convert"]

_FILE = "graph.onnx"


def convert(model: VisionTransformer, size: tuple[int, int], folder: Path) -> None:
    """Write a model's graph for images of one size and batches of any size, in float32."""
    example = torch.zeros(EXAMPLES, model.config.in_channels, *size)
    program = trace(Outputs(model).eval(), example)
    to_onnx(program, ["images"], ["logits", "features"]).save(folder / _FILE)


class Graph:
    """An exported graph on the CPU, whose kernels have float32 only; `batch` is unused, other engines need it."""

    name = "onnxruntime"

    def __init__(self, folder: Path, precision: Precision, batch: int) -> None:
        import onnxruntime

        onnxruntime.disable_telemetry_events()
        if precision != "float32":
            raise ConfigError(f"engine onnxruntime has no {precision} on the CPU: use --precision float32")
        self.precision = precision
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors only: it warns of a missing GPU and the like
        self._session = onnxruntime.InferenceSession(folder / _FILE, options, providers=["CPUExecutionProvider"])

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, K) and features (B, F) of normalised images (B, C, H, W)."""
        logits, features = self._session.run(None, {"images": images.contiguous().numpy()})
        return torch.from_numpy(logits), torch.from_numpy(features)
