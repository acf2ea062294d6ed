"""The file of a step whose loss or gradient was not finite, and its repetition with a look at every module.

The file holds the weights, the step's batches as they were loaded, and what makes every draw: seed, epoch and step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.checkpoint.model_file import MOST_BLOCKS, skeleton
from vitreous.checkpoint.untrusted.documents import fits
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.config import AugmentConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import model_seed
from vitreous.errors import CheckpointError
from vitreous.machine.free_memory import memory_left
from vitreous.model.config import ViTConfig, pair
from vitreous.model.footprint import forward_bytes
from vitreous.model.vit import VisionTransformer
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.config import TuneConfig
from vitreous.train.finetune.trainable import choose_trained, class_weights, still
from vitreous.train.resume.non_finite import NonFiniteStepError
from vitreous.train.setup import Prepared

__all__ = ["REPLAY", "Finding", "replay", "write_replay"]

REPLAY = "nonfinite.replay"
"""Name of the file in a run's folder."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the repetition of a step showed.

    Attributes:
        step: What the run said of it.
        module: Name of the first module whose output, or else gradient, is not finite; None where all are.
        text: What was found, in a line.
        notes: What a reader should know besides, a line each.
    """

    step: str
    module: str | None
    text: str
    notes: tuple[str, ...]


def write_replay(path: Path, ready: Prepared, error: NonFiniteStepError) -> None:
    """Write what a replay of a step needs.

    Raises:
        OutputError: If it cannot be written.
    """
    config = ready.config
    labels, classes = ready.data.splits["train"].labels, len(ready.data.classes)
    model = dataclasses.replace(config.model, patch_dropout=config.patches_dropped(error.progress))
    write_state(
        path,
        {
            "replay": 1,
            "step": str(error),
            "model": dataclasses.asdict(model),
            "augment": dataclasses.asdict(config.augment),
            "tune": dataclasses.asdict(config.tune),
            "pipeline": ready.pipeline.to_dict(),
            "label_smoothing": config.label_smoothing,
            "seed": config.seed,
            "class_weights": class_weights(labels, classes, config.class_weights),
            "precision": ready.precision,
            "progress": error.progress,
            "behind": error.behind,
            "weights": error.weights,
            "batches": error.batches,
        },
    )


def replay(path: Path) -> Finding:
    """Repeat the step of a file in float32 on the CPU, and find where the first value that is not finite comes from.

    Raises:
        CheckpointError: If the file is missing, damaged, or no replay file.
    """
    stored = read_state(path)
    if not isinstance(stored, dict) or stored.get("replay") != 1:
        raise CheckpointError(f"'{path}' is no replay file, or one of another version of vitreous")
    try:
        model, augment = _rebuilt(stored)
        notes = []
        if stored["behind"]:
            notes.append(
                f"the weights are those of {stored['behind']} updates before the step: on a GPU the run looks at "
                "several steps at once, and later updates have passed over the step's own"
            )
        found = _repeat(model, augment, stored)
        if found is None and stored["precision"] != "float32":
            model, augment = _rebuilt(stored)
            found = _repeat(model, augment, stored, torch.bfloat16)
            if found is not None:
                notes.append(f"in float32 everything is finite: {stored['precision']} is what it takes")
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"'{path}' cannot be replayed: {error}") from error
    if found is None:
        return Finding(stored["step"], None, "every output and every gradient is finite here", tuple(notes))
    return Finding(stored["step"], found[0], found[1], tuple(notes))


def _rebuilt(stored: Mapping[str, Any]) -> tuple[VisionTransformer, BatchAugment]:
    """The model with the step's weights, and the augmentation of its pictures."""
    config = _config(stored)
    model = choose_trained(VisionTransformer(config), TuneConfig(**stored["tune"]))
    try:
        model.load_state_dict(stored["weights"])
    except RuntimeError as error:
        raise ValueError("the weights do not fit the model") from error
    still(model)
    pipeline = EvalPipeline.from_dict(stored["pipeline"])
    augment = AugmentConfig(**_fields(stored["augment"]))
    return model, BatchAugment(augment, pipeline, config.num_classes, stored["seed"], stored["label_smoothing"])


