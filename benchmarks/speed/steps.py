"""Training steps as functions to call: ours, and those of other libraries with their usual training code.

A step is forward, cross entropy, backward and AdamW, with gradient clipping where the library's training clips.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import greenlet
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import add_gradients, num_parts
from vitreous.accelerate.model import build
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.config import AugmentConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.machine.allocator import keep_freed_memory
from vitreous.model.config import ViTConfig, pair
from vitreous.train.config import OptimConfig
from vitreous.train.loop.module import VitModule
from vitreous.train.loop.optim import build_optimizer
from vitreous.train.loop.silence import silence_lightning
from vitreous.train.loop.trainer import build_trainer

Step = Callable[[], object]
OPTIM = OptimConfig(name="adamw", lr=1e-4, weight_decay=0.05, clip=1.0)


class Batch:
    """The batch that every step uses: uint8 images, the same normalised, and labels."""

    def __init__(self, config: ViTConfig, count: int, device: torch.device) -> None:
        draws = torch.Generator().manual_seed(0)
        size = (count, config.in_channels, *pair(config.image_size))
        self.bytes = torch.randint(0, 256, size, generator=draws, dtype=torch.uint8).to(device)
        self.labels = torch.randint(0, config.num_classes, (count,), generator=draws).to(device)
        colours = PreprocessConfig(mean=(0.5,) * config.in_channels, std=(0.25,) * config.in_channels)
        self.pipeline = EvalPipeline(pair(config.image_size), config.in_channels, colours)
        self.images = self.pipeline.normalise(self.bytes)
        self.device = device


def of_others(
    model: nn.Module, precision: str, batch: Batch, *, like_huggingface: bool, compiled: bool = False
) -> Step:
    """Return a step as a library's or tutorial's training makes it, from normalised images."""
    model = model.to(batch.device).train()
    # transformers' Trainer fuses AdamW and clips at 1; timm's, torchvision's and the tutorials' do neither.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=OPTIM.lr, weight_decay=OPTIM.weight_decay, fused=like_huggingface or None
    )
    if compiled:
        model.compile()

    def step() -> Tensor:
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(model(batch.images), batch.labels)
        loss.backward()
        if like_huggingface:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def ours_alone(config: ViTConfig, precision: str, batch: Batch, **compiling: Any) -> Step:
    """Return our step without a loop: model, precision, clipping and optimiser of `vitreous train`.

    Options are those of ``Module.compile``; without any, nothing is compiled.
    """
    model = build(config).to(batch.device).train()
    if compiling:
        model.compile(**compiling)
    if batch.device.type == "cpu":
        keep_freed_memory()  # as training does
    optimizer = build_optimizer(model, OPTIM)

    def step() -> Tensor:
        count = num_parts(model, batch.images)
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=precision == "bf16"):
            if count > 1:
                loss = add_gradients(model, batch.images, batch.labels, count)
            else:
                loss = F.cross_entropy(model(batch.images).float(), batch.labels)
        if count == 1:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIM.clip or torch.inf)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def ours_in_trainer(config: ViTConfig, precision: str, batch: Batch, **compiling: Any) -> Step:
    """Return our step within the loop of `vitreous train`, from uint8 images; options as in `ours_alone`."""
    augment = BatchAugment(AugmentConfig(flip=0.0), batch.pipeline, config.num_classes, 0)
    model = build(config)
    if compiling:
        model.compile(**compiling)
    module = VitModule(model, OPTIM, augment, batch.pipeline, progress=lambda _: 0.5)
    raw = {"images": batch.bytes, "labels": batch.labels, "epoch": 0, "offset": 0}
    return TrainerSteps(module, precision, batch.device, ({**raw, "step": step} for step in itertools.count()))


class TrainerSteps:
    """The steps of a Lightning Trainer, one per call.

    The Trainer waits for its batches: a call lets it fetch one, and returns when it asks for the next. It runs in the
    caller's thread all the while, as in `vitreous train`. In a thread of its own it has its own team of OpenMP threads
    besides the caller's; more threads than cores then go to sleep where they would wait, and each small operation wakes
    them: augmentation took twice as long.

    Args:
        module: To train.
        precision: `bf16` or `float32`.
        device: Where.
        batches: As the module reads them, without end.
    """

    def __init__(
        self, module: VitModule, precision: str, device: torch.device, batches: Iterable[dict[str, Any]]
    ) -> None:
        self._module, self._precision, self._device, self._batches = module, precision, device, batches
        self._caller = greenlet.getcurrent()
        self._training = greenlet.greenlet(self._run)
        self()

    def __call__(self) -> None:
        """Run one step; the first call also starts the Trainer."""
        self._training.switch()

    def _run(self) -> None:
        with silence_lightning():
            trainer = build_trainer(Path(tempfile.gettempdir()), self._device, self._precision, [], [])
            trainer.fit(self._module, self)

    def __len__(self) -> int:
        """Steps in an epoch; with a length, Lightning does not prefetch."""
        return 10**9

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield a batch for each requested step."""
        for batch in self._batches:
            self._caller.switch()
            yield batch
