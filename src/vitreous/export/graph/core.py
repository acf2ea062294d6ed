"""Everything in an exported graph after the resize, as one module: normalisation, model, temperature and thresholds.

Shapes: B batch, C channels, H x W pixels of the model's input, K classes, F features that the head's last layer reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.export.graph.thresholds import holds, is_unsure
from vitreous.model.block import NormAfterBlock
from vitreous.model.vit import VisionTransformer

__all__ = ["CLASS_MAP", "PIXELS", "Core", "output_names", "tap_names"]

PIXELS = "pixels"
"""Name of the resized image inside a graph, (B, C, H, W) with values from 0 to 255; also the first tap."""

CLASS_MAP = "class_map"
"""Name of the optional output (B, rows, columns): how much each patch speaks for the most probable class."""


class Core(nn.Module):
    """A model with the normalisation before it, and calibrated probabilities and decisions after it.

    Args:
        model: In float32, on the CPU, in evaluation mode.
        info: Pipeline, temperature and thresholds.
        dtype: What the model computes in. Normalisation, probabilities and decisions are float32 at least.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: VisionTransformer, info: ModelInfo, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = model
        self.info, self.dtype = info, dtype
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(info.pipeline.config, name)).view(-1, 1, 1))  # C 1 1

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of :func:`output_names`, then the taps, of pixels (B, C, H, W) from 0 to 255.

        Probabilities, logits, sets and labels are (B, K), features (B, F), unsure (B,). The taps are the values after
        each layer, in the order of :func:`tap_names`. They become named tensors in the graph, by which verification
        finds the first layer that differs.
        """
        normalised = (pixels.to(torch.float32) / 255 - self.mean) / self.std
        with _recorded(self.model) as seen:
            features = self.model(normalised.to(self.dtype), "features")
            outputs = [features.to(torch.float32) * 1]  # a new tensor: outputs must be distinct from intermediates
            if self.model.config.num_classes:
                logits = self.model.head(features).to(torch.float32)
                outputs = [self.info.probabilities(logits), logits, *outputs, *self._decisions(logits)]
        return (*outputs, normalised, *seen)

    def _decisions(self, logits: Tensor) -> Iterator[Tensor]:
        calibrated = logits.double() / self.info.temperature  # (B, K), float64 as where the thresholds were fitted
        if self.info.abstention is not None:
            yield is_unsure(self.info.abstention, calibrated)  # (B,)
        if self.info.conformal is not None:
            yield holds(self.info.conformal, calibrated.softmax(1))  # (B, K)
        if self.info.multilabel is not None:
            yield self.info.multilabel.present(logits)  # (B, K)


def output_names(info: ModelInfo, with_map: bool = False) -> list[str]:
    """Return the names of a graph's outputs, in order; `with_map` adds that of :mod:`.mapped`."""
    if not info.classes:
        return ["features"]
    decisions = {"unsure": info.abstention, "sets": info.conformal, "labels": info.multilabel}
    rules = [name for name, rule in decisions.items() if rule is not None]
    return ["probabilities", "logits", "features", *rules, *([CLASS_MAP] if with_map else [])]


def tap_names(model: VisionTransformer) -> list[str]:
    """Return the names of the layers whose values are tapped, in the order in which they are computed."""
    return ["normalisation", *(name for name, _, _ in _tapped(model))]


def _tapped(model: VisionTransformer) -> list[tuple[str, nn.Module, bool]]:
    """Return the tapped modules in the order in which they compute: a name, and whether their input is meant."""
    found: list[tuple[str, Any, bool]] = [
        ("patch embedding", model.patch_embed, False),
        ("tokens with positions", model.blocks[0], True),
    ]
    for index, block in enumerate(model.blocks):
        parts = {"attention norm": "norm1", "attention": "attn", "MLP norm": "norm2", "MLP": "mlp"}
        if isinstance(block, NormAfterBlock):
            parts = {name: parts[name] for name in ("attention", "attention norm", "MLP", "MLP norm")}
        found += [(f"block {index} {name}", getattr(block, part, None), False) for name, part in parts.items()]
        found.append((f"block {index}", block, False))
    ends = {
        "final norm": model.norm,
        "pooling": model.pool,
        "pooled norm": model.fc_norm,
        "pre-logits": model.pre_logits,
    }
    found += [(name, module, False) for name, module in ends.items()]
    return [each for each in found if isinstance(each[1], nn.Module) and not isinstance(each[1], nn.Identity)]


@contextlib.contextmanager
def _recorded(model: VisionTransformer) -> Iterator[list[Tensor]]:
    """Collect the values of the tapped modules, in order. Hooks run in eager mode and while a graph is traced."""
    seen: list[Tensor] = []

    def keep_input(module: nn.Module, inputs: Any) -> None:
        seen.append(inputs[0])

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)

    hooks = [
        module.register_forward_pre_hook(keep_input) if is_input else module.register_forward_hook(keep)
        for _, module, is_input in _tapped(model)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
