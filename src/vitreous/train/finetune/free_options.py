"""Which options of the model fine-tuning may change, because they affect no tensor that is kept. Imports no torch."""

from __future__ import annotations

__all__ = ["FREE_FIELDS", "FREE_OF_PARTS", "free_options"]

FREE_FIELDS = ("num_classes", "init", "dropout", "patch_dropout")
"""Fields of the model itself."""

FREE_OF_PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("dropout", "proj_dropout"),
    "block": ("drop_path", "zero_residual", "checkpoint"),
    "head": ("zero",),
}
"""Options of the model's parts, by part."""


def free_options() -> set[str]:
    """Return all of them by name, such as `dropout` and `head.zero`."""
    return {*FREE_FIELDS, *(f"{part}.{option}" for part, options in FREE_OF_PARTS.items() for option in options)}
