"""The accuracy of a classifier on changed images, as a report shows it.

`cli/work/evaluating/robustness.py` measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitreous.evaluate.scoring.robustness import Robustness

__all__ = ["RobustnessResult", "ShiftCurve"]


@dataclass(frozen=True)
class ShiftCurve:
    """Accuracy over the parameter of a shift."""

    unit: str  # what the parameter is, such as `degrees`
    unchanged: float  # the value that changes nothing
    values: tuple[float, ...]  # rising
    accuracy: tuple[float, ...]  # in [0, 1], one for each value


@dataclass(frozen=True)
class RobustnessResult:
    """Errors on corrupted images, and accuracies on shifted ones.

    The errors are relative to a baseline if a second model was scored on the same images.
    """

    images: int  # number of images, a random sample of those that were scored
    seed: int
    side: int  # shorter side in pixels at which images are changed
    corruptions: Robustness
    shifts: Mapping[str, ShiftCurve]
    baseline: str | None = None  # name of the second model

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        shifts = {name: vars(curve) for name, curve in self.shifts.items()}
        fixed = {"images": self.images, "seed": self.seed, "side": self.side, "baseline": self.baseline}
        return fixed | {"corruptions": self.corruptions.as_dict(), "shifts": shifts}
