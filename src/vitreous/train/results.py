"""What a run leaves in its folder: the model file, the report, and what remains of a run that broke off."""

from __future__ import annotations

import copy
import datetime
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.data.sources.opening import Split
from vitreous.errors import NonFiniteError
from vitreous.evaluate.calibration import proven_temperature
from vitreous.evaluate.metrics import Scores
from vitreous.files.writing import replacing
from vitreous.machine.device import describe_machine, versions
from vitreous.report.figures import draw_confusion
from vitreous.report.run_report import Predictions, RunFacts, write_report
from vitreous.train.finetune.trainable import plain
from vitreous.train.resume.non_finite import NonFiniteStepError
from vitreous.train.resume.replay import REPLAY, write_replay
from vitreous.train.setup import Prepared

__all__ = ["Scored", "Selected", "Writer", "report_seconds", "scoring_seconds", "weights_of"]

_MODEL_EVERY = 10.0  # seconds between two writings of the best model so far
_EXACT_PER_BF16 = 3.0  # time of a forward pass in float32 over that in bf16, on a CPU that multiplies bf16
_REPORT_PER_DRAWING = 8.0  # the report's time over that of its confusion matrix: 7 measured, and 1 to leave


@dataclass(frozen=True, eq=False)
class Scored:
    """What a model said on a split.

    Attributes:
        scores: Of the predictions.
        logits: (N, K), in the order of the split.
        labels: (N,), the true classes.
    """

    scores: Scores
    logits: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Selected(Scored):
    """Weights that are to be saved, and what they said on the validation split.

    Attributes:
        epoch: Counted from 1.
        weights: State dict on the CPU.
    """

    epoch: int
    weights: dict[str, Tensor]


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state dict on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


