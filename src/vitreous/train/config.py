"""The configuration of a whole run: what `vitreous train` resolves, saves as recipe.yaml and can run again."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.errors import ConfigError, did_you_mean
from vitreous.model.config import ViTConfig, pair

__all__ = ["OptimConfig", "RunConfig", "TuneConfig", "parse_duration"]

_LOGGERS = ("tensorboard", "wandb", "mlflow")


def parse_duration(text: str) -> float:
    """Seconds of a duration such as ``90s``, ``25m``, ``1h30m`` or ``2.5h``.

    Raises:
        ConfigError: If the text is no duration, has no unit, or is not above zero.
    """
    bare = text.strip().lower()
    parts = re.fullmatch(r"(?:(\d*\.?\d+|\d+\.)h)?(?:(\d*\.?\d+|\d+\.)m)?(?:(\d*\.?\d+|\d+\.)s)?", bare, re.ASCII)
    if re.fullmatch(r"(\d*\.?\d+|\d+\.)", bare, re.ASCII):
        raise ConfigError(
            f"duration '{text}' has no unit: write {bare}s for seconds, {bare}m for minutes, {bare}h for hours"
        )
    if parts and any(parts.groups()):
        hours, minutes, secs = (float(p or 0) for p in parts.groups())
        seconds = hours * 3600 + minutes * 60 + secs
    else:
        raise ConfigError(f"'{text}' is no duration: write it like 90s, 25m, 1h30m")
    if seconds <= 0:
        raise ConfigError(f"duration '{text}' must be above zero")
    return seconds


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser and the learning rate's course (:mod:`vitreous.train.optim`).

    Args:
        name: `adamw`, `adam`, `sgd` (momentum, the paper's fine-tuning), or `muon`: Muon on the blocks' matrices and
            AdamW on the rest (Keller Jordan, 2024; as torch.optim.Muon).
        lr: Peak learning rate; with muon, of the AdamW part.
        muon_lr: Peak learning rate of the Muon part.
        muon_stem: Whether Muon trains the projection of the patches and a stem's convolutions too.
        weight_decay: Decoupled, on matrices only: never on biases, norms, embeddings or tokens.
        betas: AdamW's averaging factors.
        momentum: Of sgd and muon.
        schedule: Course after the warm-up. `cosine` and `linear` end at `final_lr`; `one-cycle` is PyTorch's
            OneCycleLR with cosine (rise over `warmup`, then down to nothing); `constant`.
        warmup: Linear warm-up, as a share of the run in [0, 1).
        final_lr: Last learning rate as a share of the peak.
        clip: Largest gradient norm; None is off.
        layer_decay: Factor in (0, 1] by which the rate falls from each layer to the one below it, for fine-tuning: the
            head and the final norm have the peak, the last block `layer_decay` of it, and the embeddings, below the
            first of L blocks, its power L + 1 (as BEiT, arXiv 2106.08254); None is off.
    """

    name: Literal["adamw", "adam", "sgd", "muon"] = "adamw"
    lr: float = 1e-3
    muon_lr: float = 0.02
    muon_stem: bool = False
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.95
    schedule: Literal["cosine", "linear", "one-cycle", "constant"] = "cosine"
    warmup: float = 0.1
    final_lr: float = 0.0
    clip: float | None = 1.0
    layer_decay: float | None = None

    def __post_init__(self) -> None:
        """Check ranges, all problems in one error."""
        object.__setattr__(self, "betas", tuple(self.betas))
        problems = [
            f"{n} is {getattr(self, n)}, it must be above 0" for n in ("lr", "muon_lr") if getattr(self, n) <= 0
        ]
        if not 0 <= self.warmup < 1:
            problems.append(f"warmup is {self.warmup}, it is a share of the run and must be in [0, 1)")
        if self.weight_decay < 0:
            problems.append(f"weight_decay is {self.weight_decay}, it cannot be negative")
        if self.clip is not None and self.clip <= 0:
            problems.append(f"clip is {self.clip}, it must be above 0, or null for none")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            problems.append(f"layer_decay is {self.layer_decay}, it must be in (0, 1], or null for none")
        if problems:
            raise ConfigError("; ".join(problems))


