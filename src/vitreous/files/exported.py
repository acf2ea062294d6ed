"""The endings of exported files. The writers and readers are in :mod:`vitreous.export`; imports nothing."""

from __future__ import annotations

__all__ = ["EXPORTED"]

EXPORTED = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2"}
"""Ending of a file's name by the format of `vitreous export`."""
