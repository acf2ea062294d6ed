"""Writes the results of a run into its directory: the model file, the report, and what a failed run leaves."""

from __future__ import annotations

import contextlib
import copy
import datetime
import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.data.sources.image_data import Split
from vitreous.data.sources.listing import UNLABELLED
from vitreous.data.sources.opening import fingerprint_of
from vitreous.errors import NonFiniteError, VitreousError
from vitreous.evaluate.scoring.any_labels import AnyScores
from vitreous.evaluate.scoring.metrics import Scores
from vitreous.evaluate.trust.calibration import choose_temperature
from vitreous.files.writing import atomic_write
from vitreous.machine.device import describe_machine, versions
from vitreous.model.vit import VisionTransformer
from vitreous.report.evaluation.results import EvaluationInput, measure
from vitreous.train.class_maps import class_map, class_map_seconds
from vitreous.train.finetune.trainable import merge_adapters
from vitreous.train.resume.non_finite import NonFiniteStepError
from vitreous.train.resume.replay import REPLAY, write_replay
from vitreous.train.setup import Setup, one_thread_if_tiny

if TYPE_CHECKING:
    from vitreous.report.run_report import Predictions, RunFacts

__all__ = [
    "RunWriter",
    "SelectedWeights",
    "SplitScores",
    "copy_weights",
    "ending",
    "report_seconds",
    "scoring_seconds",
]

_SAVE_EVERY = 10.0  # seconds between two writes of the best model so far
_FLOAT32_OVER_BF16 = 3.0  # time of a forward pass in float32 over bf16 until measured, with bf16 in hardware
_TIMED_IMAGES = 500  # images whose figures are computed to estimate the time of the report
_THUMBNAILS = 112  # most images of the page
_MARGIN = 2.0  # time reserved for the report over its estimate


@dataclass(frozen=True, eq=False)
class SplitScores:
    """The predictions of a model for a split, and their scores."""

    scores: AnyScores
    logits: Tensor  # (N, K), in the order of the split
    labels: Tensor  # (N,), the true classes; (N, K) of 0 and 1 if an image may have several

    @property
    def class_scores(self) -> Scores:
        """The scores, where each image has one class."""
        return cast(Scores, self.scores)


