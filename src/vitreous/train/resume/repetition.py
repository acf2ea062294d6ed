"""Repeats a training step without its update, and finds the first module whose output or gradient is not finite.

Shapes: B batch, C channels, H x W pixels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitreous.accelerate.batch_parts import MaskedLoss, Passes
from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.rng import model_seed
from vitreous.train.auxiliary.task import AuxTask
from vitreous.train.multilabel.losses import TargetLoss

__all__ = ["Found", "Repetition"]


@dataclasses.dataclass(frozen=True)
class Found:
    """Where the first value that is not finite arises."""

    module: str  # or what else it arises in: "images", "loss", or an operation
    text: str  # in one line


class Repetition:
    """A step of classification, of pretraining, or of classification with a second task, whose module it then is.

    Args:
        model: Or the objective of a pretraining run, on the CPU, with the weights before the step.
        augment: As in the run.
        accumulate: Micro-batches of the step.
        class_weights: Of the loss, (K,).
        loss: Of logits and targets; None in pretraining.
        task: The second task, with its weights before the step.
        precision: Of the forward passes, in place of float32.
    """

    def __init__(
        self,
        model: nn.Module,
        augment: BatchAugment,
        *,
        accumulate: int,
        class_weights: Tensor | None = None,
        loss: TargetLoss | None = None,
        task: AuxTask | None = None,
        precision: torch.dtype | None = None,
    ) -> None:
        self.model, self.augment, self.task = model, augment, task
        self.accumulate, self.class_weights, self.loss, self.precision = accumulate, class_weights, loss, precision
        self.found: Found | None = None

    @property
    def eval_model(self) -> nn.Module:
        """The model, in place of its moving average, which is not repeated."""
        return self.model

    def run(self, batches: Sequence[Mapping[str, Any]], progress: float) -> Found | None:
        """Repeat the step; return the first that is not finite, None if all of it is."""
        trained = [self.model] if self.task is None else [self.model, self.task]
        for name, value in chain.from_iterable(module.state_dict().items() for module in trained):
            if not _is_finite(value):
                return Found(name, f"the weights of {name} are not finite before the step")
        for batch in batches:
            self._learn(batch, progress)
            if self.found is not None:
                return self.found
        return _check_gradients(dict(chain.from_iterable(module.named_parameters() for module in trained)))

    def _learn(self, batch: Mapping[str, Any], progress: float) -> None:
        """Add the gradients of a micro-batch."""
        if self.task is not None:
            self.task.add_gradients(self, batch, progress, {})
            return
        loss_of = self.loss
        if loss_of is None:
            objective = cast(Any, self.model)
            views = objective.views(batch, self.augment, progress)
            torch.manual_seed(model_seed(self.augment.seed, batch))
            self._check(views, lambda: (objective(views).loss, None))
            return
        images, targets = self.augment.augment_batch(batch, progress)
        torch.manual_seed(model_seed(self.augment.seed, batch))

        def classify() -> tuple[Tensor, Tensor]:
            logits = self.model(images)
            return loss_of(logits.float(), targets, weight=self.class_weights), logits

        self._check((images,), classify)

    def backpropagate_with(
        self, extra: nn.Module, loss_of: MaskedLoss, images: Tensor, targets: Tensor, masked: Tensor | None = None
    ) -> Tensor:
        """Check a pass of the second task, unless one before it has failed."""
        model = cast(FastVisionTransformer, self.model)
        shown = (images,) if masked is None else (images, masked)
        return self._check(shown, lambda: (loss_of(Passes.of(model, images, masked), slice(None)), None))

    def _check(self, views: Sequence[Tensor], compute: Callable[[], tuple[Tensor, Tensor | None]]) -> Tensor:
        """Run a pass, forwards and backwards; return its loss, detached.

        Args:
            views: The augmented images, (B, C, H, W) each.
            compute: Returns the loss and, in classification, the logits.
        """
        if self.found is not None:
            return torch.zeros(())
        if not all(map(_is_finite, views)):
            self.found = Found("images", "the augmented images are not finite: check --augment and --preprocess.std")
            return torch.zeros(())
        precision = self.precision
        autocast: Any = (
            torch.autocast("cpu", precision, cache_enabled=False) if precision is not None else contextlib.nullcontext()
        )
        modules = [self.model.named_modules()]
        if self.task is not None:
            modules.append((name, module) for name, module in self.task.named_modules() if name)
        with _hooked(chain.from_iterable(modules)) as first:
            with autocast:
                loss, logits = compute()
            if first.output is not None:
                self.found = Found(first.output, f"the output of {first.output} is the first that is not finite")
            elif not _is_finite(loss):
                size = "it arises in the loss itself" if logits is None else f"logits up to {logits.abs().max():.3g}"
                self.found = Found("loss", f"all outputs are finite, the loss is {loss.item()}: {size}")
            else:
                operation = _backward(loss / self.accumulate)
                if source := first.gradient or operation:
                    text = f"the gradient at {source} is the first, going backwards from the loss, that is not finite"
                    self.found = Found(source, text)
        return loss.detach()


def _check_gradients(parameters: Mapping[str, nn.Parameter]) -> Found | None:
    """Check the gradients of parameters, last layer first, and then their norm."""
    grads = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    for name in reversed(grads):
        if not _is_finite(grads[name]):
            return Found(name.rpartition(".")[0], f"the gradient of the parameter {name} is not finite")
    norm = torch.nn.utils.get_total_norm(list(grads.values()))
    if _is_finite(norm):
        return None
    largest = max(grads, key=lambda name: float(grads[name].abs().max()))
    size = float(grads[largest].abs().max())
    text = f"all gradients are finite, but their norm overflows: that of {largest} has values up to {size:.3g}"
    return Found(largest.rpartition(".")[0], text)


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
def _hooked(modules: Iterator[tuple[str, nn.Module]]) -> Iterator[_FirstNonFinite]:
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
        for name, module in modules:
            hooks.enter_context(module.register_forward_hook(partial(forward, name or "the model")))
        yield first


def _is_finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(value.isfinite().all())
