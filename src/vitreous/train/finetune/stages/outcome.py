"""What a stage of fine-tuning leaves: a score, and a model or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitreous.evaluate.scoring.any_labels import AnyScores, scores_of
from vitreous.evaluate.scoring.intervals import wilson
from vitreous.evaluate.scoring.metrics import Scores
from vitreous.model.config import ViTConfig
from vitreous.train.preference import is_better

__all__ = ["Candidate", "Outcome", "beats", "best_of", "mean_ap_of"]


def beats(select: str, new: AnyScores, old: AnyScores) -> bool:
    """Return whether a stage is better than another by `RunConfig.select`; for `last`, of epochs, by top-1 or mAP."""
    metric = "top1" if isinstance(new, Scores) else "mean_ap"
    return is_better(metric if select == "last" else select, new, old)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model that a stage found. Tensors that it does not name are those of the source."""

    config: ViTConfig
    tensors: dict[str, Tensor]  # by their names in the state dict, on the CPU
    logits: Tensor  # (n, K) of the validation split, float32
    labels: Tensor  # (n,), or (n, K) of 0 and 1
    epoch: int = 0  # of a training, counted from 1; 0 for a head that was fitted
    scores: AnyScores = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", scores_of(self.logits, self.labels))


@dataclass(frozen=True, eq=False)
class Outcome:
    """One stage, as the report lists it."""

    stage: str
    seconds: float = 0.0
    detail: str = ""  # what was chosen, such as a regularisation
    correct: int | None = None  # images of the validation split; None if the stage was skipped, or of several labels
    mean_ap: tuple[float, float, float] | None = None  # of several labels, in place of `correct`, with its interval
    images: int = 0  # of the validation split
    candidate: Candidate | None = None  # None for a reference, and for a stage that was skipped
    skipped: str | None = None  # why
    macro_f1: float | None = None  # as log_loss: of the candidate, also if that is no longer kept
    log_loss: float | None = None
    trained: int = 0  # weights that were trained
    strength: float | None = None  # C of a linear head
    history: Sequence[Mapping[str, float]] = ()  # rows of metrics.csv

    @classmethod
    def of(cls, stage: str, candidate: Candidate, **facts: Any) -> Outcome:
        """Return the outcome of a stage that found a model."""
        scores = candidate.scores
        return cls(
            stage,
            **_main_score(candidate, scores),
            images=scores.n,
            candidate=candidate,
            macro_f1=scores.macro_f1,
            log_loss=scores.log_loss,
            **facts,
        )

    def to_dict(self, chosen: str | None) -> dict[str, Any]:
        """Return the row of report.json; `chosen` is the stage whose model is the result."""
        row: dict[str, Any] = {"stage": self.stage, "seconds": self.seconds, "detail": self.detail}
        row |= {"top1": None, "low": None, "high": None}
        if self.correct is not None:
            interval = wilson(self.correct, self.images)
            row |= {"top1": interval.value, "low": interval.low, "high": interval.high}
        elif self.mean_ap is not None:
            row |= dict(zip(("mean_ap", "low", "high"), self.mean_ap, strict=True))
        row |= {"macro_f1": self.macro_f1, "log_loss": self.log_loss}
        return row | {"skipped": self.skipped, "chosen": self.stage == chosen}

    def describe(self) -> str:
        """Describe the outcome in one line."""
        if self.skipped is not None:
            return f"{self.stage}: skipped, {self.skipped}"
        row = self.to_dict(None)
        measure, name = ("top-1", "top1") if self.correct is not None else ("mAP", "mean_ap")
        score = f"{measure} {100 * row[name]:.1f} % ({100 * row['low']:.1f} to {100 * row['high']:.1f})"
        return f"{self.stage}: val {score}{f', {self.detail}' if self.detail else ''}, in {self.seconds:.1f} s"


def mean_ap_of(values: Tensor, labels: Tensor) -> dict[str, tuple[float, float, float]]:
    """Return the field of the mAP of values and several labels, (n, K) each."""
    from vitreous.evaluate.multilabel.intervals import mean_ap_interval  # only where it is used

    found = mean_ap_interval(values, labels)
    return {"mean_ap": (found.value, found.low, found.high)}


def _main_score(candidate: Candidate, scores: AnyScores) -> dict[str, Any]:
    if isinstance(scores, Scores):
        return {"correct": round(scores.top1 * scores.n)}
    return mean_ap_of(candidate.logits, candidate.labels)


def best_of(outcomes: Sequence[Outcome], select: str) -> Outcome | None:
    """Return the stage with the best model by the metric of `RunConfig.select`, the first among equals."""
    best: Outcome | None = None
    for outcome in outcomes:
        if outcome.candidate is None:
            continue
        if best is None or best.candidate is None or beats(select, outcome.candidate.scores, best.candidate.scores):
            best = outcome
    return best
