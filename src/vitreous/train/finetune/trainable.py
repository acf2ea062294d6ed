"""Which weights of a model a run trains: all, the head, the last blocks, or low-rank adapters; and class weights.

Plain PyTorch; adapters use peft. Frozen modules stay in evaluation mode.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vitreous.accelerate.model import FastVisionTransformer
from vitreous.errors import ConfigError, MissingExtraError, pluralize
from vitreous.model.vit import VisionTransformer
from vitreous.train.config import TuneConfig

__all__ = ["choose_trained", "class_weights", "evaluating", "freeze_modules", "merge_adapters"]

_ABOVE_BLOCKS = ("norm", "fc_norm", "attn_pool", "seq_pool", "pre_logits", "head")
_LORA_TARGETS = r"blocks\.\d+\.(attn\.(qkv|proj)|mlp\.(fc1|fc2))"
_EFFECTIVE_BETA = 0.999


def choose_trained(model: FastVisionTransformer, config: TuneConfig) -> FastVisionTransformer:
    """Set ``requires_grad`` of all parameters, and add adapters for `lora`, in place; return the same model."""
    depth = len(model.blocks)
    if (config.blocks or 0) > depth:
        raise ConfigError(
            f"tune is {config.mode}, but the model has {pluralize(depth, 'block')}: last-{depth} trains all"
        )
    model.requires_grad_(config.mode == "full")
    trained: list[nn.Module] = [model.head]
    if config.mode == "lora":
        _add_lora(model, config)
    elif config.blocks:
        trained += list(model.blocks)[-config.blocks :]
        trained += [module for name in _ABOVE_BLOCKS if (module := getattr(model, name, None)) is not None]
    for module in trained:
        module.requires_grad_(True)
    return model


def freeze_modules(model: nn.Module) -> None:
    """Set frozen modules to evaluation mode, which disables dropout and fixes the statistics of batch norm."""
    for path, module in model.named_modules():
        parameters = list(module.parameters())
        if path and parameters and not any(p.requires_grad for p in parameters):
            module.eval()
    if isinstance(model, VisionTransformer) and not model.patch_embed.training:
        model.pos_drop.eval()  # it has no parameters, so the loop skips it


def merge_adapters(model: VisionTransformer) -> VisionTransformer:
    """Return a copy with the adapters merged into the weight matrices; the model itself if it has none."""
    if not any(hasattr(module, "lora_A") for module in model.modules()):
        return model
    merged = copy.deepcopy(model)
    for path, module in list(merged.named_modules()):
        if hasattr(module, "lora_A"):
            layer = cast(Any, module)
            layer.merge()
            parent, _, name = path.rpartition(".")
            setattr(merged.get_submodule(parent), name, layer.get_base_layer())
    if hasattr(merged, "peft_config"):
        del merged.peft_config
    return merged


def class_weights(labels: npt.NDArray[np.int64], classes: int, kind: str) -> Tensor | None:
    """Compute the weight of each class in the loss (float32), as `RunConfig.class_weights` describes `kind`.

    The mean over the training images is 1; classes without images have weight 0. Of several labels, (N, K), the weight
    is that of the images with a label, those without have 1; a label that no image has, or every image, has 1.
    """
    if kind == "none":
        return None

    def size_of(counts: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        size = counts.astype(np.float64)
        return (1 - _EFFECTIVE_BETA**size) / (1 - _EFFECTIVE_BETA) if kind == "effective" else size

    if labels.ndim == 2:
        counts = labels.sum(axis=0)
        has, lacks = size_of(counts), size_of(len(labels) - counts)
        return torch.from_numpy(np.divide(lacks, has, out=np.ones_like(has), where=(has > 0) & (lacks > 0))).float()
    counts = np.bincount(labels, minlength=classes)
    size = size_of(counts)
    weights = np.divide(1, size, out=np.zeros_like(size), where=counts > 0)
    return torch.from_numpy(weights * counts.sum() / (weights @ counts)).float()


def _add_lora(model: VisionTransformer, config: TuneConfig) -> None:
    """Add low-rank adapters, initially zero, to the weight matrices of all blocks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations among peft and its dependencies
        try:
            import peft  # imports transformers, which takes seconds
        except ImportError as error:
            raise MissingExtraError("tune lora needs peft: pip install 'vitreous[lora]'") from error
        rank, alpha = config.lora_rank, config.lora_alpha
        lora = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=_LORA_TARGETS)
        peft.inject_adapter_in_model(lora, model)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode, and then each module to the mode it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
