"""What a run is made of before it trains: the data, the configuration that fits it, the device, the model, the loaders.

Nothing is written here and no step is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import torch
from PIL import Image

from vitreous.data.batches.data_module import ImageDataModule
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import ImageData, Split, open_source
from vitreous.errors import ConfigError
from vitreous.machine.allocator import keep_freed_memory
from vitreous.machine.device import choose_device, choose_precision, describe_machine
from vitreous.machine.threads import one_thread
from vitreous.model.config import ViTConfig, pair
from vitreous.model.cost import Cost, cost
from vitreous.model.vit import VisionTransformer
from vitreous.train.config import RunConfig
from vitreous.train.console import View
from vitreous.train.finetune.initialisation import Start, start_from
from vitreous.train.finetune.trainable import choose_trained

__all__ = ["Prepared", "describe_model", "describe_place", "fit_to_data", "fitting_threads", "prepare"]

_MEASURED = 500  # pictures, evenly spread over the training images, whose mean and std are taken
_TINY_STEP = 1e9  # operations of a batch's forward pass


@dataclass(frozen=True)
class Prepared:
    """Everything that a run needs to start.

    Attributes:
        config: With the classes and channels of the data.
        data: The opened source.
        pipeline: With mean and std.
        loading: The loaders; nothing is decoded yet.
        model: Fresh, or with the source's tensors and a new head, on the CPU.
        cost: Of the model, for one picture.
        device: Where it trains.
        precision: `bf16` or `float32`.
        start: What a fine-tuning starts from, its tensors given away; None from random weights.
    """

    config: RunConfig
    data: ImageData
    pipeline: EvalPipeline
    loading: ImageDataModule
    model: VisionTransformer
    cost: Cost
    device: torch.device
    precision: str
    start: Start | None = None


def prepare(config: RunConfig, keep: Collection[str], view: View) -> Prepared:
    """Open the data and build all that trains on it.

    Args:
        config: Of the run.
        keep: Fields of the model that the user set: they are checked against the data, and in a fine-tuning against
            the source, instead of taken from it; and of the evaluation pipeline, as `preprocess.mean`.
        view: Shows the reading of files.
    """
    device = choose_device(config.device)
    precision = choose_precision(config.precision, device)
    if device.type == "cpu":
        keep_freed_memory()  # before threads begin
    start = None
    if config.tune.source is not None:  # before the pictures: they may take minutes, a wrong name should not
        with one_thread():  # as the model below: it may resample positions
            config, start = start_from(config, keep)
        keep = {*keep, "in_channels"}
    with view.counting("reading") as count:
        data = open_source(config.data, progress=count)
    config = fit_to_data(config, data, keep)
    pipeline = EvalPipeline(pair(config.model.image_size), config.model.in_channels, config.preprocess)
    if not pipeline.has_statistics:
        pipeline = pipeline.measured(_sample(data.splits["train"]))
    loading = ImageDataModule(
        data,
        pipeline,
        config.augment,
        batch_size=config.batch_size,
        accumulate=config.accumulate,
        seed=config.seed,
        workers=config.data.workers,
        memory_gb=config.data.memory_gb,
        label_smoothing=config.label_smoothing,
        balanced=config.balanced_sampling,
    )
    torch.manual_seed(config.seed)
    with one_thread():  # a run that is taken up before its first checkpoint begins with the same weights
        model = VisionTransformer(config.model)
        if start is not None:
            start.give(model)
            start = replace(start, state={})
        model = choose_trained(model, config.tune)
    return Prepared(config, data, pipeline, loading, model, cost(config.model), device, precision, start)


def fit_to_data(config: RunConfig, data: ImageData, keep: Collection[str] = ()) -> RunConfig:
    """Take the number of classes and channels from the data, unless the user set them.

    Raises:
        ConfigError: If the user's number of classes is not the data's.
    """
    classes, channels = len(data.classes), data.channels
    if "num_classes" in keep and config.model.num_classes != classes:
        raise ConfigError(
            f"model.num_classes is {config.model.num_classes}, but {data.name} has {classes} classes: leave it away, "
            "it is taken from the data"
        )
    if "in_channels" in keep:
        channels = config.model.in_channels
    statistics = config.preprocess
    if len(statistics.mean) not in (0, channels) or len(statistics.std) not in (0, channels):
        statistics = replace(statistics, mean=(), std=())  # a recipe's are for other data: measure them
    model = replace(config.model, num_classes=classes, in_channels=channels)
    return replace(config, model=model, preprocess=statistics)


def _sample(split: Split) -> Iterator[Image.Image]:
    """Some pictures of a split, evenly spread, the same each time."""
    step = max(1, len(split) // _MEASURED)
    return (split.picture(index) for index in range(0, len(split), step))


def describe_model(config: ViTConfig, size: Cost) -> str:
    """The model in one line, such as ``vit 128x6, patch 8 on 64 px: 65 tokens, 0.9 M parameters, ...``."""
    patch, image = ("x".join(map(str, dict.fromkeys(pair(side)))) for side in (config.patch_size, config.image_size))
    stem = {"conv": "convolutional patch", "resnet": "ResNet patch"}.get(config.stem, "patch")
    return (
        f"vit {config.width}x{config.depth}, {stem} {patch} on {image} px: {size.tokens:,} tokens, "
        f"{size.parameters / 1e6:.3g} M parameters, {size.flops / 1e9:.2g} GFLOPs a picture"
    )


def describe_place(device: torch.device, precision: str) -> str:
    """The hardware that is used and the precision in some words, such as ``2 CPU cores, bf16``."""
    machine = describe_machine(device)
    used = torch.get_num_threads()
    cores = f"{used} of {machine.cores} CPU cores" if used < machine.cores else f"{machine.cores} CPU cores"
    note = ", not in its hardware: float32 is faster" if precision == "bf16" and not machine.bf16 else ""
    return f"{machine.gpu or cores}, {precision}{note}"


@contextlib.contextmanager
def fitting_threads(ready: Prepared) -> Iterator[None]:
    """Within, a run whose steps are tiny computes on one core.

    Two threads that meet after each small operation gain little, and where another program wants the second core they
    wait for each other: ten times slower was measured.
    """
    tiny = ready.device.type == "cpu" and ready.cost.flops * ready.config.batch_size < _TINY_STEP
    with one_thread() if tiny else contextlib.nullcontext():
        yield
