"""The small backbone that the package contains, `backbone.safetensors`, for training without a network.

The recipe `backbone` trained it; `benchmarks/training/backbone.py` built its images and packed its weights.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["IMAGE_SIZE", "LICENCE", "SHIPPED", "shipped_file"]

SHIPPED = "shipped"
"""Its name, as `--from` takes it. An existing file of that name takes precedence."""

IMAGE_SIZE = 96
"""Height and width in pixels to fine-tune it at: better than the 64 of its training (docs/explanation/start.md)."""

LICENCE = "ImageNet-research"
"""A key of :data:`vitreous.checkpoint.pretrained.LICENCES`; the file's provenance has it too."""


def shipped_file() -> Path:
    """Return the path of the model file."""
    return Path(__file__).with_name("backbone.safetensors")
