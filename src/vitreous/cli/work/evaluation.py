"""An evaluation, from the words that ask for it to every number: what `vitreous evaluate` prints and Python returns."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonargparse import Namespace

from vitreous.cli.options.model import computed_by, opened, pace
from vitreous.cli.output.terminal import narrate
from vitreous.cli.work import scoring
from vitreous.data.sources.opening import ImageData
from vitreous.evaluate.calibration import Calibration, calibrate
from vitreous.evaluate.metrics import Scores, evaluate
from vitreous.files.html import html_table
from vitreous.predictor import Classifier

__all__ = ["Evaluation", "evaluated"]

_CLASSES_SHOWN = 40


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How good a model is on labelled images.

    Attributes:
        model: What was evaluated, as it was named.
        data: The images.
        split: Which of them: `train`, `val`, `test` or `all`.
        classes: The model's class names, in the order of `scores.per_class`.
        scores: Top-1, F1, log loss and more, overall and per class.
        calibration: Whether the probabilities hold.
        computed_by: Engine, precision, device, merged tokens, and what merging and augmentation changed.
    """

    model: str
    data: ImageData
    split: str
    classes: Sequence[str]
    scores: Scores
    calibration: Calibration
    computed_by: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Every number as plain JSON values: what `vitreous evaluate --json` writes."""
        data = {"name": self.data.name, "fingerprint": self.data.fingerprint}
        return {
            "model": self.model,
            "data": {**data, "split": self.split, "pictures": self.scores.n},
            "computed_by": dict(self.computed_by),
            "unreadable": [{"path": str(path), "reason": reason} for path, reason in self.data.unreadable],
            "classes": list(self.classes),
            "scores": self.scores.to_dict(),
            "calibration": self.calibration.to_dict(),
        }

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={getattr(self.scores, name):.4f}" for name in ("top1", "macro_f1", "log_loss"))
        return f"Evaluation({numbers}, n={self.scores.n})"

    def _repr_html_(self) -> str:
        names = self.classes[:_CLASSES_SHOWN]
        rows = [
            (name, f"{own.support:,}", f"{own.precision:.3f}", f"{own.recall:.3f}", f"{own.f1:.3f}")
            for name, own in zip(names, self.scores.per_class, strict=False)
        ]
        more = f", the first {len(names)} of {len(self.classes):,} classes" if len(names) < len(self.classes) else ""
        return self.scores._repr_html_() + html_table(
            f"{self.data.name}, {self.split}{more}", rows, ("class", "images", "precision", "recall", "F1")
        )


def evaluated(options: Namespace, classifier: Classifier | None = None) -> Evaluation:
    """Evaluate as the options of `vitreous evaluate` say.

    Args:
        options: Of the verb.
        classifier: The model, where it is open already; the options then do not open another.

    Raises:
        VitreousError: Whatever is wrong with the model, the data or the options.
    """
    classifier = opened(options) if classifier is None else classifier
    classifier.require_classes()
    data = scoring.open_data(classifier.info, options.data, options.data_dir, options.split)
    name, split = scoring.choose_split(data, options.split)
    labels = scoring.labels_by_name(classifier.classes, data, split)
    engine = classifier.prepare(len(split), options.batch_size)
    for note in scoring.remarks(classifier.info, data, name):
        narrate(note)
    if options.merge_tokens:  # now: what does not open should not cost the scores
        whole = opened(options, merge_tokens=0, engine=engine.name, precision=engine.precision)
        whole.prepare(len(split), options.batch_size)
    start = time.perf_counter()
    logits = scoring.logits_of(classifier, split, options.batch_size)
    seconds = time.perf_counter() - start
    narrate(pace(len(split), seconds, classifier, engine))
    scores = evaluate(logits / classifier.info.temperature, labels)
    calibration = calibrate(logits, labels, classifier.info.temperature)
    merging = gain = None
    if options.tta:
        gain = scoring.gain_of_augmentation(
            classifier, split, labels, options.batch_size, logits=logits, seconds=seconds
        )
    if options.merge_tokens:
        merging = scoring.loss_of_merging(whole, split, labels, options.batch_size, scores=scores, seconds=seconds)
    how = {**computed_by(classifier, engine), "merge_tokens": options.merge_tokens, "merging": merging}
    how |= {"tta": gain} if gain else {}
    return Evaluation(str(options.model), data, name, classifier.classes, scores, calibration, how)
