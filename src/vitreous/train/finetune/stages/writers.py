"""Writers of the models of a run in stages, with one class or several labels, and how long the end of the run takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitreous.data.batches.read_ahead import map_ahead
from vitreous.train.finetune.stages.outcome import Candidate, beats
from vitreous.train.finetune.trainable import evaluating
from vitreous.train.multilabel.writing import LabelsWriter
from vitreous.train.multilabel.writing import ending as labels_ending
from vitreous.train.results import RunWriter, SelectedWeights, ending
from vitreous.train.setup import Setup

__all__ = ["ending_seconds", "guarded_writer", "seconds_of_test", "writer_of"]

_TIMED, _QUICK_SECONDS = (2, 8, 32), 0.1  # images on which scoring is timed: more of them, while they take less time


def writer_of(setup: Setup) -> type[RunWriter]:
    """Return the class that writes the models of a run in one process on this data."""
    return LabelsWriter if setup.data.several else RunWriter


def ending_seconds(setup: Setup, budget: float) -> tuple[float, float]:
    """Estimate the seconds of the class maps, and of the whole report, given the budget."""
    return labels_ending(setup, budget) if setup.data.several else ending(setup, budget)


def seconds_of_test(setup: Setup) -> float:
    """Estimate the seconds in which the test split is scored, from a few validation images; 0 if there is none."""
    if "test" not in setup.data.splits:
        return 0.0
    for most in _TIMED:
        count = min(most, len(setup.data.splits["val"]))
        seconds = min(_time_scoring(setup, count) for _ in range(2))  # the first time has to warm up
        if seconds > _QUICK_SECONDS:
            break
    return seconds / count * len(setup.data.splits["test"])


@torch.no_grad()
def _time_scoring(setup: Setup, count: int) -> float:
    """Return the seconds that PyTorch takes to score ``count`` validation images in float32, decoding included."""
    model, split = setup.model.to(setup.device), setup.data.splits["val"]
    started = time.monotonic()
    decoded = map_ahead(lambda _, n: setup.pipeline.pixels(split.image(n)), range(count), ahead=count)
    images = torch.from_numpy(np.stack(list(decoded))).permute(0, 3, 1, 2).to(setup.device)  # (count, C, H, W)
    with evaluating(model):
        model(setup.pipeline.normalise(images)).cpu()  # the copy waits for a GPU
    return time.monotonic() - started


def guarded_writer(setup: Setup, folder: Path, incumbent: Candidate) -> RunWriter:
    """Return a writer that saves the best model of a training only if it beats those of earlier stages."""
    kind = _GuardedLabels if setup.data.several else _Guarded
    return kind(incumbent, setup, folder)


class _Guarded(RunWriter):
    def __init__(self, incumbent: Candidate, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._incumbent = incumbent

    def save_best(self, selected: SelectedWeights) -> None:
        if self._is_better(selected):
            super().save_best(selected)

    def save_interrupted(self, selected: SelectedWeights | None, model: nn.Module) -> Path:
        if selected is not None and self._is_better(selected):
            return super().save_interrupted(selected, model)
        return self.folder / "model.safetensors"  # as an earlier stage wrote it

    def _is_better(self, selected: SelectedWeights) -> bool:
        return beats(self.setup.config.select, selected.scores, self._incumbent.scores)


class _GuardedLabels(_Guarded, LabelsWriter):
    pass
