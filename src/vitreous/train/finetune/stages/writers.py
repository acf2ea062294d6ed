"""What the models of a run in stages are written and assembled with: those of one class, or of several labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitreous.train.assembly import Kit
from vitreous.train.finetune.stages.outcome import Candidate, beats
from vitreous.train.multilabel.run import KIT as LABELS
from vitreous.train.multilabel.writing import LabelsWriter
from vitreous.train.results import RunWriter, SelectedWeights
from vitreous.train.setup import Setup

__all__ = ["guarded_writer", "stages_kit"]


def stages_kit(setup: Setup) -> Kit:
    """Return the kit of a run in one process on these data."""
    return LABELS if setup.data.several else Kit()


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