@dataclass(frozen=True)
class TuneConfig:
    """Which weights a run starts from, and which of them it trains (:mod:`vitreous.train.finetune.trainable`).

    Args:
        source: A trained model: a model.safetensors, a run folder, or any family's file, folder or hub id. Its
            structure and its evaluation pipeline are kept, its head is replaced. None starts from random weights.
        mode: What is trained: `full`: all weights. `last-K`, such as `last-2`: the last K blocks, the final norm, the
            pooling and the head. `linear`: the head alone. `lora`: the head and low-rank additions to the matrices of
            all blocks (arXiv 2106.09685; the extra `lora`), which are merged into these at the end.
        lora_rank: Rank of these additions.
        lora_alpha: They are multiplied by this over the rank.
        probe: Say first what the source's frozen features are worth: k nearest neighbours and a linear probe.
    """

    source: str | None = None
    mode: str = "full"
    lora_rank: int = 8
    lora_alpha: int = 16
    probe: bool = True

    def __post_init__(self) -> None:
        """Check the mode and the ranges, all problems in one error."""
        problems = []
        if self.mode not in ("full", "linear", "lora") and not re.fullmatch(r"last-[1-9]\d*", self.mode):
            problems.append(f"tune is '{self.mode}', it must be full, linear, lora, or last-K such as last-2")
        problems += [
            f"{name} is {getattr(self, name)}, it must be at least 1"
            for name in ("lora_rank", "lora_alpha")
            if getattr(self, name) < 1
        ]
        if self.source is None and self.mode != "full":
            problems.append(f"tune {self.mode} trains a part of the weights, so it needs trained ones to start from")
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def blocks(self) -> int | None:
        """K of `last-K`, else None."""
        return int(self.mode.removeprefix("last-")) if self.mode.startswith("last-") else None


