"""What writes the models of a run in stages: those of one class, or of several labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitreous.train.finetune.stages.outcome import Candidate, beats
from vitreous.train.multilabel.writing import LabelsWriter
from vitreous.train.multilabel.writing import ending as labels_ending
from vitreous.train.results import RunWriter, SelectedWeights, ending
from vitreous.train.setup import Setup

__all__ = ["ending_seconds", "guarded_writer", "writer_of"]


def writer_of(setup: Setup) -> type[RunWriter]:
    """Return what writes the models of a run in one process on these data."""
    return LabelsWriter if setup.data.several else RunWriter


def ending_seconds(setup: Setup, budget: float) -> tuple[float, float]:
    """Estimate the seconds of the class maps, and of the whole report, given the budget."""
    return labels_ending(setup, budget) if setup.data.several else ending(setup, budget)


def guarded_writer(setup: Setup, folder: Path, incumbent: Candidate) -> RunWriter:
    """Return what writes the best model of a training only if it beats those of earlier stages."""
    kind = _GuardedLabels if setup.data.several else _Guarded
    return kind(incumbent, setup, folder)


class _Guarded(RunWriter):
    def __init__(self, incumbent: Candidate, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._incumbent = incumbent

    def save_best(self, selected: SelectedWeights) -> None:
        if beats(self.setup.config.select, selected.scores, self._incumbent.scores):
            super().save_best(selected)


class _GuardedLabels(_Guarded, LabelsWriter):
    pass
