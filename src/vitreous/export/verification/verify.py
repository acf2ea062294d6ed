"""Verifies a written file: its description, its resize, its outputs in batches of all sizes, and from image files.

The first comparison that fails raises; the message names the images, the output, and the first layer that differs.
Shapes: B batch, h x w pixels of the images, C channels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.data.images.reading import read_image
from vitreous.errors import CheckpointError, first_line
from vitreous.export.example import reader
from vitreous.export.graph.core import CLASS_MAP, PIXELS
from vitreous.export.verification.bounds import BOUNDS, Bounds, bounds_of
from vitreous.export.verification.layers import cause, first_difference, pixel_difference, relative_differences
from vitreous.export.verification.reference import Expected, Reference
from vitreous.export.verification.samples import Sample, files, samples

__all__ = ["OpenFile", "Verified", "verify"]

OpenFile = Callable[..., Any]
"""Opens a written file: called with its path, and with names of tensors inside to get these instead of the outputs."""

Array = npt.NDArray[Any]
_KEPT = "nothing was kept"


@dataclass
class Verified:
    """What a verified file was compared on."""

    by: str  # the runtime and its version
    images: int = 0
    differences: dict[str, float] = field(default_factory=dict)  # largest by output; scaled as `Bounds` says
    pixels: float = 0.0  # largest share of resized pixels that differ from Pillow's, by one level


def verify(open_file: OpenFile, file: Path, reference: Reference, words: Mapping[str, str], precision: str) -> Verified:
    """Run a written file and compare it with PyTorch in float32.

    Args:
        open_file: Opens files of this format.
        file: The written file.
        reference: The model that it was made from.
        words: The description that it must have.
        precision: A key of `BOUNDS`.

    Raises:
        CheckpointError: If the file does not run, or differs.
    """
    runner = _opened(open_file, file)
    check = _Comparison(open_file, file, runner, reference, BOUNDS[precision], words["resize"], Verified(runner.name))
    if runner.words != dict(words):
        wrong = sorted(name for name in {*words, *runner.words} if words.get(name) != runner.words.get(name))
        raise CheckpointError(f"the written file has another description than the model ({', '.join(wrong)}); {_KEPT}")
    if list(runner.outputs) != reference.outputs:
        raise CheckpointError(f"the written file has outputs {runner.outputs}, expected {reference.outputs}; {_KEPT}")
    batches = list(samples(reference.info.pipeline))
    for number, sample in enumerate(batches):
        check.compare(sample, is_resized=number > 0)
    check.compare_pixels(batches)
    check.compare_files()
    return check.verified


def _opened(open_file: OpenFile, file: Path, taps: Sequence[str] = ()) -> Any:
    try:
        return open_file(file, taps)
    except Exception as error:  # runtimes raise anything
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise CheckpointError(f"the written file does not run: {reason}; {_KEPT}") from error


@dataclass
class _Comparison:
    """A written file, open, beside what its outputs should be."""

    open_file: OpenFile
    file: Path
    runner: Any
    reference: Reference
    bounds: Bounds
    resize: str
    verified: Verified

    def compare(self, sample: Sample, is_resized: bool) -> None:
        """Compare all outputs on a batch; `is_resized` unless its images need no resize."""
        margin = bounds_of(self.bounds, "probabilities", is_resized, self.resize)
        expected = self.reference.expected(sample.images, margin)
        found = self._run(sample)
        which = np.arange(sample.batch) % len(sample.images)
        for name, values in expected.outputs.items():
            bounds = expected.bounds(name, bounds_of(self.bounds, name, is_resized, self.resize))
            repeated = _repeated(expected, name, which)
            problem = self._problem(name, found[name], values[which], repeated, bounds[which])
            if problem:
                layer = self._first_difference(sample, name)
                raise CheckpointError(
                    f"the written file, run by {self.verified.by}, differs from PyTorch on {sample.name}: {problem}; "
                    f"{layer}; {_KEPT}"
                )
        self.verified.images += sample.batch

    def compare_pixels(self, batches: Sequence[Sample]) -> None:
        """Compare the resized pixels of all samples with Pillow's, where the file names its pixels."""
        runner = _opened(self.open_file, self.file, (PIXELS,))
        if runner.outputs != [PIXELS]:
            raise CheckpointError(f"the written file has lost the name of its resized pixels; {_KEPT}")
        for sample in batches:
            expected = self.reference.pixels(sample.images)
            (pixels,) = runner(sample.images)
            if problem := pixel_difference(pixels, expected, self.resize):
                raise CheckpointError(
                    f"the written file, run by {self.verified.by}, resizes {sample.name} otherwise than Pillow: "
                    f"{problem}; {_KEPT}"
                )
            self.verified.pixels = max(self.verified.pixels, float((pixels != expected).mean()))

    def compare_files(self) -> None:
        """Compare predictions from image files, read as the example in the metadata reads them."""
        pipeline = self.reference.info.pipeline
        read, grey = reader(pipeline, "exact"), pipeline.channels == 1
        with tempfile.TemporaryDirectory() as folder:
            for path in files(Path(folder)):
                ours = np.asarray(read_image(path).convert("L"))[:, :, None] if grey else np.asarray(read_image(path))
                theirs = read(str(path))
                if theirs.shape != ours.shape or (theirs != ours).any():
                    raise CheckpointError(f"the example in the metadata reads {path.name} otherwise; {_KEPT}")
                self.compare(Sample(f"the file {path.name}", theirs[None], 1), is_resized=True)
                if self.resize != "exact":  # the example resizes by itself
                    resized = reader(pipeline, self.resize)(str(path))
                    self.compare(Sample(f"the file {path.name}, resized by Pillow", resized[None], 1), is_resized=False)

    def _run(self, sample: Sample) -> dict[str, Array]:
        try:
            return dict(zip(self.runner.outputs, self.runner(sample.repeated()), strict=True))
        except Exception as error:  # runtimes raise anything
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise CheckpointError(
                f"the written file does not run on {sample.name}, in {self.verified.by}: {reason}; {_KEPT}"
            ) from error

    def _problem(self, name: str, found: Array, expected: Array, close: Array | None, bounds: Array) -> str:
        """Return what is wrong with an output, or an empty string; `close` marks decisions not to compare.

        Bounds are by image, (B,).
        """
        if found.shape != expected.shape or found.dtype != expected.dtype:
            shapes = f"{found.dtype} {found.shape}, expected {expected.dtype} {expected.shape}"
            return f"{name} is {shapes}"
        if name == CLASS_MAP:
            assert close is not None
            found, expected, bounds = found[~close], expected[~close], bounds[~close]
            if not len(found):
                return ""
        elif close is not None:
            wrong = int(((found != expected) & ~close).sum())
            return f"{wrong} of {found.size} values of {name} differ" if wrong else ""
        differences = relative_differences(found, expected)
        if name == "probabilities":
            differences = abs(found - expected).max(axis=1)
        self.verified.differences[name] = max(self.verified.differences.get(name, 0.0), float(differences.max()))
        if not (differences <= bounds).all():
            worst = int((differences / bounds).argmax())
            return f"{name} by {differences[worst]:.1e}, the bound is {bounds[worst]:.2g}"
        if name == "probabilities" and _other_classes(found, expected, float(bounds[0])):
            return "another class is the most probable"
        return ""

    def _first_difference(self, sample: Sample, output: str) -> str:
        layer = first_difference(
            self.open_file,
            self.file,
            self.reference,
            images=sample.images,
            bound=self.bounds.layer,
            resize=self.resize,
        )
        return f"{layer} ({cause(output)})" if layer.startswith("no layer") else layer


def _repeated(expected: Expected, name: str, which: Array) -> Array | None:
    close = expected.close.get(name)
    return None if close is None else close[which]


def _other_classes(found: Array, expected: Array, bound: float) -> bool:
    """Return whether another class wins in any row (B, K), and not by a difference within the bounds of both."""
    rows = np.arange(len(found))
    winner = found.argmax(axis=1)
    return bool((expected.max(axis=1) - expected[rows, winner] > 2 * bound).any())
