"""Prepares a run: opens the data, completes the configuration from it, and builds the data loaders and the model.

Nothing is written to disk here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from PIL import Image

from vitreous.accelerate.cost import Cost, cost
from vitreous.accelerate.model import FastVisionTransformer, build
from vitreous.data.batches.loaders import ImageLoaders
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import ImageData, Split, open_source
from vitreous.errors import ConfigError, pluralize
from vitreous.machine.allocator import keep_freed_memory
from vitreous.machine.device import choose_device, choose_precision, describe_machine
from vitreous.machine.threads import one_thread
from vitreous.model.config import ViTConfig, pair
from vitreous.train.config import AUTO, RunConfig
from vitreous.train.console import Display
from vitreous.train.finetune.initialisation import Pretrained, open_pretrained
from vitreous.train.finetune.starting_point import choose_start, expand_short_name
from vitreous.train.finetune.trainable import choose_trained
from vitreous.train.multilabel.config import LabelsConfig
from vitreous.train.multilabel.losses import choose_loss

if TYPE_CHECKING:  # runs without a teacher or a second task do not import them
    from vitreous.predictor import Classifier
    from vitreous.train.auxiliary.self_training import Predicted
    from vitreous.train.auxiliary.task import AuxTask
    from vitreous.train.distil.distiller import Distiller

__all__ = [
    "Setup",
    "describe_hardware",
    "describe_model",
    "fit_to_data",
    "make_loading",
    "one_thread_if_tiny",
    "open_data",
    "prepare",
]

_MEASURED = 500  # training images from which mean and std are computed
_FETCHED = 64  # of them that are fetched at once, where they lie in a store
_TINY_STEP = 1e9  # FLOPs of the forward pass of a batch


@dataclass(frozen=True)
class Setup:
    """Everything that a run needs before it starts."""

    config: RunConfig  # with the numbers of classes and channels of the data
    data: ImageData
    pipeline: EvalPipeline  # the evaluation pipeline, with mean and std
    data_module: ImageLoaders  # no image is decoded yet
    model: FastVisionTransformer  # on the CPU: new, or with pretrained weights and a new head
    device: torch.device
    precision: str  # `bf16` or `float32`
    pretrained: Pretrained | None = None  # what a fine-tuning starts from, without its tensors
    distiller: Distiller | None = None  # what the run learns from a teacher
    auxiliary: AuxTask | None = None  # its second task
    predicted: Predicted | None = None  # the labels that a model has predicted for images without one

    @cached_property
    def cost(self) -> Cost:
        """The cost of one image. It is counted when it is asked for, which imports parts of torch's compiler."""
        return cost(self.config.model)


def prepare(config: RunConfig, explicit: Collection[str], view: Display) -> Setup:
    """Open the data, and build the data loaders and the model. Arguments as :func:`vitreous.train.run.run`."""
    device = choose_device(config.device)
    precision = choose_precision(config.precision, device)
    if device.type == "cpu":
        keep_freed_memory()  # before the first thread starts
    labellers: Sequence[Classifier] = ()
    pretrained, data, predicted = None, None, None
    if config.aux.method == "self-training":
        from vitreous.train.auxiliary.self_training import open_labellers

        labellers = open_labellers(config, device)
    if config.tune.source == AUTO:
        data, predicted = _open_and_label(config, labellers, view)
        config, explicit = choose_start(config, explicit, data, device, precision=precision, view=view)
    if config.tune.source is not None:  # before the data, which may take minutes to read: a wrong name fails at once
        config, explicit = expand_short_name(config, explicit)
        with one_thread():  # like the model below: it may resample position embeddings
            config, pretrained = open_pretrained(config, explicit)
        explicit = {*explicit, "in_channels"}
    if config.distil.teacher is not None:
        from vitreous.train.distil.teacher import open_teacher

        teacher = open_teacher(config.distil)
        targets = config.distil.targets
        if targets == "logits" and not teacher.model.config.num_classes:
            view.line("note", f"the teacher '{teacher.name}' has no classes: the model learns its features")
            targets = "features"
        config = replace(config, distil=replace(config.distil, teacher=teacher.name, targets=targets))
    if data is None:
        data, predicted = _open_and_label(config, labellers, view)
    config = fit_to_data(config, data, explicit)
    if config.aux.method == "auto":
        from vitreous.train.auxiliary.reconstruction import settle

        config = settle(config)
    pipeline, loading = make_loading(config, data)
    distiller = None
    if config.distil.teacher is not None:
        from vitreous.train.distil.distiller import Distiller

        distiller = Distiller(teacher, config, data, loading.batch_augment)
    torch.manual_seed(config.seed)
    with one_thread():  # the initial weights do not depend on the number of threads
        model = build(config.model)
        if pretrained is not None:
            pretrained.load_into(model)
            pretrained = replace(pretrained, state={})
        model = choose_trained(model, config.tune)
        auxiliary = _build_auxiliary(config, loading, data.several)
    return Setup(config, data, pipeline, loading, model, device, precision, pretrained, distiller, auxiliary, predicted)


def _open_and_label(
    config: RunConfig, labellers: Sequence[Classifier], view: Display
) -> tuple[ImageData, Predicted | None]:
    """Open the data, and have models label images without a label if the run learns from that."""
    data = open_data(config, view)
    if not labellers:
        return data, None
    from vitreous.train.auxiliary.self_training import label_images

    with view.counting("labelling") as count:
        return label_images(config, data, labellers, count)


