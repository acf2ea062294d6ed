"""A training step as a function to call: of other libraries as their own training makes it, and of ours.

Each is forward, cross entropy, backward, AdamW, and clipping where the library's own training clips.
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

from vitreous.accelerate.shares import add_gradients, shares
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.config import AugmentConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.machine.allocator import keep_freed_memory
from vitreous.model.config import ViTConfig, pair
from vitreous.model.vit import VisionTransformer
from vitreous.train.config import OptimConfig
from vitreous.train.module import VitModule
from vitreous.train.optim import build_optimizer
from vitreous.train.trainer import build_trainer, quiet

Step = Callable[[], object]
OPTIM = OptimConfig(name="adamw", lr=1e-4, weight_decay=0.05, clip=1.0)


class Batch:
    """One batch that every step reads: uint8 pictures, and the same normalised, with their labels."""

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
    """A step as a library's or tutorial's own training makes it, from pictures that are ready."""
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
    """Our step without a loop around it: the model, precision, clipping and optimiser of `vitreous train`.

    Options are those of ``Module.compile``; without any, nothing is compiled.
    """
    model = VisionTransformer(config).to(batch.device).train()
    if compiling:
        model.compile(**compiling)
    if batch.device.type == "cpu":
        keep_freed_memory()  # as training does
    optimizer = build_optimizer(model, OPTIM)

    def step() -> Tensor:
        count = shares(model, batch.images)
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
    """Our step with all that the loop of `vitreous train` does, from uint8 pictures; options as of `ours_alone`."""
    augment = BatchAugment(AugmentConfig(flip=0.0), batch.pipeline, config.num_classes, 0)
    model = VisionTransformer(config)
    if compiling:
        model.compile(**compiling)
    module = VitModule(model, OPTIM, augment, batch.pipeline, progress=lambda _: 0.5)
    raw = {"images": batch.bytes, "labels": batch.labels, "epoch": 0, "offset": 0}
    return TrainerSteps(module, precision, batch.device, ({**raw, "step": step} for step in itertools.count()))


class TrainerSteps:
    """The steps of a Lightning Trainer, one at a call.

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
        """Make one step; the first call goes up to it."""
        self._training.switch()

    def _run(self) -> None:
        with quiet():
            trainer = build_trainer(Path(tempfile.gettempdir()), self._device, self._precision, [], [])
            trainer.fit(self._module, self)

    def __len__(self) -> int:
        """Of an epoch, in steps: with a length, Lightning does not read ahead."""
        return 10**9

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The batches, each when a step is asked for."""
        for batch in self._batches:
            self._caller.switch()
            yield batch
