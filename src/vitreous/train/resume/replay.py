"""Saves a step whose loss or gradient was not finite to a file, and repeats it to find the module where that begins.

The file holds the weights, the step's batches as they were loaded, and what determines every random draw: the seed, the
epoch and the step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitreous.accelerate.cost import forward_bytes
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_config import invalid_fields, too_many_blocks
from vitreous.checkpoint.model_file import build_on_meta
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.config import AugmentConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import model_seed
from vitreous.errors import CheckpointError
from vitreous.machine.free_memory import memory_left
from vitreous.model.config import ViTConfig, pair
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.config import RunConfig, TuneConfig
from vitreous.train.finetune.trainable import choose_trained, class_weights, freeze_modules
from vitreous.train.multilabel.config import LabelsConfig
from vitreous.train.multilabel.losses import choose_loss
from vitreous.train.resume.non_finite import NonFiniteStepError
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
            "replay": 3,
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
            "auxiliary": config.aux.method if config.aux.has_task else None,
            "weights": error.weights,
            "batches": error.batches,
        },
    )


def _pretraining(config: RunConfig) -> dict[str, Any] | None:
    """Return the method of a pretraining run, with its options; None for a classifier."""
    own = {field.name for field in dataclasses.fields(config)} - {f.name for f in dataclasses.fields(RunConfig)}
    return {name: value for name, value in dataclasses.asdict(config).items() if name in own} if own else None


def replay(path: Path) -> Finding:
    """Repeat a step in float32 on the CPU, and find the module where the first value that is not finite arises.

    A step that is finite in float32 is repeated in bfloat16 if the run computed in it.
    """
    stored = read_state(path)
    if not isinstance(stored, dict) or stored.get("replay") != 3:
        raise CheckpointError(f"'{path}' is not a replay file, or another version of vitreous wrote it")
    try:
        notes = []
        if stored["behind"]:
            notes.append(
                f"the weights are from {stored['behind']} updates before the step: on a GPU the run checks several "
                "steps at once, and later updates have overwritten the step's own weights"
            )
        if teacher := stored.get("teacher"):
            notes.append(f"the step is repeated without the teacher '{teacher}', on the labels alone")
        if task := stored.get("auxiliary"):
            notes.append(f"the step is repeated without the second task, {task}, on the labelled images alone")
        found = _repeat(*_restore(stored), stored)
        if found is None and stored["precision"] != "float32":
            found = _repeat(*_restore(stored), stored, torch.bfloat16)
            if found is not None:
                notes.append(f"the step is finite in float32: the failure needs {stored['precision']}")
        module, text = found or (None, "every output and every gradient is finite in this replay")
        return Finding(stored["step"], module, text, tuple(notes))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"'{path}' cannot be replayed: {error}") from error


def _restore(stored: Mapping[str, Any]) -> tuple[nn.Module, BatchAugment]:
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
    try:
        model.load_state_dict(stored["weights"])
    except RuntimeError as error:
        raise ValueError("the weights do not fit the model") from error
    freeze_modules(model)
    augment, smoothing = AugmentConfig(**_fields(stored["augment"])), stored["label_smoothing"]
    views = stored.get("views")  # files of earlier versions lack it
    return model, BatchAugment(augment, pipeline, stored["classes"], stored["seed"], smoothing, views=views)


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
    images = max((len(batch["images"]) for batch in stored["batches"]), default=0)
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


def _repeat(
    model: nn.Module,
    augment: BatchAugment,
    stored: Mapping[str, Any],
    precision: torch.dtype | None = None,
) -> tuple[str, str] | None:
    """Repeat the step without its update; return the module where it fails and a line about it, or None."""
    for name, value in model.state_dict().items():
        if not _is_finite(value):
            return name, f"the weights of {name} are not finite before the step"
    parts = len(stored["batches"])
    for batch in stored["batches"]:
        if stored["pretrain"] is not None:
            views, targets = cast(Any, model).views(batch, augment, stored["progress"]), None
        else:
            images, targets = augment.augment_batch(batch, stored["progress"])
            views = (images,)
        if not all(map(_is_finite, views)):
            return "images", "the augmented images are not finite: check --augment and --preprocess.std"
        torch.manual_seed(model_seed(augment.seed, batch))
        autocast: Any = (
            torch.autocast("cpu", precision, cache_enabled=False) if precision is not None else contextlib.nullcontext()
        )
        with _hooked(model) as first:
            with autocast:
                output = model(views[0]) if targets is not None else model(views).loss
            if first.output is not None:
                return first.output, f"the output of {first.output} is the first that is not finite"
            loss = (output if targets is None else _loss(output.float(), targets, stored)) / parts
            if not _is_finite(loss):
                size = (
                    f"logits up to {output.abs().max():.3g}" if targets is not None else "it arises in the loss itself"
                )
                return "loss", f"all outputs are finite, the loss is {loss.item()}: {size}"
            operation = _backward(loss)
        if source := first.gradient or operation:
            return source, f"the gradient at {source} is the first, going backwards from the loss, that is not finite"
    return _check_gradients(model)


def _loss(logits: Tensor, targets: Tensor, stored: Mapping[str, Any]) -> Tensor:
    """Return the mean loss of logits and targets, (B, K) each."""
    labels = stored.get("labels")
    loss = choose_loss(LabelsConfig(**(labels or {})), labels is not None)
    return loss(logits, targets, weight=stored["class_weights"])


def _check_gradients(model: nn.Module) -> tuple[str, str] | None:
    """Check the parameters' gradients, last layer first, and then their norm."""
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for name in reversed(grads):
        if not _is_finite(grads[name]):
            return name.rpartition(".")[0], f"the gradient of the parameter {name} is not finite"
    norm = torch.nn.utils.get_total_norm(list(grads.values()))
    if _is_finite(norm):
        return None
    largest = max(grads, key=lambda name: float(grads[name].abs().max()))
    size = float(grads[largest].abs().max())
    text = f"all gradients are finite, but their norm overflows: that of {largest} has values up to {size:.3g}"
    return largest.rpartition(".")[0], text


def _backward(loss: Tensor) -> str | None:
    """Compute the gradients under torch's anomaly detection; return the operation that it reports, if any."""
    try:
        with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Error detected in", UserWarning)  # the error itself names the operation
            loss.backward()
    except RuntimeError as error:
        if "returned nan values" not in str(error):
            raise
        return str(error).partition("'")[2].partition("'")[0]
    return None


@dataclasses.dataclass
class _FirstNonFinite:
    """Names of the modules that gave the first output and received the first gradient that is not finite."""

    output: str | None = None
    gradient: str | None = None


@contextlib.contextmanager
def _hooked(model: nn.Module) -> Iterator[_FirstNonFinite]:
    """Check the output of every module, and the gradient that it receives, while the context is open."""
    first = _FirstNonFinite()

    def forward(label: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if first.output is None and isinstance(output, Tensor):
            if not _is_finite(output):
                first.output = label
            elif output.requires_grad:
                output.register_hook(lambda gradient: backward(gradient, label))

    def backward(gradient: Tensor, label: str) -> None:
        if first.gradient is None and not _is_finite(gradient):
            first.gradient = label

    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_hook(partial(forward, name or "the model")))
        yield first


def _is_finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(value.isfinite().all())
