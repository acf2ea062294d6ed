"""Measures how fast this machine trains a Transformer, in half a second and without a model of this package."""

from __future__ import annotations

import time

import torch
from torch import nn

__all__ = ["training_rate"]

_BATCH, _TOKENS, _WIDTH = 8, 197, 384  # one block of a ViT-S/16
_SECONDS, _STEPS = 0.5, 20  # measured until one of them is reached


def training_rate(device: torch.device, precision: str) -> float:
    """Return the FLOPs per second of forward and backward passes of one block, 2 per multiply-add.

    The random numbers of the caller stay as they are.
    """
    with torch.random.fork_rng(devices=[]):
        layer = nn.TransformerEncoderLayer(_WIDTH, 6, 4 * _WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        layer = layer.to(device)
        x = torch.zeros(_BATCH, _TOKENS, _WIDTH, device=device, requires_grad=True)
    flops = 3 * _BATCH * (24 * _TOKENS * _WIDTH**2 + 4 * _TOKENS**2 * _WIDTH)
    _step(layer, x, precision)  # the first one allocates
    started, done, seconds = time.monotonic(), 0, 0.0
    while done < _STEPS and seconds < _SECONDS:
        _step(layer, x, precision)
        done, seconds = done + 1, time.monotonic() - started
    return done * flops / seconds


def _step(layer: nn.Module, x: torch.Tensor, precision: str) -> None:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bf16"):
        y = layer(x)
    total = y.float().sum()
    total.backward()
    total.item()  # waits for the device
