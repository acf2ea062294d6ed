"""Exports a model: open, trace, write to a temporary folder, run the written file, compare with PyTorch, install."""

from __future__ import annotations

import importlib.util
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from vitreous.checkpoint.conversion.destination import Destination
from vitreous.checkpoint.opening import THRESHOLDS_OMITTED, OpenedCheckpoint, OpenOptions, open_with_details
from vitreous.data.images.reading import read_image
from vitreous.errors import CheckpointError, MissingExtraError, OutputError, first_line
from vitreous.export import onnx_file, torch_file
from vitreous.export.whole import WholeModel, describe, expected_outputs, output_names

__all__ = ["BOUND", "FORMS", "Export", "Form", "export"]

Form = Literal["onnx", "torch"]
FORMS: dict[str, Any] = {"onnx": onnx_file, "torch": torch_file}
"""Formats by name; each module writes files and runs them."""

BOUND = 3e-5
"""Largest accepted difference from PyTorch in float32: absolute for probabilities, for logits and features relative to
the largest of the image."""


@dataclass(frozen=True)
class Export:
    """The result of an export."""

    files: list[Path]
    by: str  # the runtime that verified them
    differences: dict[str, float]  # largest difference from PyTorch in float32, by output; see ``BOUND``

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "files": [str(file) for file in self.files]}


def export(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    form: Form,
    options: OpenOptions | None = None,
    *,
    overwrite: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Export:
    """Export a model (file, folder or hub id) to a file that runs without this package, and verify its outputs.

    The destination is a file that ends in ``.onnx`` or ``.pt2`` (for torch.export), or a folder. An error leaves it
    untouched. `tell` gets each line for the user as soon as it is known.
    """
    missing = [name for name in FORMS[form].PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        extra = FORMS[form].EXTRA
        raise MissingExtraError(f"--to {form} needs {' and '.join(missing)}: pip install 'vitreous[{extra}]'")
    target = Destination(form, destination, source, overwrite)
    opened = open_with_details(source, options or OpenOptions())
    for reason in opened.reasons:
        tell(reason)
    if opened.info.abstention or opened.info.conformal:
        tell(THRESHOLDS_OMITTED)
    with target.temporary() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # exporters warn about their own internals
        files = _write(opened, form, file)
        by, differences = _verify(opened, form, file)
        summary = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
        tell(f"run by {by}, on photographs and noise, together and alone: largest difference {summary}")
        return Export(target.install(files), by, differences)


def _write(opened: OpenedCheckpoint, form: str, file: Path) -> list[Path]:
    """Trace the model for its image size and any batch size, and write it."""
    model, info = opened.model, opened.info
    images = torch.zeros(2, info.pipeline.channels, *info.pipeline.size, dtype=torch.uint8)  # B = 1 would be fixed
    expected_outputs(model, info, images)  # caches position tables, so that their computation is not traced
    try:
        files: list[Path] = FORMS[form].write(
            WholeModel(model, info).eval(), images, output_names(model), describe(model, info), file
        )
    except OSError:
        raise
    except Exception as error:  # exporters raise errors of any class
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise OutputError(f"{form} cannot express this model: {reason}; nothing was kept") from error
    return files


def _verify(opened: OpenedCheckpoint, form: str, file: Path) -> tuple[str, dict[str, float]]:
    """Run the written file on a batch and on its first image alone, and compare with PyTorch in float32."""
    model, info = opened.model, opened.info
    images = _images(opened)
    batches = [images, images[:1]]
    try:
        by, description, outputs = FORMS[form].read(file, batches)
    except OSError:
        raise
    except Exception as error:  # runtimes raise errors of any class
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise CheckpointError(f"the written file does not run: {reason}; nothing was kept") from error
    if description != describe(model, info):
        raise CheckpointError("the written file has lost its description; nothing was kept")
    differences: dict[str, float] = {}
    for batch, results in zip(batches, outputs, strict=True):
        for name, result, expected in zip(
            output_names(model), results, expected_outputs(model, info, batch), strict=True
        ):
            differences[name] = max(differences.get(name, 0.0), _difference(name, result, expected))
    wrong = [f"{name} {value:.1e}" for name, value in differences.items() if not value <= BOUND]
    if wrong:
        raise CheckpointError(
            f"the written file gives other numbers, run by {by}: {', '.join(wrong)}, above {BOUND:g}; nothing was kept"
        )
    return by, differences


def _images(opened: OpenedCheckpoint) -> Tensor:
    """Return two photographs as the pipeline prepares them and two images of noise: 4 x C x H x W, uint8."""
    pipeline = opened.info.pipeline
    photographs = [pipeline.pixels(read_image(photo)) for photo in load_sample_images().images]
    noise = np.random.default_rng().integers(0, 256, (2, *photographs[0].shape), dtype=np.uint8)
    return torch.from_numpy(np.concatenate((np.stack(photographs), noise))).permute(0, 3, 1, 2).contiguous()


def _difference(name: str, result: Tensor, expected: Tensor) -> float:
    """Return the largest difference, scaled as ``BOUND`` says; infinity if shapes or dtypes differ or any is NaN."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return float("inf")
    scale = 1.0 if name == "probabilities" else expected.abs().amax(1, keepdim=True).clamp_min(1e-6)
    difference = float(((result - expected).abs() / scale).max())
    return float("inf") if math.isnan(difference) else difference
