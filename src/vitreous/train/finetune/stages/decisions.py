"""What a run in stages can afford: pure functions of sizes and measured times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vitreous.errors import pluralize
from vitreous.model.config import ViTConfig
from vitreous.train.console import duration

__all__ = [
    "LAST",
    "TRAININGS",
    "Resources",
    "further_views",
    "images_for_heads",
    "no_time_for_a_view",
    "tokens_too_large",
    "too_few_images",
    "tuning_modes",
]

LAST = 2
"""Blocks that the mode `last-K` trains."""

TRAININGS = (f"last-{LAST}", "lora", "full")
"""The stages that train weights below the head."""

_MOST_TOKENS = 1 << 30  # bytes of all tokens of a run, in float16
_TOKEN_SHARE = 1 / 6  # of the free memory that they may take; they are copied once
_HEADS_SHARE = 0.7  # of the time left that k-NN and a linear head may take: the rest is the attentive head
_FEWEST_FOR_HEADS = 32  # training images, whatever time is left
_MOST_VIEWS = 3  # besides the first
_VIEW_SHARE = 0.05  # of the time left that further views may take: a training gains more from it
_FEWEST_EPOCHS = 3  # fewer do not make up for the noise of the first steps from a head that fits
_FEWEST_IMAGES, _FEWEST_PER_CLASS = 60, 5  # below, validation cannot tell what helps, and frozen features win
_UNASKED = 3600.0  # seconds that a training may take if nobody gave a budget
_LOADING = 1.15  # time of a step with its images over that of the model alone
_BYTES = 16  # per parameter: weights, gradients and two moments in float32
_USABLE = 0.7  # of the free memory, for these


def tokens_too_large(config: ViTConfig, images: int, memory: int | None) -> str | None:
    """Return why the tokens of so many images cannot be kept; None if they can."""
    height, width = config.grid
    size = 2 * images * (config.prefix_tokens + height * width) * config.width
    limit = _MOST_TOKENS if memory is None else min(_MOST_TOKENS, int(_TOKEN_SHARE * memory))
    if size <= limit:
        return None
    return f"the tokens of {images:,} images take {size / 2**30:.2g} GiB, the limit is {limit / 2**30:.2g} GiB"


def images_for_heads(images: int, seconds: float, left: float) -> int:
    """Return how many training images heads can be fitted to in the time left.

    Args:
        images: All of them.
        seconds: Time of k-NN and a linear head on all; it grows with their number.
        left: Seconds left of the budget.
    """
    if seconds <= _HEADS_SHARE * left:
        return images
    return min(images, max(_FEWEST_FOR_HEADS, int(images * _HEADS_SHARE * left / max(seconds, 1e-9))))


def further_views(view_seconds: float, left: float | None, fits_head: float) -> int:
    """Return how many views besides the first are worth their time.

    Args:
        view_seconds: Time of a view of all training images.
        left: Seconds left of the budget; None without one.
        fits_head: Seconds that a linear head on one view took; the one on all views takes about that per view.
    """
    if left is None:
        return 1
    return max(0, min(_MOST_VIEWS, int(_VIEW_SHARE * left / max(view_seconds + fits_head, 1e-3))))


def no_time_for_a_view(view_seconds: float, left: float, fits_head: float) -> str:
    """Return why no further view is worth its time. Arguments as :func:`further_views` has them."""
    return (
        f"a view and its head take about {view_seconds + fits_head:.1f} s, more than {100 * _VIEW_SHARE:g} % of the "
        f"{max(0.0, left):.1f} s of the budget that are left"
    )


@dataclass(frozen=True)
class Resources:
    """What a decision about training depends on.

    Args:
        images: Training images.
        classes: Classes among them.
        depth: Blocks of the model.
        parameters: Of the model.
        step_seconds: Time of a step of the model alone, by mode, without those of which not one image fits into memory.
        steps_per_epoch: Steps of an epoch.
        validation_seconds: Time of a validation.
        epochs: Epochs of a training without a budget.
        left: Seconds left for training; None without a budget.
        answers_seconds: Time in which a teacher answers once, before the first step.
        memory: Free memory in bytes; None if it is not known.
        has_lora: Whether adapters can be trained here.
        verb: Of the command; only `finetune` has the option --tune.
    """

    images: int
    classes: int
    depth: int
    parameters: int
    step_seconds: Mapping[str, float]
    steps_per_epoch: int
    validation_seconds: float
    epochs: float
    left: float | None
    memory: int | None
    has_lora: bool
    verb: str
    answers_seconds: float = 0.0

    def epoch_seconds(self, mode: str) -> float:
        """Estimate the time of an epoch with its validation."""
        return _LOADING * self.steps_per_epoch * self.step_seconds[mode] + self.validation_seconds

    @property
    def fits_whole(self) -> bool:
        """Whether gradients and moments of all weights fit into memory."""
        return self.memory is None or _BYTES * self.parameters <= _USABLE * self.memory


def too_few_images(images: int, classes: int) -> str | None:
    """Return why training below the head will not help with so few images; None if it may."""
    if images >= max(_FEWEST_IMAGES, _FEWEST_PER_CLASS * classes):
        return None
    return (
        f"{pluralize(images, 'training image')} of {pluralize(classes, 'class', 'classes')}: it takes "
        f"{_FEWEST_PER_CLASS} a class, and {_FEWEST_IMAGES} in all, to improve on frozen features"
    )


def tuning_modes(resources: Resources) -> tuple[list[str], dict[str, str]]:
    """Return the modes of training below the head to try, the cheaper first, and why others are skipped.

    With a budget it is one mode, the one that changes most among those with time for a few epochs. Without one, each
    mode in turn, as long as it helps.
    """
    if (reason := too_few_images(resources.images, resources.classes)) is not None:
        return [], dict.fromkeys(TRAININGS, reason)
    skipped = dict(_unsuited(resources))
    for mode in TRAININGS:
        if mode not in skipped and (reason := _unaffordable(resources, mode)) is not None:
            skipped[mode] = reason
    modes = [mode for mode in TRAININGS if mode not in skipped]
    if resources.left is not None and len(modes) > 1:
        *cheaper, most = modes
        skipped |= dict.fromkeys(cheaper, f"the budget has time for {most}, which trains more")
        modes = [most]
    return modes, skipped


def _unsuited(resources: Resources) -> Iterator[tuple[str, str]]:
    """Yield each mode that does not suit the model or the memory, and why."""
    if resources.fits_whole:
        yield "lora", "all weights fit into memory, so adapters save nothing"
    else:
        yield "full", f"{resources.parameters / 1e6:,.0f} M weights with gradients and moments do not fit into memory"
        if not resources.has_lora:
            yield "lora", "it needs peft: pip install 'vitreous[lora]'"
    if resources.depth <= LAST:
        yield f"last-{LAST}", f"the model has {pluralize(resources.depth, 'block')}: full trains all"


def _unaffordable(resources: Resources, mode: str) -> str | None:
    if mode not in resources.step_seconds:
        return "not one image of a training step fits into memory"
    seconds, before = resources.epoch_seconds(mode), resources.answers_seconds
    if resources.left is None:
        if (whole := before + resources.epochs * seconds) <= _UNASKED:
            return None
        asked = f"{resources.epochs:.3g} epochs would take about {duration(whole)}"
        or_tune = f", or --tune {mode}" if resources.verb == "finetune" else ""
        return f"{asked}, more than {duration(_UNASKED)}: give a --budget{or_tune}"
    if (needed := before + _FEWEST_EPOCHS * seconds) <= resources.left:
        return None
    left = max(0.0, resources.left)
    return f"{_FEWEST_EPOCHS} epochs would take about {needed:,.1f} s, and {left:,.1f} s of the budget are left"
