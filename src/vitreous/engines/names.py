"""The names of engines and precisions. Imports no torch, so that help texts load at once."""

from __future__ import annotations

from typing import Literal

__all__ = ["EngineName", "Precision", "PrecisionName"]

EngineName = Literal["auto", "torch", "openvino", "onnxruntime"]
"""An engine, or ``auto``: the fastest on this machine."""
Precision = Literal["bf16", "float32"]
"""The precision in which an engine computes."""
PrecisionName = Literal["auto", "bf16", "float32"]
"""A precision, or ``auto``: bf16 where the processor has it and the engine is faster with it."""