@dataclass(frozen=True, eq=False)
class SelectedWeights(SplitScores):
    """Weights selected for saving, with their predictions for the validation split."""

    epoch: int  # counted from 1; 0 for a head that was fitted
    weights: dict[str, Tensor]  # state dict on the CPU


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Copy the state dict of a model to the CPU."""
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


class RunWriter:
    """Writes the files of a run directory.

    `extended` are numbers of epochs at which the run had finished before, `map_seconds` is the time that the class maps
    of the report may take.
    """

    def __init__(self, setup: Setup, folder: Path, extended: Sequence[int] = (), map_seconds: float = math.inf) -> None:
        self.setup, self.folder, self.extended, self.map_seconds = setup, folder, tuple(extended), map_seconds
        self.model = copy.deepcopy(setup.model)  # weights to save are loaded here, never into the model in training
        self._saved_at = 0.0

    @property
    def best_is_due(self) -> bool:
        """Whether the last write of the best model was long enough ago."""
        return time.monotonic() - self._saved_at >= _SAVE_EVERY

    def save_best(self, selected: SelectedWeights) -> None:
        """Write the best model so far during training, at most every 10 seconds."""
        if self.best_is_due:
            self.save_calibrated(selected)
            self.mark_saved()

    def save_calibrated(self, selected: SelectedWeights) -> None:
        """Write a model with the calibration that its predictions for the validation split give."""
        self.save_model(selected, choose_temperature(selected.logits, selected.labels), None)

    def mark_saved(self) -> None:
        """Note that the best model so far is written."""
        self._saved_at = time.monotonic()

    def save_model(self, selected: SelectedWeights, temperature: float, tested: SplitScores | None) -> Path:
        """Write the model file of a finished run, with scores computed in float32."""
        splits = (("val", selected), ("test", tested))
        scores = {name: result.scores.summary() for name, result in splits if result is not None}
        weights, epoch = selected.weights, selected.epoch
        return self._save("model.safetensors", weights, epoch, temperature, scores, scored_in="float32")

    def save_interrupted(self, selected: SelectedWeights | None, model: nn.Module) -> Path:
        """Write the model file of an interrupted run: the best weights, or before any validation the current ones."""
        if selected is None:
            return self._save("model.safetensors", copy_weights(model), None, 1.0, {})
        temperature = choose_temperature(selected.logits, selected.labels)
        scores = {"val": selected.scores.summary()}
        return self._save("model.safetensors", selected.weights, selected.epoch, temperature, scores)

    def save_non_finite(self, error: NonFiniteStepError) -> NonFiniteError:
        """Write the replay file and the last good weights, and return an error that names both."""
        replay = self.folder / REPLAY
        write_replay(replay, self.setup, error)
        weights = self._save("last-good.safetensors", error.good, None, 1.0, {})
        return NonFiniteError(
            f"{error}. Repeat the step with `vitreous replay {shlex.quote(str(replay))}` to find the cause; the last "
            f"good weights are in {weights}. Lower --optim.lr, or lengthen --optim.warmup"
        )

    def write_report(
        self,
        selected: SelectedWeights,
        temperature: float,
        tested: SplitScores | None,
        *,
        history: Sequence[Mapping[str, Any]],
        seconds: Mapping[str, float],
        training_summary: Mapping[str, float],
        finetune: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write report.json, the page and the curves, and return the content of report.json.

        Scores of `selected` were computed in float32, `training_summary` of the same epoch during training. `history`
        are the rows of metrics.csv, `finetune` is the section on fine-tuning.
        """
        from vitreous.report.run_report import write_report  # imports matplotlib, which no head waits for

        setup = self.setup
        facts = self.run_facts(selected, history, seconds, training_summary, finetune)
        self.model.load_state_dict(selected.weights)
        info, split = ModelInfo(setup.data.classes, setup.pipeline, temperature), setup.data.splits["val"]
        maps = class_map(self.model, info, split, self.map_seconds)
        val = replace(_predictions(selected, split), class_map=maps)
        test = _predictions(tested, setup.data.splits["test"]) if tested is not None else None
        with one_thread_if_tiny(setup):
            return write_report(
                self.folder,
                facts,
                history=history,
                classes=setup.data.classes,
                val=val,
                test=test,
                temperature=temperature,
            )

    def run_facts(
        self,
        selected: SelectedWeights,
        history: Sequence[Mapping[str, Any]],
        seconds: Mapping[str, float],
        training_summary: Mapping[str, float],
        finetune: Mapping[str, Any] | None,
    ) -> RunFacts:
        """Return what a report says about the run besides its scores; arguments as :meth:`write_report` has them."""
        from vitreous.report.run_report import RunFacts

        setup, config = self.setup, self.setup.config
        return RunFacts(
            recipe=config.recipe,
            seed=config.seed,
            device=str(setup.device),
            precision=setup.precision,
            epochs=len(history),
            selected_epoch=selected.epoch or None,
            parameters=setup.cost.parameters,
            flops=setup.cost.flops,
            data={
                "source": config.data.source,
                "fingerprint": setup.data.fingerprint,
                "images": {name: len(split) for name, split in setup.data.splits.items()},
                "unreadable": len(setup.data.unreadable),
                **_unlabelled(setup),
            },
            seconds=seconds,
            machine=describe_machine(setup.device),
            selected_val=training_summary,
            finetune=finetune,
            distil=setup.distiller.to_dict() if setup.distiller is not None else None,
            extended_from=self.extended,
        )

    def next_command(self) -> list[str]:
        """Return the command that uses the saved model, in words."""
        return ["vitreous", "predict", str(self.folder / "model.safetensors"), self.example_image()]

    def example_image(self) -> str:
        """Return the path of a validation image to predict; write it first if the data set has no image files."""
        split = self.setup.data.splits["val"]
        if split.paths is not None and isinstance(first := split.paths[0], Path):
            relative = os.path.relpath(first)
            return relative if not relative.startswith(os.pardir) else str(first)
        path = self.folder / "example.png"
        with atomic_write(path, follow=False) as temporary:
            split.image(0).save(temporary, format="PNG")
        return str(path)

    def exported(self, weights: Mapping[str, Tensor]) -> VisionTransformer:
        """Return the model with these weights as it is saved."""
        self.model.load_state_dict(weights)
        return merge_adapters(self.model)

    def model_info(
        self, classes: tuple[str, ...], temperature: float, provenance: Mapping[str, Any], scores: Mapping[str, Any]
    ) -> ModelInfo:
        """Return what a model file has beside the weights."""
        return ModelInfo(classes, self.setup.pipeline, temperature, provenance, scores)

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
        """Write weights as a model file; `scored_in` is the precision of the scores, by default that of training."""
        setup, config = self.setup, self.setup.config
        provenance = {
            "recipe": config.recipe,
            "config": config.to_dict(),
            "data": {
                "source": config.data.source,
                "fingerprint": setup.data.fingerprint,
                "held_out": setup.data.held_out,
                **_unlabelled(setup),
            },
            "seed": config.seed,
            "epoch": epoch or None,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(setup.device).to_dict(),
            "precision": setup.precision,
            "scored_in": scored_in or setup.precision,
            "versions": versions(),
        }
        if setup.pretrained is not None:
            provenance["finetuned_from"] = setup.pretrained.to_dict()
        if setup.distiller is not None:
            provenance["distilled_from"] = setup.distiller.teacher.to_dict()
        if setup.predicted is not None:
            provenance["labelled_by"] = list(setup.predicted.models)
        if self.extended:
            provenance["extended_from"] = list(self.extended)
        model = self.exported(weights)
        classes = setup.data.classes if model.config.num_classes else ()
        info = self.model_info(classes, temperature, provenance, scores)
        save_model(self.folder / name, model, info, follow=False)
        return self.folder / name


