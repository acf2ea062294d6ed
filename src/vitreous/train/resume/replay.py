"""Saves a step whose loss or gradient was not finite to a file, and repeats it to find the module where that begins.

The file holds the weights, the step's batches as they were loaded, and what determines every random draw: the seed, the
epoch and the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.accelerate.cost import forward_bytes
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_config import invalid_fields, too_many_blocks
from vitreous.checkpoint.model_file import build_on_meta
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.config import AugmentConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.machine.free_memory import memory_left
from vitreous.model.config import ViTConfig, pair
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.auxiliary.config import AuxConfig
from vitreous.train.auxiliary.task import AuxTask, build_task
from vitreous.train.config import RunConfig, TuneConfig
from vitreous.train.finetune.trainable import choose_trained, class_weights, freeze_modules
from vitreous.train.multilabel.config import LabelsConfig
from vitreous.train.multilabel.losses import TargetLoss, choose_loss
from vitreous.train.resume.non_finite import NonFiniteStepError
from vitreous.train.resume.repetition import Repetition
from vitreous.train.setup import Setup

__all__ = ["REPLAY", "Finding", "replay", "write_replay"]

REPLAY = "nonfinite.replay"
"""Name of the file in the run directory."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a replay."""

    step: str  # the run's error message, which names the step
    module: str | None  # the first module whose output, or else gradient, is not finite; None if all are finite
    text: str  # the finding in one line
    notes: tuple[str, ...]  # caveats, one line each


def write_replay(path: Path, setup: Setup, error: NonFiniteStepError) -> None:
    """Write the file that :func:`replay` reads."""
    config = setup.config
    labels, classes = setup.data.splits["train"].labels, len(setup.data.classes)
    model = dataclasses.replace(config.model, patch_dropout=config.patches_dropped(error.progress))
    write_state(
        path,
        {
            "replay": 4,
            "step": str(error),
            "model": model.to_dict(),
            "augment": dataclasses.asdict(config.augment),
            "tune": dataclasses.asdict(config.tune),
            "pretrain": _pretraining(config),
            "pipeline": setup.pipeline.to_dict(),
            "label_smoothing": config.label_smoothing,
            "seed": config.seed,
            "classes": classes,
            "class_weights": class_weights(labels, classes, config.class_weights),
            "precision": setup.precision,
            "progress": error.progress,
            "behind": error.behind,
            "teacher": config.distil.teacher,
            "views": config.distil.views if config.distil.teacher is not None else None,
            "labels": dataclasses.asdict(config.labels) if setup.data.several else None,
            "auxiliary": _second_task(setup, error),
            "weights": error.weights,
            "batches": error.batches,
        },
    )


def _pretraining(config: RunConfig) -> dict[str, Any] | None:
    """Return the method of a pretraining run, with its options; None for a classifier."""
    own = {field.name for field in dataclasses.fields(config)} - {f.name for f in dataclasses.fields(RunConfig)}
    return {name: value for name, value in dataclasses.asdict(config).items() if name in own} if own else None


def _second_task(setup: Setup, error: NonFiniteStepError) -> dict[str, Any] | None:
    """Return what a second task is built from, and its weights; None without one."""
    if setup.auxiliary is None:
        return None
    options, per_step = dataclasses.asdict(setup.config.aux), setup.auxiliary.per_step
    return {"options": options, "per_step": per_step, "weights": error.auxiliary}


def replay(path: Path) -> Finding:
    """Repeat a step in float32 on the CPU, and find the module where the first value that is not finite arises.

    A step that is finite in float32 is repeated in bfloat16 if the run computed in it.
    """
    stored = read_state(path)
    if not isinstance(stored, dict) or stored.get("replay") != 4:
        raise CheckpointError(f"'{path}' is not a replay file, or another version of vitreous wrote it")
    try:
        notes = []
        if stored["behind"]:
            notes.append(
                f"the weights are from {stored['behind']} updates before the step: on a GPU the run checks several "
                "steps at once, and later updates have overwritten the step's own weights"
            )
        if teacher := stored["teacher"]:
            notes.append(f"the step is repeated without the teacher '{teacher}', on the labels alone")
        if stored["auxiliary"] is not None and stored["auxiliary"]["options"]["method"] == "fixmatch":
            notes.append(
                "pseudo-labels are those of the trained weights: the step's own may be those of their moving average"
            )
        found = _repetition(stored).run(stored["batches"], stored["progress"])
        if found is None and stored["precision"] != "float32":
            found = _repetition(stored, torch.bfloat16).run(stored["batches"], stored["progress"])
            if found is not None:
                notes.append(f"the step is finite in float32: the failure needs {stored['precision']}")
        text = "every output and every gradient is finite in this replay" if found is None else found.text
        return Finding(stored["step"], None if found is None else found.module, text, tuple(notes))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"'{path}' cannot be replayed: {error}") from error


