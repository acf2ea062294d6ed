"""The options of a run on images with several labels. They belong to `RunConfig`, as `labels`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitreous.choices import unknown_choices
from vitreous.errors import ConfigError

__all__ = ["LabelsConfig"]


@dataclass(frozen=True)
class LabelsConfig:
    """The loss of data in which an image may have several labels, or none (:mod:`vitreous.train.multilabel`).

    The defaults of the asymmetric loss are those of its paper (arXiv 2009.14119).

    Args:
        loss: `bce`: binary cross-entropy, the mean over all labels. `asymmetric`: weights easy negatives less, for many
            labels of which an image has few; its probabilities are too high until they are calibrated.
        gamma_negative: Exponent that weights easy negatives less in the asymmetric loss.
        gamma_positive: The same for positives.
        margin: Probability below which a negative has no loss in the asymmetric loss, in [0, 1).
    """

    loss: Literal["bce", "asymmetric"] = "bce"
    gamma_negative: float = 4.0
    gamma_positive: float = 0.0
    margin: float = 0.05

    def __post_init__(self) -> None:
        """Check choices and ranges, and report all problems in one error."""
        problems = list(unknown_choices(self))
        problems += [
            f"{name} is {getattr(self, name)}, it cannot be negative"
            for name in ("gamma_negative", "gamma_positive")
            if getattr(self, name) < 0
        ]
        if not 0 <= self.margin < 1:
            problems.append(f"margin is {self.margin}, it is a probability and must be in [0, 1)")
        if problems:
            raise ConfigError("; ".join(problems))