def _build_auxiliary(config: RunConfig, loading: ImageLoaders, several: bool) -> AuxTask | None:
    if not config.aux.has_task:
        return None
    from vitreous.train.auxiliary.task import build_task

    per_step = (loading.train_sampler.batch_size, loading.num_beside)
    return build_task(config, per_step, choose_loss(config.labels, several), several=several)


def open_data(config: RunConfig, view: Display, *, needs_labels: bool = True) -> ImageData:
    """Open the data of a run, and show the progress of reading it."""
    with view.counting("reading") as count:
        return open_source(
            config.data,
            count,
            needs_labels=needs_labels,
            several=True,
            unlabelled="kept" if config.aux.sees_unlabelled else "left out",
            beside=config.aux.unlabelled if config.aux.sees_unlabelled else None,
        )


def make_loading(
    config: RunConfig, data: ImageData, *, crop_on_device: bool = False
) -> tuple[EvalPipeline, ImageLoaders]:
    """Return the evaluation pipeline, with mean and std, and the loaders. Arguments as ImageLoaders."""
    pipeline = EvalPipeline(pair(config.model.image_size), config.model.in_channels, config.preprocess)
    if not pipeline.has_statistics:
        pipeline = pipeline.with_measured_statistics(_sample(data.splits["train"]))
    loading = ImageLoaders(
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
        views=config.distil.views if config.distil.teacher is not None else None,
        shuffle_shards=config.data.shuffle_shards,
        unlabelled_ratio=config.aux.unlabelled_ratio if config.aux.sees_unlabelled else 0.0,
        unlabelled_whole=config.aux.sees_whole,
        crop_on_device=crop_on_device,
    )
    return pipeline, loading


def fit_to_data(config: RunConfig, data: ImageData, explicit: Collection[str] = ()) -> RunConfig:
    """Set the numbers of classes and channels to those of the data; channels that the user set stay."""
    classes, channels = len(data.classes), data.channels
    if "num_classes" in explicit and config.model.num_classes != classes:
        raise ConfigError(
            f"model.num_classes is {config.model.num_classes}, but {data.name} has {classes} classes: omit it, it is "
            "taken from the data"
        )
    if "in_channels" in explicit:
        channels = config.model.in_channels
    statistics = config.preprocess
    if len(statistics.mean) not in (0, channels) or len(statistics.std) not in (0, channels):
        statistics = replace(statistics, mean=(), std=())  # those of a recipe for other data: measure them instead
    model = replace(config.model, num_classes=classes, in_channels=channels)
    config = replace(config, model=model, preprocess=statistics)
    if data.several:
        from vitreous.train.multilabel.setup import for_several_labels

        return for_several_labels(config)
    if config.select == "mean_ap" or config.labels != LabelsConfig():
        option = "select mean_ap" if config.select == "mean_ap" else "labels"
        raise ConfigError(f"{option} is for images with several labels, and {data.name} has one of each: omit it")
    return config


def _sample(split: Split) -> Iterator[Image.Image]:
    step = max(1, len(split) // _MEASURED)
    for group in split.fetch_in_groups(range(0, len(split), step), _FETCHED):
        yield from map(split.image, group)


def describe_model(config: ViTConfig, parameters: int, flops: int | None = None) -> str:
    """Describe the model in one line, such as ``vit 128x6, patch 8 on 64 px: 65 tokens, 0.9 M parameters, ...``."""
    patch, image = ("x".join(map(str, dict.fromkeys(pair(side)))) for side in (config.patch_size, config.image_size))
    names = {"patch": "patch", "linear": "patch", "conv": "convolutional patch", "resnet": "ResNet patch"}
    stem = names.get(config.stem.kind, f"{config.stem.kind} patch")
    operations = "" if flops is None else f", {flops / 1e9:.2g} GFLOPs per image"
    return (
        f"vit {config.width}x{config.depth}, {stem} {patch} on {image} px: {config.tokens:,} tokens, "
        f"{parameters / 1e6:.3g} M parameters{operations}"
    )


def describe_hardware(device: torch.device, precision: str) -> str:
    """Describe the hardware and the precision, such as ``2 CPU cores, bf16``."""
    machine = describe_machine(device)
    used = torch.get_num_threads()
    cores = f"{used} of {machine.cores} CPU cores" if used < machine.cores else pluralize(machine.cores, "CPU core")
    note = ", which this hardware only emulates: float32 is faster" if precision == "bf16" and not machine.bf16 else ""
    return f"{machine.gpu or cores}, {precision}{note}"


@contextlib.contextmanager
def one_thread_if_tiny(setup: Setup) -> Iterator[None]:
    """Use a single thread for runs with tiny steps.

    Threads that synchronise after every small operation gain little, and lose much if another program uses a core.
    """
    per_image: float = setup.cost.flops
    if setup.distiller is not None and setup.distiller.in_loop:
        per_image += setup.distiller.teacher.flops
    tiny = setup.device.type == "cpu" and per_image * setup.config.batch_size < _TINY_STEP
    with one_thread() if tiny else contextlib.nullcontext():
        yield