class Writer:
    """Writes into a run's folder.

    Args:
        ready: What the run is made of, before its first step.
        folder: Of the run.
        extended: Numbers of epochs at which the run was finished before, and then given more.
    """

    def __init__(self, ready: Prepared, folder: Path, extended: Sequence[int] = ()) -> None:
        self.ready, self.folder, self.extended = ready, folder, tuple(extended)
        self._model = copy.deepcopy(ready.model)  # a shelf for weights: the one in training is never touched
        self._kept = 0.0

    def keep(self, selected: Selected) -> None:
        """Have the best model so far on the disk while training goes on, written no more often than is useful."""
        if time.monotonic() - self._kept < _MODEL_EVERY:
            return
        self.model(selected, proven_temperature(selected.logits, selected.labels), None)
        self._kept = time.monotonic()

    def model(self, selected: Selected, temperature: float, tested: Scored | None) -> Path:
        """Write the model file of a run, calibrated on the validation split."""
        scores = {"val": selected.scores.summary()}
        if tested is not None:
            scores["test"] = tested.scores.summary()
        return self._save(
            "model.safetensors", selected.weights, selected.epoch, temperature, scores, scored_in="float32"
        )

    def interrupted(self, selected: Selected | None, model: nn.Module) -> Path:
        """Write the model file of a run that was stopped: the best weights, or the present ones, uncalibrated."""
        if selected is not None:
            temperature, scores = (
                proven_temperature(selected.logits, selected.labels),
                {"val": selected.scores.summary()},
            )
            return self._save("model.safetensors", selected.weights, selected.epoch, temperature, scores)
        return self._save("model.safetensors", weights_of(model), None, 1.0, {})

    def nonfinite(self, error: NonFiniteStepError) -> NonFiniteError:
        """Write what a replay of the step needs and the last good weights, and return an error that names both."""
        replay = self.folder / REPLAY
        write_replay(replay, self.ready, error)
        weights = self._save("last-good.safetensors", error.good, None, 1.0, {})
        return NonFiniteError(
            f"{error}. `vitreous replay {shlex.quote(str(replay))}` repeats the step and says where it begins; "
            f"the last good weights are in {weights}. Lower --optim.lr, or lengthen --optim.warmup"
        )

    def report(
        self,
        selected: Selected,
        temperature: float,
        tested: Scored | None,
        *,
        history: Sequence[Mapping[str, Any]],
        seconds: Mapping[str, float],
        while_training: Scores,
        finetune: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write report.json and the figures, and return what report.json holds.

        Args:
            selected: The saved weights, with their scores in float32.
            temperature: Saved with them.
            tested: Scores on the test split.
            history: Rows of metrics.csv.
            seconds: By phase.
            while_training: Scores of the selected epoch as the training computed them.
            finetune: As report.json has it.
        """
        ready, config = self.ready, self.ready.config
        facts = RunFacts(
            recipe=config.recipe,
            seed=config.seed,
            device=str(ready.device),
            precision=ready.precision,
            epochs=len(history),
            selected_epoch=selected.epoch,
            parameters=ready.cost.parameters,
            flops=ready.cost.flops,
            data={
                "source": config.data.source,
                "fingerprint": ready.data.fingerprint,
                "images": {name: len(split) for name, split in ready.data.splits.items()},
                "unreadable": len(ready.data.unreadable),
            },
            seconds=seconds,
            machine=describe_machine(ready.device),
            selected_val=while_training.summary(),
            finetune=finetune,
            extended_from=self.extended,
        )
        val = _predictions(selected, ready.data.splits["val"])
        test = _predictions(tested, ready.data.splits["test"]) if tested is not None else None
        return write_report(
            self.folder, facts, history=history, classes=ready.data.classes, val=val, test=test, temperature=temperature
        )

    def example(self) -> str:
        """The path of a picture to predict: one of the validation split, written here where the data has no files."""
        split = self.ready.data.splits["val"]
        if split.paths is not None:
            near = os.path.relpath(split.paths[0])
            return near if not near.startswith(os.pardir) else str(split.paths[0])
        path = self.folder / "example.png"
        with replacing(path, follow=False) as temporary:
            split.picture(0).save(temporary, format="PNG")
        return str(path)

    def _save(
        self,
        name: str,
        weights: dict[str, Tensor],
        epoch: int | None,
        temperature: float,
        scores: dict[str, Any],
        *,
        scored_in: str | None = None,
    ) -> Path:
        """Write weights as a model file; the scores are in the precision of the training unless another is said."""
        ready, config = self.ready, self.ready.config
        provenance = {
            "recipe": config.recipe,
            "config": asdict(config),
            "data": {
                "source": config.data.source,
                "fingerprint": ready.data.fingerprint,
                "held_out": ready.data.held_out,
            },
            "seed": config.seed,
            "epoch": epoch,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(ready.device).to_dict(),
            "precision": ready.precision,
            "scored_in": scored_in or ready.precision,
            "versions": versions(),
        }
        if ready.start is not None:
            provenance["finetuned_from"] = ready.start.to_dict()
        if self.extended:  # epochs after which it was finished before
            provenance["extended_from"] = list(self.extended)
        self._model.load_state_dict(weights)
        info = ModelInfo(ready.data.classes, ready.pipeline, temperature, provenance, scores)
        save_model(self.folder / name, plain(self._model), info, follow=False)
        return self.folder / name


def _predictions(scored: Scored, split: Split) -> Predictions:
    return Predictions(scored.logits, scored.labels, split.picture, split.name_of)


def scoring_seconds(validation: float, test_share: float, precision: str) -> float:
    """An estimate of the seconds that it takes to score the selected weights in float32, where they are not yet.

    That is on the test split and, after a training in bf16, on the validation split anew.

    Args:
        validation: Seconds of a validation during training.
        test_share: Images of the test split for each of the validation split.
        precision: Of the training.
    """
    return validation * (_EXACT_PER_BF16 * (1 + test_share) if precision == "bf16" else test_share)


def report_seconds(classes: int) -> float:
    """An estimate of the seconds that the report and the end of the program take here.

    One of the pictures is drawn twice: once to load what drawing needs, once to time it.
    """
    for _ in range(2):
        began = time.monotonic()
        draw_confusion(np.zeros((classes, classes), dtype=np.int64), [str(n) for n in range(classes)])
    return _REPORT_PER_DRAWING * (time.monotonic() - began)
