"""Measures a classifier on corrupted and shifted images, for the report of `vitreous evaluate --robustness`.

Images are changed at the model's input size, after resizing and cutting, as in ImageNet-C. Smaller ones than the
corruptions need are enlarged by a whole factor before, and averaged over its squares after.

B images, C channels, H x W pixels of the model's input, f the factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitreous.data.corruptions import CORRUPTIONS
from vitreous.data.corruptions.apply import MIN_SIDE, corrupt, shift
from vitreous.data.sources.opening import Split
from vitreous.evaluate.multilabel.metrics import mean_average_precision
from vitreous.evaluate.scoring.robustness import mean_corruption_error
from vitreous.predictor import Classifier
from vitreous.report.evaluation.robustness import RobustnessResult, ShiftCurve

__all__ = ["DEFAULT_IMAGES", "measure_robustness"]

DEFAULT_IMAGES = 100
"""Images that are changed unless the user says how many: each is classified about 110 times."""

_SEVERITIES = (1, 2, 3, 4, 5)
_SHIFTS = {
    "scale": ("factor", 1.0, (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)),
    "rotation": ("degrees", 0.0, (-90.0, -45.0, -20.0, -10.0, 0.0, 10.0, 20.0, 45.0, 90.0)),
    "brightness": ("factor", 1.0, (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)),
    "patch_shuffle_fraction": ("share of an 8 x 8 grid", 0.0, (0.0, 0.25, 0.5, 0.75, 1.0)),
}

Progress = Callable[[int, int], None]
Change = Callable[[Tensor, list[int]], Tensor]
"""Changes uint8 images (B, C, H, W) at the given positions of the data."""


@dataclass(frozen=True)
class _Measured:
    """Shares of wrong predictions of one classifier, or 1 - mAP of several labels."""

    side: int
    clean: float
    corruptions: dict[str, list[float]]
    shifts: dict[str, ShiftCurve]


def measure_robustness(
    classifier: Classifier,
    split: Split,
    labels: Tensor,
    *,
    images: int,
    batch_size: int,
    other: tuple[str, Classifier, Tensor] | None = None,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> RobustnessResult:
    """Score a classifier on changed copies of up to `images` images of a split, drawn by `seed`.

    `labels` (n,) are those of the whole split, or (n, K) of 0 and 1, whose error is 1 - mAP. `other` is the name, the
    classifier and the labels of a baseline, to whose errors the corruption errors are relative. Test-time augmentation
    is not used.
    """
    drawn = np.sort(np.random.default_rng(seed).permutation(len(split))[:images])
    share = 1 if other is None else 2

    def advance(offset: int) -> Progress:
        return lambda done, total: progress(offset * total + done, share * total)

    own = _measure(classifier, split, labels, drawn, batch_size=batch_size, seed=seed, progress=advance(0))
    baseline: Mapping[str, list[float]] | None = None
    clean = None
    if other is not None:
        _, second, second_labels = other
        found = _measure(
            second, split, second_labels, drawn, batch_size=batch_size, seed=seed, progress=advance(1), shifts=False
        )
        if all(sum(errors) for errors in found.corruptions.values()):  # a ratio to no error is not defined
            baseline, clean = found.corruptions, found.clean
    summary = mean_corruption_error(
        own.corruptions, clean_error=own.clean, baseline=baseline, baseline_clean_error=clean
    )
    name = other[0] if other is not None and baseline is not None else None
    return RobustnessResult(len(drawn), seed, own.side, summary, own.shifts, name)


def _measure(
    classifier: Classifier,
    split: Split,
    labels: Tensor,
    drawn: npt.NDArray[np.int64],
    *,
    batch_size: int,
    seed: int,
    progress: Progress,
    shifts: bool = True,
) -> _Measured:
    """Score the images at the positions `drawn` (n,), and with `shifts` along the shifts too."""
    indices = drawn.tolist()
    factor = math.ceil(MIN_SIDE / min(classifier.pipeline.size))
    pixels = np.stack([classifier.pipeline.pixels(split.image(n)) for n in indices])  # (n, H, W, C)
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    side, true = min(images.shape[2:]), labels[torch.from_numpy(drawn)]
    sides = tuple(sorted({float(max(1, side // part)) for part in (16, 8, 4, 2, 1)}))
    curves = _SHIFTS | {"patch_shuffle": ("pixels per side", float(side), sides)} if shifts else {}
    total = 1 + len(CORRUPTIONS) * len(_SEVERITIES) + sum(len(values) for _, _, values in curves.values())
    engine, done = classifier.prepare(total * len(indices), batch_size), 0

    def error(change: Change) -> float:
        nonlocal done
        found = []
        for part in _parts(len(indices), batch_size):
            batch = _reduced(change(images[part], indices[part]), factor).to(classifier.device)
            logits, _ = engine(classifier.pipeline.normalise(batch))
            found.append(logits.float().cpu())
        done += 1
        progress(done, total)
        return _error(torch.cat(found), true)

    with torch.inference_mode():
        clean = error(lambda batch, at: batch)
        corruptions = {name: [error(_corruption(name, s, seed)) for s in _SEVERITIES] for name in CORRUPTIONS}
        found = {
            name: ShiftCurve(unit, unchanged, values, tuple(1 - error(_shift(name, value, seed)) for value in values))
            for name, (unit, unchanged, values) in curves.items()
        }
    return _Measured(side, clean, corruptions, found)


def _error(logits: Tensor, true: Tensor) -> float:
    """Return the share of wrong predictions of logits (n, K), or 1 - mAP where labels are (n, K)."""
    if true.ndim == 2:
        return 1 - mean_average_precision(logits.numpy(), true.numpy())
    return int((logits.argmax(dim=1) != true).sum()) / len(true)


def _corruption(name: str, severity: int, seed: int) -> Change:
    return lambda batch, at: corrupt(batch, name, severity, indices=at, seed=seed)


def _shift(name: str, value: float, seed: int) -> Change:
    return lambda batch, at: shift(batch, name, value, indices=at, seed=seed)


def _parts(n: int, size: int) -> Iterator[slice]:
    yield from (slice(start, start + size) for start in range(0, n, size))


def _reduced(images: Tensor, factor: int) -> Tensor:
    """Average squares of f x f pixels: uint8 (B, C, fH, fW) to (B, C, H, W)."""
    if factor == 1:
        return images
    return torch.nn.functional.avg_pool2d(images.float(), factor).round().to(torch.uint8)
