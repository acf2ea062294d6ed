"""Which of a model's weights a run trains: all, the head, the last blocks, or low-rank additions to frozen ones.

Plain torch, and peft where additions are wanted. Frozen parts compute as in evaluation.
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

from vitreous.errors import ConfigError, MissingExtraError
from vitreous.model.vit import VisionTransformer
from vitreous.train.config import TuneConfig

__all__ = ["choose_trained", "class_weights", "plain", "still"]

_ABOVE_BLOCKS = ("norm", "fc_norm", "attn_pool", "seq_pool", "pre_logits", "head")
_LORA_TARGETS = r"blocks\.\d+\.(attn\.(qkv|proj)|mlp\.(fc1|fc2))"
_EFFECTIVE_BETA = 0.999


def choose_trained(model: VisionTransformer, config: TuneConfig) -> VisionTransformer:
    """Freeze what is not to be trained, in place; with `lora`, put the additions in.

    Args:
        model: Any state; its parameters' ``requires_grad`` is set.
        config: Reads `mode`, `lora_rank` and `lora_alpha`.

    Returns:
        The same model.

    Raises:
        ConfigError: If there are fewer blocks than are to be trained.
        MissingExtraError: If additions are wanted and peft is not installed.
    """
    depth = len(model.blocks)
    if (config.blocks or 0) > depth:
        raise ConfigError(f"tune is {config.mode}, but the model has {depth} blocks: last-{depth} trains them all")
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


def still(model: nn.Module) -> None:
    """Set frozen parts to evaluation: no dropout in them, and batch norm keeps its statistics."""
    for path, module in model.named_modules():
        parameters = list(module.parameters())
        if path and parameters and not any(p.requires_grad for p in parameters):
            module.eval()
    if isinstance(model, VisionTransformer) and not model.patch_embed.training:
        model.pos_drop.eval()  # it has no parameter that would tell


def plain(model: VisionTransformer) -> VisionTransformer:
    """The model without additions: itself where it has none, else a copy that has them merged into its matrices."""
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
    """Weight of each class, as `RunConfig.class_weights` says.

    Args:
        labels: Of the training images, (n,).
        classes: K.
        kind: `none`, `inverse` or `effective`.

    Returns:
        float32 (K,), with mean 1 over the images; 0 for a class without one. None for `none`.
    """
    if kind == "none":
        return None
    counts = np.bincount(labels, minlength=classes)
    size = counts.astype(np.float64)
    if kind == "effective":
        size = (1 - _EFFECTIVE_BETA**size) / (1 - _EFFECTIVE_BETA)
    weights = np.divide(1, size, out=np.zeros_like(size), where=counts > 0)
    return torch.from_numpy(weights * counts.sum() / (weights @ counts)).float()


def _add_lora(model: VisionTransformer, config: TuneConfig) -> None:
    """Put low-rank additions to the matrices of all blocks, zero at first."""
    with _no_warnings():
        try:
            import peft  # here: it brings transformers, which takes seconds
        except ImportError as error:
            raise MissingExtraError("tune lora needs peft: pip install 'vitreous[lora]'") from error
        wanted = peft.LoraConfig(
            r=config.lora_rank, lora_alpha=config.lora_alpha, lora_dropout=0.0, target_modules=_LORA_TARGETS
        )
        peft.inject_adapter_in_model(wanted, model)


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Within, what other libraries deprecate among themselves is not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