def _repetition(stored: Mapping[str, Any], precision: torch.dtype | None = None) -> Repetition:
    """Build what repeats the step, with the weights before it."""
    config = _config(stored)
    pipeline = EvalPipeline.from_dict(stored["pipeline"])
    model: nn.Module
    if stored["pretrain"] is None:
        model = choose_trained(build(config), TuneConfig(**stored["tune"]))
    else:
        from vitreous.train.pretrain.building import restore_objective  # runs on labels do without

        with torch.device("meta"):
            claimed = restore_objective(stored["pretrain"], build(config), pipeline)
        _check_weights(claimed, stored)
        model = restore_objective(stored["pretrain"], build(config), pipeline)
    _load(model, stored)
    freeze_modules(model)
    augment, smoothing = AugmentConfig(**_fields(stored["augment"])), stored["label_smoothing"]
    labels = stored["labels"]
    loss = choose_loss(LabelsConfig(**(labels or {})), labels is not None)
    return Repetition(
        model,
        BatchAugment(augment, pipeline, stored["classes"], stored["seed"], smoothing, views=stored["views"]),
        accumulate=len(stored["batches"]),
        class_weights=stored["class_weights"],
        loss=loss if stored["pretrain"] is None else None,
        task=_restore_task(stored, config, loss),
        precision=precision,
    )


def _restore_task(stored: Mapping[str, Any], model: ViTConfig, loss: TargetLoss) -> AuxTask | None:
    """Build the second task, if the step had one, with its weights."""
    own = stored["auxiliary"]
    if own is None:
        return None
    config = RunConfig(
        model=model, augment=AugmentConfig(**_fields(stored["augment"])), aux=AuxConfig(**own["options"])
    )
    built: dict[str, Any] = {"per_step": tuple(own["per_step"]), "loss": loss, "several": stored["labels"] is not None}
    with torch.device("meta"):
        claimed = build_task(config, **built)
    _check_weights(claimed, own)
    task = build_task(config, **built)
    _load(task, own)
    return task


def _load(module: nn.Module, stored: Mapping[str, Any]) -> None:
    try:
        module.load_state_dict(stored["weights"])
    except RuntimeError as error:
        raise ValueError("the weights do not fit the model") from error


def _config(stored: Mapping[str, Any]) -> ViTConfig:
    """Read the model's configuration. The file is untrusted: its model must match its weights and fit into memory."""
    fields = _fields(stored["model"])
    if wrong := list(invalid_fields(fields)):
        raise ValueError(f"invalid model configuration: {', '.join(wrong)}")
    config = ViTConfig(**fields)
    if reason := too_many_blocks(config):
        raise ValueError(reason)
    _check_weights(build_on_meta(config), stored)
    size = pair(stored["pipeline"]["size"])
    batches = [each for batch in stored["batches"] for each in (batch, batch.get("unlabelled")) if each is not None]
    images = max((len(batch["images"]) for batch in batches), default=0)
    needed, left = config.depth * forward_bytes(config, size, images), memory_left()
    if left is not None and needed > left:
        raise ValueError(f"the step needs about {needed:,} bytes of memory, but {left:,} are free")
    return config


def _check_weights(model: nn.Module, stored: Mapping[str, Any]) -> None:
    """Refuse a model, on the meta device, that has more weights than the file, before any are allocated."""
    held = sum(weight.numel() for weight in stored["weights"].values())
    claimed = sum(weight.numel() for weight in model.state_dict().values())
    if claimed > held:
        raise ValueError(f"the model has {claimed:,} weights, the file {held:,}")


def _fields(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Turn lists back into tuples, which JSON lacks."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}
