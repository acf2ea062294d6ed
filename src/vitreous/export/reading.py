"""Opens an exported file for prediction. It may come from anyone: its metadata is checked as that of a model file is.

Shapes: B batch, h x w pixels of the images, C channels, H x W pixels of the model's input.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.placement import cover_size
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, VitreousError, first_line
from vitreous.export.aot_file import is_compiled
from vitreous.export.description import Described, parse
from vitreous.export.formats import AOT, FORMS, SUFFIXES, require
from vitreous.files.locating import expand_home

__all__ = ["ExportedFile", "is_exported", "open_exported", "placed"]


class ExportedFile:
    """An exported file, ready to run; :attr:`info` has classes, pipeline, temperature and thresholds."""

    def __init__(self, file: Path, form: str, runner: Any, described: Described) -> None:
        self.file, self.engine = file, FORMS[form].ENGINE
        self.info: ModelInfo = described.info
        self.precision = described.precision
        self._runner = runner

    def run(self, images: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """Return the outputs by name for images (B, h, w, C) of any size.

        Raises:
            CheckpointError: If the runtime fails.
        """
        try:
            return dict(zip(self._runner.outputs, self._runner(images), strict=True))
        except Exception as error:  # runtimes raise anything
            raise CheckpointError(
                f"'{self.file}' does not run in {self._runner.name} ({type(error).__name__}: {first_line(error)}): "
                "export the model again"
            ) from error

    def run_prepared(self, pixels: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """Return the outputs for pixels of the evaluation pipeline, (B, H, W, C), as :func:`placed` places them.

        Raises:
            CheckpointError: If the runtime fails, or the features or logits are no float32 matrix with a row per image.
        """
        found = self.run(placed(self.info.pipeline, pixels))
        for name in ("features", "logits"):
            each = found.get(name)
            if each is not None and (each.dtype != np.float32 or each.ndim != 2 or len(each) != len(pixels)):
                raise CheckpointError(
                    f"'{self.file}' gives {name} {each.dtype} {each.shape}, expected float32 ({len(pixels)}, n)"
                )
        return found


def is_exported(source: str | os.PathLike[str]) -> bool:
    """Return whether a path names an existing file with the ending of an exported one."""
    try:
        path = expand_home(source)
        return path.suffix in SUFFIXES and path.is_file()
    except (OSError, ValueError):
        return False


def open_exported(source: str | os.PathLike[str], trust_code: bool = False) -> ExportedFile:
    """Open an exported file; one with machine code only with `trust_code`, because opening it runs that code.

    Raises:
        CheckpointError: If it does not load, its metadata is missing or damaged, or it has machine code that is not
            trusted.
        MissingExtraError: If the runtime is not installed.
    """
    file = expand_home(source)
    form = SUFFIXES[file.suffix]
    if trust_code and form == "torch" and is_compiled(file):
        form = AOT  # otherwise the reader of torch files refuses code
    require(form, f"'{file}'")
    try:
        runner = FORMS[form].Runner(file)
        words = runner.words
    except VitreousError:
        raise
    except Exception as error:  # runtimes raise anything
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise CheckpointError(f"'{file}' cannot be loaded, it is damaged or no {form} file ({reason})") from error
    described = parse(words, file)
    if tuple(runner.outputs) != described.outputs:
        raise CheckpointError(f"'{file}' has outputs {list(runner.outputs)}, its metadata names {described.outputs}")
    return ExportedFile(file, form, runner, described)


def placed(pipeline: EvalPipeline, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return images (B, h, w, C) in which a graph finds these pixels (B, H, W, C) without resizing.

    The graph cuts exactly them. So images of any size share a batch, memory is bounded, and the result is that for the
    whole image wherever the resize is exact.
    """
    if pipeline.config.fit != "crop" or pipeline.config.crop_ratio == 1:
        return pixels
    height, width = cover_size(pipeline.size, pipeline.config)
    at = pipeline.placement(height, width)
    canvas = np.zeros((len(pixels), height, width, pixels.shape[3]), np.uint8)
    canvas[:, -at.top : -at.top + pixels.shape[1], -at.left : -at.left + pixels.shape[2]] = pixels
    return canvas
