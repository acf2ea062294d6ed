"""The names of engines and precisions. Imports no torch, so that help texts load at once."""

from __future__ import annotations

from typing import Literal

__all__ = ["EngineName", "Precision", "PrecisionName"]

EngineName = Literal["auto", "torch", "openvino", "onnxruntime"]
Precision = Literal["bf16", "float32"]
PrecisionName = Literal["auto", "bf16", "float32"]
