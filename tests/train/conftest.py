"""Runs of these tests leave out the drawing in their reports, more than half of the time of a small run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import vitreous.report.multilabel.run  # noqa: F401  has the figure before it is replaced

CURVES = ("epoch", "train_loss", "val_log_loss", "val_top1", "val_macro_f1", "lr")


@pytest.fixture(scope="module", autouse=True)
def undrawn_reports(request: pytest.FixtureRequest) -> Iterator[None]:
    """Write the numbers of learning curves in place of their figure, and no class maps.

    Runs that differ in a number still differ in the file. A module that sets LOOKS_AT_REPORTS gets whole reports.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "LOOKS_AT_REPORTS", False):
            for module in ("vitreous.report.run_report", "vitreous.report.figures"):
                patch.setattr(f"{module}.draw_curves", _numbers)
            patch.setattr("vitreous.train.results.class_map", lambda *_: None)
        yield


def _numbers(history: Sequence[Mapping[str, Any]], *rest: object, dark: bool = False) -> bytes:
    rows = [[None if row.get(name) in (None, "") else float(row[name]) for name in CURVES] for row in history]
    return repr((rows, rest, dark)).encode()
