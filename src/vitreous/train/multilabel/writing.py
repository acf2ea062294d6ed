"""Writes the files of a run with several labels: the model with its calibration and thresholds, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.evaluate.multilabel.fitting import cross_fitted, fit_rule
from vitreous.evaluate.multilabel.metrics import MultiLabelScores, evaluate_labels
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.evaluate.scoring.any_labels import AnyScores
from vitreous.report.multilabel.results import LabelInput
from vitreous.train.results import RunWriter, SelectedWeights, SplitScores, copy_weights
from vitreous.train.setup import Setup

__all__ = ["LabelsWriter", "Scored", "ending"]

_ENDING = 6.0  # seconds that the report and the exit of the program take on a slow machine
_PER_PAIR = 4e-6  # seconds that the report takes for each pair of a validation image and a label


@dataclass(frozen=True, eq=False)
class Scored:
    """Calibration and thresholds, and the scores that they give."""

    rule: LabelRule
    val: MultiLabelScores  # each half with the rule of the other
    test: MultiLabelScores | None
    fitted: tuple[Tensor, Tensor]  # calibrated logits and labels given of val, (N, K) each


class LabelsWriter(RunWriter):
    """Writes the files of a run whose images may have several labels."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rule = LabelRule.plain(len(self.setup.data.classes))
        self._scored: Scored | None = None

    def fit(self, selected: SelectedWeights, tested: SplitScores | None) -> Scored:
        """Fit the rule that is saved on the validation split, and score it."""
        rule, fitted = fit_rule(selected.logits, selected.labels), cross_fitted(selected.logits, selected.labels)
        test = None
        if tested is not None:
            raw = tested.logits.double()
            test = evaluate_labels(rule.calibrated(raw), tested.labels, rule.present(raw))
        val = evaluate_labels(fitted[0], selected.labels, fitted[1], ranked=selected.logits)
        self._rule, self._scored = rule, Scored(rule, val, test, fitted)
        return self._scored

    def save_calibrated(self, selected: SelectedWeights) -> None:
        """Write a model with the rule that its predictions for the validation split give."""
        self._save_fitted(selected)

    def save_model(self, selected: SelectedWeights, temperature: float, tested: SplitScores | None) -> Path:
        """Write the model file of a finished run, after :meth:`fit`."""
        assert self._scored is not None  # `fit` comes first
        scores = {"val": self._scored.val.summary()}
        if self._scored.test is not None:
            scores["test"] = self._scored.test.summary()
        name, weights, epoch = "model.safetensors", selected.weights, selected.epoch
        return self._save(name, weights, epoch, 1.0, scores, scored_in="float32")

    def save_interrupted(self, selected: SelectedWeights | None, model: nn.Module) -> Path:
        """Write the model file of an interrupted run: the best weights, or before any validation the current ones."""
        if selected is None:
            return self._save("model.safetensors", copy_weights(model), None, 1.0, {})
        return self._save_fitted(selected)

    def _save_fitted(self, selected: SelectedWeights) -> Path:
        scores = {"val": self.fit(selected, None).val.summary()}
        return self._save("model.safetensors", selected.weights, selected.epoch, 1.0, scores)

    def model_info(
        self, classes: tuple[str, ...], temperature: float, provenance: Mapping[str, Any], scores: Mapping[str, Any]
    ) -> ModelInfo:
        """Return what a model file has beside the weights."""
        return ModelInfo(classes, self.setup.pipeline, 1.0, provenance, scores, multilabel=self._rule)

    def write_labels_report(
        self,
        scored: Scored,
        selected: SelectedWeights,
        training_scores: AnyScores,
        *,
        history: Sequence[Mapping[str, Any]],
        seconds: Mapping[str, float],
        finetune: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Write report.json, the page and the curves, and return the content of report.json."""
        from vitreous.report.multilabel.run import write_labels_report  # imports matplotlib, which no head waits for

        setup, split = self.setup, self.setup.data.splits["val"]
        given = LabelInput(
            model=self.folder.name,
            data=setup.config.data.source,
            split="validation split",
            classes=setup.data.classes,
            names=[split.name_of(n) for n in range(len(split))],
            logits=selected.logits,
            labels=selected.labels,
            rule=scored.rule,
            fitted=scored.fitted,
            stages=(finetune or {}).get("stages", ()),
            notes=["these images chose the epoch, so the scores are a little high"],
        )
        facts = self.run_facts(selected, history, seconds, training_scores.summary(), finetune)
        return write_labels_report(self.folder, facts, given, split.image, test=scored.test, history=history)


def ending(setup: Setup, budget: float) -> tuple[float, float]:
    """Estimate the seconds of class maps, of which there are none, and of the whole report."""
    pairs = len(setup.data.splits["val"]) * len(setup.data.classes)
    return 0.0, _ENDING + _PER_PAIR * pairs