def _unlabelled(setup: Setup) -> dict[str, Any]:
    """Return what a run says of the images without a label that it has seen; nothing if there are none."""
    if setup.predicted is not None:
        return {"unlabelled": setup.predicted.to_dict() | {"source": setup.config.aux.unlabelled}}
    split, seen = setup.data.unlabelled, setup.data_module.num_beside
    if split is None or not seen:
        return {}
    fingerprint = fingerprint_of(split.names, [UNLABELLED] * len(split), split.digests)
    source = setup.config.aux.unlabelled
    return {"unlabelled": {"images": len(split), "per_step": seen, "source": source, "fingerprint": fingerprint}}


def _predictions(result: SplitScores, split: Split) -> Predictions:
    from vitreous.report.run_report import Predictions

    return Predictions(result.logits, result.labels, split.image, split.name_of)


def scoring_seconds(
    validation: float, test_share: float, precision: str, float32_over_bf16: float | None = None
) -> float:
    """Estimate the seconds needed to evaluate the selected weights in float32, where training has not done so.

    This covers the test split and, after training in bf16, the validation split again. `validation` is the time of a
    validation during training, `test_share` the size of the test split over that of the validation split,
    `float32_over_bf16` the ratio of their times on this machine if it is known.
    """
    ratio = _FLOAT32_OVER_BF16 if float32_over_bf16 is None else float32_over_bf16
    return validation * (ratio * (1 + test_share) if precision == "bf16" else test_share)


def ending(setup: Setup, budget: float) -> tuple[float, float]:
    """Estimate the seconds of the class maps and of the whole report, given the budget."""
    map_seconds = class_map_seconds(setup, budget)
    return map_seconds, report_seconds(setup.data.splits["val"], len(setup.data.classes)) + map_seconds


def report_seconds(split: Split, classes: int) -> float:
    """Estimate the seconds that the report and the exit of the program take on this machine.

    Draws learning curves, decodes an image of the validation split, and computes the figures of the page from random
    logits of a few images. All is done twice: first to import what it needs, then to measure.
    """
    from vitreous.report.figures import draw_curves

    n = min(len(split), _TIMED_IMAGES)
    generator = torch.Generator().manual_seed(0)  # the random numbers of the run stay as they are
    logits = torch.randn(n, classes, generator=generator)
    names, labels = [str(k) for k in range(max(n, classes))], torch.from_numpy(split.labels[:n]).long()
    for _ in range(2):
        started = time.monotonic()
        measure(EvaluationInput("", "", "", names[:classes], names[:n], logits, labels))
        figures = (time.monotonic() - started) * len(split) / n
        started = time.monotonic()
        draw_curves([{"epoch": 1, "train_loss": 1.0}])
        drawing, started = time.monotonic() - started, time.monotonic()
        with contextlib.suppress(VitreousError):  # the run reports it when it needs the image
            split.image(0)
        decoding = (time.monotonic() - started) * min(len(split), _THUMBNAILS)
    return _MARGIN * (figures + 2 * drawing + decoding)
