"""The configuration of a run. `vitreous train` resolves it, saves it as recipe.yaml, and can run that file again.

The configurations of the model and the data are in `vitreous.model.config` and `vitreous.data.config`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from vitreous.checkpoint.shipped import SHIPPED
from vitreous.choices import unknown_choices
from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.errors import ConfigError, did_you_mean
from vitreous.model.config import ViTConfig, pair
from vitreous.train.auxiliary.config import AuxConfig
from vitreous.train.distil.config import DistilConfig
from vitreous.train.multilabel.config import LabelsConfig

__all__ = ["AUTO", "OptimConfig", "RunConfig", "TuneConfig", "parse_duration"]

_LOGGERS = ("tensorboard", "wandb", "mlflow")
AUTO = "auto"
"""As `tune.source`, a choice among the pretrained models of :mod:`vitreous.checkpoint.pretrained`; as `tune.mode`,
stages that are tried in turn."""

_COUNTS = ("batch_size", "accumulate", "epochs", "steps", "patience", "checkpoint_epochs", "devices", "nodes")
_MODES = (AUTO, "full", "linear", "lora")  # of fine-tuning, besides last-K


def parse_duration(text: str) -> float:
    """Convert a duration such as ``90s``, ``25m``, ``1h30m`` or ``2.5h`` to seconds.

    Raises:
        ConfigError: If the text is not a duration, has no unit, or is not above zero.
    """
    bare, number = text.strip().lower(), r"(\d*\.?\d+|\d+\.)"
    if re.fullmatch(number, bare, re.ASCII):
        raise ConfigError(
            f"duration '{text}' has no unit: write {bare}s for seconds, {bare}m for minutes, {bare}h for hours"
        )
    parts = re.fullmatch(rf"(?:{number}h)?(?:{number}m)?(?:{number}s)?", bare, re.ASCII)
    if not parts or not any(parts.groups()):
        raise ConfigError(f"'{text}' is not a duration: write it like 90s, 25m, 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total <= 0:
        raise ConfigError(f"duration '{text}' must be above zero")
    return total


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser and the learning rate schedule (:mod:`vitreous.train.loop.optim`).

    Args:
        name: `adamw`; `adam`; `sgd`, with momentum as in the paper's fine-tuning; or `muon`, which uses Muon for the
            matrices of the blocks and AdamW for all other parameters (Keller Jordan, 2024; like torch.optim.Muon).
        lr: Peak learning rate. With muon, this is the rate of the AdamW part.
        muon_lr: Peak learning rate of the Muon part.
        muon_stem: Whether Muon also trains the patch projection and the convolutions of the stem.
        weight_decay: Weight decay of the weight matrices; biases, norms, embeddings and tokens never decay. It is
            decoupled in adamw and muon, and added to the gradient in adam and sgd.
        betas: Decay rates of Adam's moving averages.
        momentum: Momentum of sgd and muon.
        schedule: Schedule after the warm-up. `cosine` and `linear` fall to `final_lr`. `one-cycle` is PyTorch's
            OneCycleLR with cosine annealing: it rises during `warmup`, then falls to almost zero. `constant` stays at
            the peak.
        warmup: Length of the linear warm-up, as a fraction of the run in [0, 1).
        final_lr: Final learning rate as a fraction of the peak.
        clip: Maximum gradient norm; None disables clipping.
        layer_decay: Factor in (0, 1] by which the learning rate falls from each layer to the one below it. In
            fine-tuning, this protects the general features of the lower layers. The head and the final norm have the
            peak rate, the last of L blocks has `layer_decay` times the peak, and the embeddings have `layer_decay` to
            the power L + 1 times the peak (BEiT, arXiv 2106.08254). None disables it.
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
        """Check choices and ranges, and report all problems in one error."""
        object.__setattr__(self, "betas", tuple(self.betas))
        problems, values = list(unknown_choices(self)), vars(self)
        positive, not_negative = ("lr", "muon_lr"), ("weight_decay", "final_lr")
        problems += [f"{n} is {values[n]}, it must be above 0" for n in positive if not values[n] > 0]
        problems += [f"{n} is {values[n]}, it cannot be negative" for n in not_negative if not values[n] >= 0]
        if not 0 <= self.warmup < 1:
            problems.append(f"warmup is {self.warmup}, it is a fraction of the run and must be in [0, 1)")
        if not 0 <= self.momentum < 1:
            problems.append(f"momentum is {self.momentum}, it must be in [0, 1)")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            problems.append(f"betas are {self.betas}, they must be two numbers in [0, 1)")
        if self.clip is not None and not self.clip > 0:
            problems.append(f"clip is {self.clip}, it must be above 0, or null to disable it")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            problems.append(f"layer_decay is {self.layer_decay}, it must be in (0, 1], or null to disable it")
        if problems:
            raise ConfigError("; ".join(problems))


@dataclass(frozen=True)
class TuneConfig:
    """The weights that a run starts from, and which of them it trains (:mod:`vitreous.train.finetune.trainable`).

    Args:
        source: A pretrained model: a model.safetensors, a run directory, or a file, folder or hub id of any supported
            family; a short name of `vitreous models --pretrained`; or `auto`, which chooses one of these names for the
            machine and the images. The run keeps the model's architecture and evaluation pipeline, and replaces its
            head. None starts from random weights.
        mode: What to train. `auto`: heads on features of the frozen model first, then, if time, memory and the number
            of images allow it, the last blocks, adapters or all weights from the best head; the best on the validation
            split is saved (:mod:`vitreous.train.finetune.stages`). `full`: all weights. `last-K`, such as `last-2`: the
            last K blocks, the final norm, the pooling and the head. `linear`: only the head. `lora`: the head, and
            low-rank adapters on the weight matrices of all blocks (arXiv 2106.09685; needs the extra `lora`). The
            adapters are merged into the matrices when the model is saved.
        lora_rank: Rank of the adapters.
        lora_alpha: Scale of the adapters: their output is multiplied by `lora_alpha / lora_rank`.
        probe: Whether to score the frozen features before training, with k-nearest neighbours and a linear probe. With
            mode `auto` they are stages of the run.
    """

    source: str | None = None
    mode: str = "full"
    lora_rank: int = 8
    lora_alpha: int = 16
    probe: bool = True

    def __post_init__(self) -> None:
        """Check choices and ranges, and report all problems in one error."""
        problems = []
        if self.mode not in _MODES and not re.fullmatch(r"last-[1-9]\d*", self.mode):
            hint = did_you_mean(self.mode, _MODES)
            problems.append(
                f"tune is '{self.mode}', it must be auto, full, linear, lora, or last-K such as last-2.{hint}"
            )
        problems += [
            f"{name} is {getattr(self, name)}, it must be at least 1"
            for name in ("lora_rank", "lora_alpha")
            if getattr(self, name) < 1
        ]
        if self.source is None and self.mode != "full":
            problems.append(f"tune {self.mode} trains only part of the weights, so it needs a pretrained model")
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def names_model(self) -> bool:
        """Whether `source` is a model, rather than none or a choice that is still to be made."""
        return self.source not in (None, AUTO)

    @property
    def blocks(self) -> int | None:
        """K of `last-K`; None for any other mode."""
        return int(self.mode.removeprefix("last-")) if self.mode.startswith("last-") else None


@dataclass(frozen=True)
class RunConfig:
    """One training run, from data to model file.

    Args:
        recipe: Name of the recipe that this configuration comes from.
        data: The data source and its splits.
        model: The Vision Transformer.
        preprocess: The evaluation pipeline.
        augment: Augmentation of the training batches.
        optim: Optimiser and schedule.
        tune: The weights that the run starts from, and which of them it trains.
        distil: A teacher, a larger trained model that the run learns from.
        aux: A second task beside classification, or labels that another model predicts.
        labels: The loss of data in which an image may have several labels.
        batch_size: Images per optimiser step.
        accumulate: Number of micro-batches per optimiser step. More of them save memory; the update stays the same.
        epochs: Passes over the training images. Ignored if `steps` or `budget` is set.
        steps: Total number of optimiser steps, used instead of epochs. The paper's fine-tuning counts steps.
        budget: Wall-clock time for the whole command with its unit, such as `90s`, `25m` or `1h30m`, used instead of
            epochs or steps. The run trains as many epochs as fit, and the schedule ends on time.
        label_smoothing: Fraction of the target spread over all classes, in [0, 1).
        class_weights: How to weight the classes in the training loss if they are imbalanced. `inverse`: by the inverse
            of the number of training images. `effective`: by the inverse of the effective number, beta 0.999 (arXiv
            1901.05555). Their mean over the training images is 1. Several labels: images with one as those without it.
        balanced_sampling: Whether each epoch draws equally many training images of every class. The length of an epoch
            stays the same, so some images of large classes are left out, and those of small classes repeat.
        ema: Decay per step of a moving average of the weights, which is evaluated and saved. None disables it.
        patches_last: Fraction of the run, at its end, that trains on all patches of a model with `patch_dropout`.
        patience: Number of epochs without a better validation score after which training stops. None disables early
            stopping.
        select: Validation metric that selects the epoch whose weights are saved: `top1`, `macro_f1` or `log_loss`; of
            several labels `mean_ap`, also in place of top1. `last` saves the weights of the last epoch.
        precision: `bf16`, `float32`, or `auto`, which is bf16 on hardware that supports it and float32 elsewhere.
        device: `auto`, `cpu`, `cuda`, a GPU such as `cuda:1`, or `mps`.
        devices: Processes on each machine: one for each GPU or, on CPUs, for a share of the cores. `batch_size` stays
            the number of images per optimiser step, of all processes together.
        nodes: Number of machines that run the same command (docs/explanation/scale.md).
        strategy: How processes share the model. `ddp`: each holds all weights (DistributedDataParallel). `fsdp`: each
            holds a part of weights, gradients and optimiser state (FSDP2). `auto` is ddp if that fits into memory.
        compile: Whether to compile the model with torch.compile.
        loggers: Loggers besides metrics.csv: any of `tensorboard`, `wandb` and `mlflow`, separated by commas.
        seed: Seed of all random numbers. Two CPU runs with the same seed give bit-identical weights.
        out: The run directory. None creates runs/NAME-1, -2 and so on.
        checkpoint_every: Wall-clock time between two checkpoints with its unit, such as `5m`.
        checkpoint_epochs: Number of epochs after each of which a checkpoint is saved too. None saves by time alone.
    """

    recipe: str = "folder"
    data: DataConfig = field(default_factory=DataConfig)
    model: ViTConfig = field(default_factory=ViTConfig)
    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    distil: DistilConfig = field(default_factory=DistilConfig)
    aux: AuxConfig = field(default_factory=AuxConfig)
    labels: LabelsConfig = field(default_factory=LabelsConfig)
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
    select: Literal["top1", "macro_f1", "log_loss", "mean_ap", "last"] = "top1"
    precision: Literal["auto", "bf16", "float32"] = "auto"
    device: str = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    compile: bool = False
    loggers: tuple[str, ...] = ()
    seed: int = 0
    out: str | None = None
    checkpoint_every: str = "5m"
    checkpoint_epochs: int | None = None

    def __post_init__(self) -> None:
        """Check choices and ranges, and report all problems in one error."""
        object.__setattr__(self, "loggers", tuple(self.loggers))
        problems = list(unknown_choices(self))
        problems += [
            f"{name} is {getattr(self, name)}, it must be at least 1"
            for name in _COUNTS
            if getattr(self, name) is not None and getattr(self, name) < 1
        ]
        if self.accumulate > 0 and self.batch_size % self.accumulate:
            problems.append(f"batch_size {self.batch_size} is not a multiple of accumulate {self.accumulate}")
        if not 0 <= self.label_smoothing < 1:
            problems.append(f"label_smoothing is {self.label_smoothing}, it must be in [0, 1)")
        if not 0 <= self.patches_last <= 1:
            problems.append(f"patches_last is {self.patches_last}, it is a fraction of the run and must be in [0, 1]")
        if self.ema is not None and not 0 < self.ema < 1:
            problems.append(f"ema is {self.ema}, it must be between 0 and 1, or null to disable it")
        problems += [*_small_first_problems(self), *_device_problems(self)]
        problems += [f"seed is {self.seed}, it must be at most {2**64 - 1}"] if self.seed >= 2**64 else []
        mode, processes, teacher = self.tune.mode, self.devices * self.nodes, self.distil.teacher is not None
        problems += self.distil.conflicts(self.augment, self.model.patch_dropout, mode, processes)
        problems += self.aux.conflicts(mode, teacher=teacher, compiles=self.compile, processes=processes)
        if self.balanced_sampling and self.class_weights != "none":
            problems.append(
                f"balanced_sampling and class_weights {self.class_weights} would correct for class imbalance twice: "
                "use only one of them"
            )
        if self.patience is not None and self.select == "last":
            problems.append("patience needs a metric to compare epochs, but select is last: use another metric")
        unknown = sorted(set(self.loggers) - set(_LOGGERS))
        if unknown:
            hint = did_you_mean(unknown[0], _LOGGERS)
            problems.append(f"unknown loggers {', '.join(unknown)}: choose from tensorboard, wandb and mlflow.{hint}")
        for name in ("budget", "checkpoint_every"):
            problems += _duration_problems(name, getattr(self, name))
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def verb(self) -> str:
        """The verb of the command that runs this configuration: `train`, or with a model of one's own `finetune`."""
        return "train" if self.tune.source in (None, SHIPPED) else "finetune"

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain values."""
        return asdict(self) | {"model": self.model.to_dict()}

    def patches_dropped(self, progress: float) -> float:
        """Return the fraction of patches that training drops when a fraction ``progress`` of the run is done."""
        return self.model.patch_dropout if progress < 1 - self.patches_last else 0.0

    @property
    def phases(self) -> tuple[tuple[float, float], ...]:
        """Start and end of each phase of the run, as fractions of the run in [0, 1].

        All steps of a phase take equally long. Images that grow, dropped patches and a later second task make several.
        """
        edges = {0.0, 1.0}
        count, until = len(self.augment.small_first), self.augment.small_until
        edges.update(until * (i + 1) / count for i in range(count))
        if self.model.patch_dropout:
            edges.add(1 - self.patches_last)
        edges.update(self.aux.phase_starts)
        return tuple(itertools.pairwise(sorted(edges)))


def _device_problems(config: RunConfig) -> Iterator[str]:
    """Yield a sentence if the device is unknown, or the run cannot have several processes."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,4})?", config.device, re.ASCII):
        hint = did_you_mean(config.device, ("auto", "cpu", "cuda", "mps"))
        yield f"device is '{config.device}', it must be auto, cpu, cuda, cuda:N or mps" + (f".{hint}" if hint else "")
    elif config.devices * config.nodes > 1 and (":" in config.device or config.device == "mps"):
        which = "one GPU" if ":" in config.device else "the one GPU of a Mac"
        several = f"devices {config.devices}" if config.devices > 1 else f"nodes {config.nodes}"
        yield f"device {config.device} is {which}, but {several} need more: use device auto, cuda or cpu"
    if config.strategy == "fsdp" and (config.distil.teacher or config.aux.is_named or config.device == "mps"):
        yield "strategy fsdp does not go with a teacher, aux or device mps: omit it"


def _duration_problems(name: str, text: str | None) -> Iterator[str]:
    """Yield a sentence if the text is not a valid duration."""
    try:
        if text is not None:
            parse_duration(text)
    except ConfigError as error:
        yield f"{name}: {error}"


def _small_first_problems(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each fraction in `small_first` whose image size is not a multiple of the patch size."""
    sides = tuple(zip(pair(config.model.image_size), pair(config.model.patch_size), strict=True))
    for share in config.augment.small_first:
        for side, patch in sides:
            small = round(side * share)
            if small % patch or not small:
                fits = ", ".join(f"{whole / side:g}" for whole in range(patch, side, patch))
                yield f"small_first {share:g} makes {small} of {side} pixels, no multiple of patch {patch}: use {fits}"
                break
