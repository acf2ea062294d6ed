"""Robustness to corruptions, summarised from the error of each corruption and severity.

Hendrycks and Dietterich 2019 (arXiv 1903.12261), section 4.1. All errors are shares of wrong predictions, in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vitreous.errors import DataError, NonFiniteError

__all__ = ["Robustness", "mean_corruption_error"]

Errors = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Robustness:
    """Errors of a classifier on corrupted images, with and without a baseline.

    Attributes:
        corruption_error: CE of the paper, for each corruption: the sum of the errors over severities, divided by that
            of the baseline. 1 is as robust as the baseline, less is better.
        mean_corruption_error: mCE of the paper: the mean of these ratios.
        relative_corruption_error: For each corruption, the increase of the error over that on clean images, divided by
            that of the baseline. Infinite or NaN if the baseline does not lose accuracy.
        relative_mean_corruption_error: The mean of these ratios.
    """

    errors: dict[str, tuple[float, ...]]  # error of each corruption at each severity
    error: dict[str, float]  # mean error of each corruption over severities
    by_severity: tuple[float, ...]  # mean error at each severity over corruptions
    mean_error: float  # mean over all corruptions, each with the same weight
    clean_error: float | None = None  # error on the images without corruption
    corruption_error: dict[str, float] | None = None
    mean_corruption_error: float | None = None
    relative_corruption_error: dict[str, float] | None = None
    relative_mean_corruption_error: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON."""
        return asdict(self)


def mean_corruption_error(
    errors: Errors,
    *,
    clean_error: float | None = None,
    baseline: Errors | None = None,
    baseline_clean_error: float | None = None,
) -> Robustness:
    """Summarise the errors on corrupted images.

    Args:
        errors: Corruption -> error at each severity, in ascending order. All have the same number of severities.
        clean_error: Error on the same images without corruption.
        baseline: The errors of another classifier, for the same corruptions and severities. The paper uses AlexNet.
        baseline_clean_error: Its error without corruption. The relative errors need it and ``clean_error``.

    Raises:
        DataError: There is no error, an error is not in [0, 1], the numbers of severities differ, the baseline has
            other corruptions or severities, or it makes no error on one of them.
        NonFiniteError: An error is NaN or infinite.
    """
    table = _checked(errors, "The errors")
    for owner, value in (("clean error", clean_error), ("clean error of the baseline", baseline_clean_error)):
        if value is not None:
            _check_error(value, f"The {owner}")
    means = {name: _mean(row) for name, row in table.items()}
    by_severity = tuple(_mean(column) for column in zip(*table.values(), strict=True))
    ratios = relative = None
    if baseline is not None:
        reference = _matching(baseline, table)
        ratios = {name: means[name] / _mean(reference[name]) for name in table}
        if clean_error is not None and baseline_clean_error is not None:
            relative = {
                name: _ratio(means[name] - clean_error, _mean(reference[name]) - baseline_clean_error) for name in table
            }
    return Robustness(
        errors=table,
        error=means,
        by_severity=by_severity,
        mean_error=_mean(list(means.values())),
        clean_error=clean_error,
        corruption_error=ratios,
        mean_corruption_error=_mean(list(ratios.values())) if ratios else None,
        relative_corruption_error=relative,
        relative_mean_corruption_error=_mean(list(relative.values())) if relative else None,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ratio(value: float, reference: float) -> float:
    if reference == 0:
        return math.nan if value == 0 else math.copysign(math.inf, value)
    return value / reference


def _check_error(value: float, owner: str) -> None:
    if not math.isfinite(value):
        raise NonFiniteError(f"{owner} is {value}, it must be a finite number from 0 to 1.")
    if not 0 <= value <= 1:
        raise DataError(f"{owner} is {value:g}, it must be a share of wrong predictions from 0 to 1, not per cent.")


def _checked(errors: Errors, owner: str) -> dict[str, tuple[float, ...]]:
    """Return the errors as floats in tuples, or raise if they are not a table of shares."""
    table = {name: tuple(float(value) for value in row) for name, row in errors.items()}
    lengths = {name: len(row) for name, row in table.items()}
    if not table or not min(lengths.values()):
        raise DataError(f"{owner} are empty; pass at least one corruption with one severity.")
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise DataError(f"{owner} must have the same number of severities for each corruption; they have: {counts}.")
    for name, row in table.items():
        for number, value in enumerate(row, start=1):
            _check_error(value, f"The error of {name} at severity {number}")
    return table


def _matching(baseline: Errors, table: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    """Return the checked errors of the baseline, or raise DataError if they do not match the table."""
    reference = _checked(baseline, "The errors of the baseline")
    if different := sorted(reference.keys() ^ table.keys()):
        raise DataError(
            f"The baseline must have the same corruptions; only one of the two has: {', '.join(different)}."
        )
    severities = [len(next(iter(rows.values()))) for rows in (reference, table)]
    if severities[0] != severities[1]:
        raise DataError(f"The baseline has {severities[0]} severities, it must have {severities[1]}.")
    if perfect := [name for name, row in reference.items() if not sum(row)]:
        raise DataError(f"The baseline makes no error on {', '.join(perfect)}; a ratio to it is not defined.")
    return reference