def _config(stored: Mapping[str, Any]) -> ViTConfig:
    """The model's configuration, once its weights are in the file and its step fits into the memory."""
    fields, kinds = _fields(stored["model"]), typing.get_type_hints(ViTConfig)
    odd = [f"{name} is {value!r:.60}" for name, value in fields.items() if not fits(value, kinds.get(name))]
    if odd:
        raise ValueError(f"the model's {', '.join(odd)}")
    config = ViTConfig(**fields)
    if config.depth > MOST_BLOCKS or sum(config.resnet_layers) > MOST_BLOCKS:
        raise ValueError(f"the model has {config.depth} blocks")
    held = sum(weight.numel() for weight in stored["weights"].values())
    claimed = sum(weight.numel() for weight in skeleton(config).state_dict().values())
    if claimed > held:
        raise ValueError(f"the model has {claimed:,} weights, the file {held:,}")
    size = pair(stored["pipeline"]["size"])
    images = max((len(batch["images"]) for batch in stored["batches"]), default=0)
    needed, left = config.depth * forward_bytes(config, size, images), memory_left()
    if left is not None and needed > left:
        raise ValueError(f"its step takes about {needed:,} bytes of memory, {left:,} are free")
    return config


def _fields(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a configuration as they were: JSON has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()}


def _repeat(
    model: VisionTransformer, augment: BatchAugment, stored: Mapping[str, Any], precision: torch.dtype | None = None
) -> tuple[str, str] | None:
    """Make the step but for its update; the name of the module where it goes wrong, and that in a line."""
    for name, value in model.state_dict().items():
        if not _finite(value):
            return name, f"the weights of {name} are not finite before the step"
    parts = len(stored["batches"])
    for batch in stored["batches"]:
        images, targets = augment.of_batch(batch, stored["progress"])
        if not _finite(images):
            return "pictures", "the augmented pictures are not finite: look at --augment and --preprocess.std"
        torch.manual_seed(model_seed(augment.seed, batch))
        cast: Any = torch.autocast("cpu", precision) if precision is not None else contextlib.nullcontext()
        with _watched(model) as seen:
            with cast:
                logits = model(images)
            if seen.output is not None:
                return seen.output, f"the output of {seen.output} is the first that is not finite"
            loss = F.cross_entropy(logits.float(), targets, weight=stored["class_weights"]) / parts
            if not _finite(loss):
                text = f"all outputs are finite, the loss is {loss.item()}: logits up to {logits.abs().max():.3g}"
                return "loss", text
            broken = _backward(loss)
            seen.gradient = seen.gradient or broken
        if seen.gradient is not None:
            return seen.gradient, f"the gradient at {seen.gradient} is the first, from the loss on, that is not finite"
    return _of_parameters(model)


def _of_parameters(model: nn.Module) -> tuple[str, str] | None:
    """What is wrong with the gradients of the parameters, and with their norm."""
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for name in reversed(grads):
        if not _finite(grads[name]):
            return name.rpartition(".")[0], f"the gradient of the parameter {name} is not finite"
    norm = torch.nn.utils.get_total_norm(list(grads.values()))
    if _finite(norm):
        return None
    largest = max(grads, key=lambda name: float(grads[name].abs().max()))
    size = float(grads[largest].abs().max())
    text = f"all gradients are finite, but their norm overflows: {largest} has up to {size:.3g}"
    return largest.rpartition(".")[0], text


def _backward(loss: Tensor) -> str | None:
    """Compute the gradients under torch's anomaly detection; the operation that it names, if any."""
    try:
        with torch.autograd.set_detect_anomaly(True):
            loss.backward()
    except RuntimeError as error:
        if "returned nan values" not in str(error):
            raise
        return str(error).partition("'")[2].partition("'")[0]
    return None


@dataclasses.dataclass
class _Seen:
    """Names of the modules at which the first values that are not finite were met."""

    output: str | None = None
    gradient: str | None = None


@contextlib.contextmanager
def _watched(model: nn.Module) -> Iterator[_Seen]:
    """Within, look at what every module gives forwards, and at what it is given backwards."""
    seen = _Seen()
    hooks = []
    for name, module in model.named_modules():
        called = name or "the model"

        def forward(module: nn.Module, given: Any, output: Any, called: str = called) -> None:
            if seen.output is None and isinstance(output, Tensor):
                if not _finite(output):
                    seen.output = called
                elif output.requires_grad:
                    output.register_hook(lambda gradient: backward(gradient, called))

        def backward(gradient: Tensor, called: str) -> None:
            if seen.gradient is None and not _finite(gradient):
                seen.gradient = called

        hooks.append(module.register_forward_hook(forward))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(value.isfinite().all())
