"""Exporting a model: open, trace, write aside, run what was written, compare, and only then put it in its place."""

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

from vitreous.checkpoint.conversion.placing import Destination
from vitreous.checkpoint.opening import Opened, OpenOptions, open_fully
from vitreous.data.images.reading import read_picture
from vitreous.errors import CheckpointError, MissingExtraError, OutputError
from vitreous.export import onnx_file, torch_file
from vitreous.export.whole import WholeModel, describe, expected, output_names

__all__ = ["BOUND", "FORMS", "Exported", "Form", "export"]

Form = Literal["onnx", "torch"]
FORMS: dict[str, Any] = {"onnx": onnx_file, "torch": torch_file}
"""Forms by name, each a module that writes a file and runs it."""

BOUND = 3e-5
"""Largest difference from PyTorch in float32 that a file may have: of two probabilities, and of two logits or features
as a share of the image's largest."""


@dataclass(frozen=True)
class Exported:
    """What was done.

    Args:
        files: What was written.
        by: Who ran it.
        differences: The largest difference from PyTorch in float32, by the name of the output.
    """

    files: list[Path]
    by: str
    differences: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """The proof as plain JSON values."""
        return {**asdict(self), "files": [str(file) for file in self.files]}


def export(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    form: Form,
    options: OpenOptions | None = None,
    *,
    overwrite: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Exported:
    """Write a model of any kind as a file that runs without this package, and prove it.

    Args:
        source: A file, a folder or a hub id of any family.
        destination: A file that ends in ``.onnx`` or ``.pt2``, or a folder.
        form: `onnx`, or `torch`: a package of torch.export.
        options: What may be changed on the way, such as the image size.
        overwrite: Replace what lies at the destination.
        tell: Is given a line for people as soon as it is known.

    Raises:
        CheckpointError: If the source cannot be used, or what was written does not give the model's outputs. Nothing is
            left at the destination then.
        MissingExtraError: If packages are missing that write or run the form.
        UsageError: If the destination exists, is read by this conversion, or is a folder with other files in it.
        OutputError: If the destination cannot be written.
    """
    _require(form)
    place = Destination(form, destination, source, overwrite)
    opened = open_fully(source, options or OpenOptions())
    for reason in opened.reasons:
        tell(reason)
    with place.aside() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of exporters, about their own insides
        files = _write(opened, form, file)
        by, differences = _prove(opened, form, file)
        said = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
        tell(f"run by {by}, on photographs and noise, together and alone: largest difference {said}")
        return Exported(place.install(files), by, differences)


def _require(form: str) -> None:
    missing = [name for name in FORMS[form].PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        extra = FORMS[form].EXTRA
        raise MissingExtraError(f"--to {form} needs {' and '.join(missing)}: pip install 'vitreous[{extra}]'")


def _write(opened: Opened, form: str, file: Path) -> list[Path]:
    """Trace the model for images of its size and any number of them, and write it."""
    model, info = opened.model, opened.info
    traced = torch.zeros(2, info.pipeline.channels, *info.pipeline.size, dtype=torch.uint8)  # 1 would be a constant
    expected(model, info, traced)  # tables of positions are made by a first pass, not while the graph is traced
    try:
        written: list[Path] = FORMS[form].write(
            WholeModel(model, info).eval(), traced, output_names(model), describe(model, info), file
        )
    except OSError:
        raise
    except Exception as error:  # exporters raise anything
        raise OutputError(f"{form} does not take this model: {_in_short(error)}; nothing was kept") from error
    return written


def _prove(opened: Opened, form: str, file: Path) -> tuple[str, dict[str, float]]:
    """Run what was written on several images, together and the first alone, and compare with PyTorch in float32."""
    model, info = opened.model, opened.info
    images = _images(opened)
    batches = [images, images[:1]]
    try:
        by, words, outputs = FORMS[form].read(file, batches)
    except OSError:
        raise
    except Exception as error:  # whoever runs it raises anything
        raise CheckpointError(f"what was written does not run: {_in_short(error)}; nothing was kept") from error
    if words != describe(model, info):
        raise CheckpointError("what was written does not say what it is; nothing was kept")
    differences: dict[str, float] = {}
    for batch, found in zip(batches, outputs, strict=True):
        right = expected(model, info, batch)
        for name, own, other in zip(output_names(model), found, right, strict=True):
            differences[name] = max(differences.get(name, 0.0), _apart(name, own, other))
    wrong = [f"{name} {value:.1e}" for name, value in differences.items() if not value <= BOUND]
    if wrong:
        raise CheckpointError(
            f"what was written gives other numbers, run by {by}: {', '.join(wrong)}, above {BOUND:g}; nothing was kept"
        )
    return by, differences


def _images(opened: Opened) -> Tensor:
    """Two photographs as the pipeline prepares them, and two images of noise: 4 x C x H x W, uint8."""
    pipeline = opened.info.pipeline
    photographs = [pipeline.pixels(read_picture(photo)) for photo in load_sample_images().images]
    noise = np.random.default_rng().integers(0, 256, (2, *photographs[0].shape), dtype=np.uint8)
    return torch.from_numpy(np.concatenate((np.stack(photographs), noise))).permute(0, 3, 1, 2).contiguous()


def _apart(name: str, own: Tensor, right: Tensor) -> float:
    """The largest difference in an image, of logits and features as a share of its largest."""
    if own.shape != right.shape or own.dtype != right.dtype:
        return float("inf")
    largest = 1.0 if name == "probabilities" else right.abs().amax(1, keepdim=True).clamp_min(1e-6)
    apart = float(((own - right).abs() / largest).max())
    return float("inf") if math.isnan(apart) else apart  # what is no number is no agreement


def _in_short(error: Exception) -> str:
    """An error of somebody's library in a few words."""
    lines = str(error).strip().splitlines() or ["no reason given"]
    return f"{type(error).__name__}: {lines[0][:160]}"