@dataclass(frozen=True)
class RunConfig:
    """One training run, from data to model file.

    Args:
        recipe: Name of the recipe this came from.
        data: Where images come from and how they are split.
        model: The Vision Transformer.
        preprocess: The evaluation pipeline.
        augment: How training batches vary.
        optim: Optimiser and schedule.
        tune: Which weights the run starts from, and which of them it trains.
        batch_size: Images per optimiser step.
        accumulate: Split each step into this many parts, to save memory; the step itself stays the same.
        epochs: Passes over the training images. Without effect where `steps` or `budget` is set.
        steps: Optimiser steps in all, instead of epochs (the paper's fine-tuning counts steps).
        budget: Wall-clock time for the whole command with its unit, such as `90s`, `25m` or `1h30m`, instead of epochs
            or steps: as many epochs as fit, fewer or more than a recipe's. The schedule ends on time.
        label_smoothing: Share of the target spread over all classes, in [0, 1).
        class_weights: Weight of each class in the training loss, for classes of unlike size. `inverse`: one over its
            number of training images. `effective`: one over its effective number, with beta 0.999 (arXiv 1901.05555).
            Scaled so that the mean over the training images is 1.
        balanced_sampling: Show as many training images of one class as of another in each epoch, whose length stays
            the same: large classes in part, small ones several times.
        ema: Decay per step of an average of the weights, which is then what is evaluated and saved; None is off.
        patches_last: Share of the run, at its end, that trains on all patches where the model has `patch_dropout`.
        patience: Stop after this many epochs without a higher score on validation; None is off.
        select: Validation metric that picks the saved weights: `top1`, `macro_f1`, `log_loss`, or `last`.
        precision: `bf16` where the machine computes it, `float32` else; `auto` chooses and says so.
        device: `auto`, `cpu`, `cuda` or `mps`.
        compile: Compile the model with torch.compile.
        loggers: Besides metrics.csv, which is always written: any of `tensorboard`, `wandb`, `mlflow`, as a,b.
        seed: Of every random draw. Two CPU runs with the same seed end in the same bits.
        out: The run's folder; None makes runs/NAME-1, -2 and so on.
        checkpoint_every: Wall-clock time with its unit, such as `5m`, after which what a resume needs is saved again.
        checkpoint_epochs: Save it at the end of every so many epochs besides; None is off.
    """

    recipe: str = "folder"
    data: DataConfig = field(default_factory=DataConfig)
    model: ViTConfig = field(default_factory=ViTConfig)
    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    batch_size: int = 128
    accumulate: int = 1
    epochs: int = 40
    steps: int | None = None
    budget: str | None = None
    label_smoothing: float = 0.0
    class_weights: Literal["none", "inverse", "effective"] = "none"
    balanced_sampling: bool = False
    ema: float | None = None
    patches_last: float = 0.0
    patience: int | None = None
    select: Literal["top1", "macro_f1", "log_loss", "last"] = "top1"
    precision: Literal["auto", "bf16", "float32"] = "auto"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    compile: bool = False
    loggers: tuple[str, ...] = ()
    seed: int = 0
    out: str | None = None
    checkpoint_every: str = "5m"
    checkpoint_epochs: int | None = None

    def __post_init__(self) -> None:
        """Check ranges, all problems in one error."""
        object.__setattr__(self, "loggers", tuple(self.loggers))
        problems = [
            f"{name} is {getattr(self, name)}, it must be at least 1"
            for name in ("batch_size", "accumulate", "epochs", "steps", "patience", "checkpoint_epochs")
            if getattr(self, name) is not None and getattr(self, name) < 1
        ]
        if self.accumulate > 0 and self.batch_size % self.accumulate:
            problems.append(f"batch_size {self.batch_size} is not a multiple of accumulate {self.accumulate}")
        if not 0 <= self.label_smoothing < 1:
            problems.append(f"label_smoothing is {self.label_smoothing}, it must be in [0, 1)")
        if not 0 <= self.patches_last <= 1:
            problems.append(f"patches_last is {self.patches_last}, it is a share of the run and must be in [0, 1]")
        if self.ema is not None and not 0 < self.ema < 1:
            problems.append(f"ema is {self.ema}, it must be between 0 and 1, or null for none")
        problems += _small_misfits(self)
        if self.balanced_sampling and self.class_weights != "none":
            problems.append(
                f"balanced_sampling and class_weights {self.class_weights} would make up for unlike classes twice: "
                "use one of them"
            )
        if self.patience is not None and self.select == "last":
            problems.append("patience compares epochs, but select is last: choose top1, macro_f1 or log_loss")
        unknown = sorted(set(self.loggers) - set(_LOGGERS))
        if unknown:
            hint = did_you_mean(unknown[0], _LOGGERS)
            problems.append(f"unknown loggers {', '.join(unknown)}: tensorboard, wandb and mlflow are known.{hint}")
        for name in ("budget", "checkpoint_every"):
            problems += _duration_problems(name, getattr(self, name))
        if problems:
            raise ConfigError("; ".join(problems))

    def patches_dropped(self, progress: float) -> float:
        """Share of the patches that the model leaves out in training at a point of the run, progress in [0, 1]."""
        return self.model.patch_dropout if progress < 1 - self.patches_last else 0.0

    @property
    def phases(self) -> tuple[tuple[float, float], ...]:
        """Parts of the run, within each of which a step costs the same: where each begins and ends, in [0, 1].

        Smaller pictures and fewer patches make several; all others are one.
        """
        edges = {0.0, 1.0}
        count, until = len(self.augment.small_first), self.augment.small_until
        edges.update(until * (i + 1) / count for i in range(count))
        if self.model.patch_dropout:
            edges.add(1 - self.patches_last)
        return tuple(itertools.pairwise(sorted(edges)))


def _duration_problems(name: str, text: str | None) -> Iterator[str]:
    """Yield the sentence for a field that is no duration."""
    try:
        if text is not None:
            parse_duration(text)
    except ConfigError as error:
        yield f"{name}: {error}"


def _small_misfits(config: RunConfig) -> Iterator[str]:
    """Yield the sentence for each share in `small_first` that makes no whole patches."""
    sides = tuple(zip(pair(config.model.image_size), pair(config.model.patch_size), strict=True))
    for share in config.augment.small_first:
        for side, patch in sides:
            small = round(side * share)
            if small % patch or not small:
                fits = ", ".join(f"{whole / side:g}" for whole in range(patch, side, patch))
                yield f"small_first {share:g} makes {small} of {side} pixels, no multiple of patch {patch}: use {fits}"
                break
