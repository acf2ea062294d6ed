"""Chooses a row of the table of pretrained models for a machine, a budget, and a set of images: a pure function."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vitreous.checkpoint.pretrained import LICENCES, Row
from vitreous.errors import ConfigError
from vitreous.model.config import Size2d, pair
from vitreous.train.config import AUTO
from vitreous.train.finetune.initialisation import in_pixels

__all__ = ["Choice", "Situation", "choose", "is_eligible"]

_SMALL = 112  # pixels; larger inputs only enlarge images of this size
_UNASKED = 30 * 60.0  # seconds that a run may take if nobody gave a budget
_SHARE = 0.8  # of a budget, for download and training: the rest is start-up and the report
_SHARE_OF_FEATURES = 0.5  # of a budget, where heads on features come first: the rest is heads and weights below them
_DOWNLOAD = 10e6  # bytes per second, assumed
_BYTES = 16  # per parameter: weights, gradients and two moments of AdamW; without these, four copies of the weights
_USABLE = 0.7  # of the free memory, for these: the rest is images, activations and the system
_PASSES = {"full": 3.0, "lora": 3.0, "linear": 1.0, AUTO: 1.0}  # forward passes that a training step of an image costs
_LAST = 1.5  # of `last-K`
_FORWARD = 0.5  # forward passes beside each training step: validation in each epoch, the first probe


@dataclass(frozen=True)
class Situation:
    """What a choice depends on.

    Args:
        rate: Speed of training in FLOPs per second.
        memory: Free memory in bytes; None if it is not known.
        budget: Seconds for the whole command; None if nobody set any.
        images: Training images, each counted as often as the run sees it: with a budget, in the fewest useful epochs;
            once, where heads on frozen features come first.
        side: The longer side of the median image in pixels.
        mode: What is trained, as in `TuneConfig.mode`.
        image_size: Height and width in pixels that the user asked for; None leaves them to the choice.
        patch_size: Of the patches, likewise; None keeps those of each row.
    """

    rate: float
    memory: int | None
    budget: float | None
    images: int
    side: int
    mode: str = "full"
    image_size: Size2d | None = None
    patch_size: Size2d | None = None


@dataclass(frozen=True)
class Choice:
    """A row, the size to train it at, and why."""

    row: Row
    image_size: Size2d
    seconds: float  # of training, estimated
    fits: bool
    reason: str


def is_eligible(row: Row) -> bool:
    """Return whether a row may be chosen unasked: a permissive licence, and no gate."""
    return LICENCES[row.licence].permissive and not row.gated


def choose(rows: Sequence[Row], situation: Situation, cached: Collection[Row] = ()) -> Choice:
    """Return the most accurate row that fits in time and memory; if none does, the cheapest one.

    Download and training have to fit in time; rows that are `cached` need no download. In the mode `auto`, computing
    the features of all images takes the place of training: which weights below the head are trained is decided later,
    from measured steps.

    Only rows are considered for which :func:`is_eligible` holds, and whose patches tile the image size, if the user set
    one. Accuracy is that of a linear probe, which shows what few images can gain from a model; rows without one come
    last.

    Raises:
        ConfigError: If no eligible row has patches that tile the image size.
    """
    candidates, untiled = _tiling(rows, situation)
    share = _SHARE_OF_FEATURES if situation.mode == AUTO else _SHARE
    limit = _UNASKED if situation.budget is None else share * situation.budget
    sizes = {row.name: _image_size(row, situation) for row in candidates}
    seconds = {
        row.name: _seconds(row, sizes[row.name], situation) + (0.0 if row in cached else row.download_bytes / _DOWNLOAD)
        for row in candidates
    }
    ordered = sorted(candidates, key=lambda row: (-(row.linear or 0.0), seconds[row.name]))
    for row in ordered:
        if seconds[row.name] <= limit and _has_memory(row, situation):
            better = [other.name for other in ordered if (other.linear or 0.0) > (row.linear or 0.0)]
            reason = _reason(row, sizes[row.name], situation, better) + untiled
            return Choice(row, sizes[row.name], seconds[row.name], True, reason)
    row = min(candidates, key=lambda row: seconds[row.name])
    reason = f"the cheapest: none fits the time and the memory{untiled}"
    return Choice(row, sizes[row.name], seconds[row.name], False, reason)


def _tiling(rows: Sequence[Row], situation: Situation) -> tuple[list[Row], str]:
    """Return the rows that may be chosen, and a clause on those whose patches do not tile the size asked for."""
    eligible = [row for row in rows if is_eligible(row)]
    if situation.image_size is None:
        return eligible, ""
    size = pair(situation.image_size)
    fit = [row for row in eligible if not any(n % p for n, p in zip(size, _patch(row, situation), strict=True))]
    others = sorted({_patch(row, situation) for row in eligible if row not in fit})
    asked, patches = in_pixels(size), " or ".join(map(in_pixels, others))
    if not fit:
        raise ConfigError(
            f"image_size is {asked}: patches of {patches} px, those of the models to choose from, do not tile "
            "it. Use a multiple of one of these, or name a model with --from"
        )
    return fit, f"; patches of {patches} px do not tile {asked} px" if patches else ""


def _patch(row: Row, situation: Situation) -> tuple[int, int]:
    return pair(situation.patch_size or row.patch_size)


def _image_size(row: Row, situation: Situation) -> Size2d:
    """Return the size asked for, or the row's own, or half of that for small images: a multiple of the patch size."""
    if situation.image_size is not None:
        return situation.image_size
    if situation.side > _SMALL:
        return row.image_size
    return max(1, row.image_size // 2 // row.patch_size) * row.patch_size


def _seconds(row: Row, image_size: Size2d, situation: Situation) -> float:
    (height, width), (ph, pw) = pair(image_size), _patch(row, situation)
    square = round(math.sqrt((height // ph) * (width // pw)))  # of about as many patches
    passes = _FORWARD + _PASSES.get(situation.mode, _LAST)
    return situation.images * passes * row.flops(square * row.patch_size) / situation.rate


def _has_memory(row: Row, situation: Situation) -> bool:
    return situation.memory is None or _BYTES * row.parameters <= _USABLE * situation.memory


def _reason(row: Row, image_size: Size2d, situation: Situation, better: Sequence[str]) -> str:
    limit = "half an hour" if situation.budget is None else f"the budget of {situation.budget:,.0f} s"
    if situation.mode == AUTO and situation.budget is not None:
        limit = f"half of {limit}"
    best = "best linear probe" if row.linear is not None else "cheapest row"
    what = "whose features this machine has within" if situation.mode == AUTO else "that this machine trains within"
    text = f"{best} {what} {limit}"
    if better:
        text += f"; {', '.join(better)} would not fit"
    if situation.image_size is None and image_size != row.image_size:
        text += f"; {in_pixels(image_size)} px, because the images have {situation.side}"
    return text
