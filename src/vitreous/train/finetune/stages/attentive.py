"""The attentive probe: one learned query over frozen patch tokens, as V-JEPA (arXiv 2404.08471) and AIM have.

It is the model's own pool `map`, over the patches alone, and a linear head. With one query, keys and values of all
tokens need not be computed: softmax(q K^T) V = (softmax((q W_k) Z^T) Z) W_v, and the bias of the keys cancels. That
takes 2 h / D of the products, and is the same function (tests/train/stages/test_attentive.py).

Shapes: B images, T tokens, P of them prefix, D width, h heads, d channels per head, K classes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.data.augment.mixing import smooth_targets
from vitreous.model.config import ViTConfig
from vitreous.model.heads import LinearHead
from vitreous.model.norm import build_norm
from vitreous.model.pools import AttentionPool, AttentionPoolModule
from vitreous.train.multilabel.losses import TargetLoss

__all__ = ["AttentiveProbe", "attentive_config", "fit_attentive", "patch_means", "pool_folded"]

_LR, _WEIGHT_DECAY, _BATCH = 1e-3, 0.05, 128
_EPOCHS, _WORK = 15, 4e10  # most passes over the training tokens, and token channels that all passes read together


def attentive_config(config: ViTConfig) -> ViTConfig:
    """Return the model that the probe becomes: the source with another pool, and a linear head on its output."""
    return replace(
        config,
        class_token=config.has_class_token,
        pool=AttentionPool(prefix=False),
        head=LinearHead(zero=config.head.zero),
        final_norm="tokens",
    )


class AttentiveProbe(nn.Module):
    """The pool and the head of the model of :func:`attentive_config`, on cached tokens.

    A source without a norm before its pool gets one, with weights of one, so that the query reads normalised tokens.
    """

    def __init__(self, source: ViTConfig) -> None:
        super().__init__()
        config = attentive_config(source)
        self.skip = config.prefix_tokens
        self.norm = build_norm(config) if source.final_norm != "tokens" else nn.Identity()
        self.norm.requires_grad_(False)
        self.pool = cast(AttentionPoolModule, config.pool.build(config, config.mlp))
        self.head = nn.Linear(config.features, config.num_classes)

    def initialise(self, weight: Tensor, bias: Tensor, seed: int) -> None:
        """Start as a linear head (K, D) on the mean of the patches: attention is even, and the MLP adds nothing."""
        pool, D = self.pool, self.pool.proj.in_features
        generator = torch.Generator().manual_seed(seed)  # on the CPU: the same numbers on every device

        def draw(into: Tensor, std: float) -> None:
            into.copy_(torch.empty(into.shape).normal_(std=std, generator=generator))

        with torch.no_grad():
            draw(pool.latent, 1.0)
            nn.init.zeros_(pool.q.weight)
            nn.init.zeros_(pool.q.bias)
            draw(pool.kv.weight[:D], D**-0.5)
            pool.kv.weight[D:].copy_(torch.eye(D))
            pool.kv.bias.zero_()
            pool.proj.weight.copy_(torch.eye(D))
            pool.proj.bias.zero_()
            for layer in (each for each in pool.mlp.modules() if isinstance(each, nn.Linear)):
                draw(layer.weight, layer.in_features**-0.5)
                layer.bias.zero_()
            last = [each for each in pool.mlp.modules() if isinstance(each, nn.Linear)][-1]
            nn.init.zeros_(last.weight)
            self.head.weight.copy_(weight)
            self.head.bias.copy_(bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map all tokens (B, P + T, D) to logits (B, K)."""
        z = self.norm(tokens[:, self.skip :].float())
        return cast(Tensor, self.head(pool_folded(self.pool, z)))

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights by their names in the model."""
        named = {f"attn_pool.{name}": value for name, value in self.pool.state_dict().items()}
        named |= {f"head.{name}": value for name, value in self.head.state_dict().items()}
        named |= {f"norm.{name}": value for name, value in self.norm.state_dict().items()}
        return {name: value.detach().cpu().clone() for name, value in named.items()}


def pool_folded(pool: AttentionPoolModule, z: Tensor) -> Tensor:
    """Compute what the pool computes of the tokens (B, T, D) that it reads, without keys and values: (B, D)."""
    D, h = z.shape[-1], pool.heads
    d = D // h
    W_k, W_v = pool.kv.weight.unflatten(0, (2, h, d))  # (h, d, D) each
    b_v = pool.kv.bias[D:]
    q = pool.q(pool.latent)[0, 0].unflatten(0, (h, d))  # (h, d)
    query = torch.einsum("hd,hdc->hc", q, W_k) / math.sqrt(d)  # (h, D)
    weights = (z @ query.T).softmax(1)  # (B, T, h)
    mixed = weights.transpose(1, 2) @ z  # (B, h, D)
    out = torch.einsum("bhc,hdc->bhd", mixed, W_v).flatten(1) + b_v  # (B, D)
    y = pool.proj(out)[:, None]  # (B, 1, D)
    return cast(Tensor, (y + pool.mlp(pool.norm(y)))[:, 0])


def fit_attentive(
    probe: AttentiveProbe,
    tokens: Tensor,
    labels: npt.NDArray[np.int64],
    val_tokens: Tensor,
    *,
    seed: int,
    smoothing: float,
    better: Callable[[Tensor, Tensor], bool],
    weight: npt.NDArray[np.float32] | None = None,
    loss: TargetLoss = F.cross_entropy,
    deadline: float | None = None,
) -> tuple[dict[str, Tensor], Tensor, int]:
    """Train a probe with AdamW, and keep the epoch that is best on the validation split, the start included.

    Args:
        probe: Initialised, on its device.
        tokens: Of the training images, (n, P + T, D) float16 on the CPU.
        labels: Classes of the images, (n,), or several labels of each, (n, K) of 0 and 1.
        val_tokens: Of the validation images, (n, P + T, D), in float32 to be scored as the model will be.
        seed: Of the order of the images.
        smoothing: Label smoothing.
        better: Whether validation logits (n, K) beat others.
        weight: Of each class in the loss, (K,), applied as in training; None: all 1.
        loss: Of logits and targets, (B, K) each.
        deadline: ``time.monotonic()`` after which no further epoch begins.

    Returns:
        The tensors by name, the validation logits (n, K), and the epoch, counted from 1.
    """
    device = probe.head.weight.device
    classes = torch.from_numpy(labels).to(device)
    weights = None if weight is None else torch.from_numpy(weight).to(device)
    epochs = max(1, min(_EPOCHS, int(_WORK // max(1, tokens.numel()))))
    batch = min(_BATCH, len(tokens))
    steps = len(tokens) // batch
    optimizer = torch.optim.AdamW(_groups(probe), lr=_LR, betas=(0.9, 0.99))
    generator = torch.Generator().manual_seed(seed)
    logits = _evaluate(probe, val_tokens)
    best = probe.tensors(), logits, 0
    for epoch in range(epochs):
        if deadline is not None and time.monotonic() >= deadline:
            break
        order = torch.randperm(len(tokens), generator=generator)
        for step in range(steps):
            progress = (epoch * steps + step + 0.5) / (epochs * steps)
            for group in optimizer.param_groups:
                group["lr"] = _LR * min(1.0, progress / 0.1) * (1 + math.cos(math.pi * progress)) / 2
            rows = order[step * batch : (step + 1) * batch]
            logits = probe(tokens[rows].to(device))
            targets = smooth_targets(classes[rows.to(device)], logits.shape[1], smoothing)
            optimizer.zero_grad()
            loss(logits, targets, weight=weights).backward()
            optimizer.step()
        logits = _evaluate(probe, val_tokens)
        if not bool(torch.isfinite(logits).all()):
            break
        if better(logits, best[1]):
            best = probe.tensors(), logits, epoch + 1
    return best


def _groups(probe: AttentiveProbe) -> list[dict[str, Any]]:
    matrices = [p for p in probe.parameters() if p.requires_grad and p.ndim == 2]
    others = [p for p in probe.parameters() if p.requires_grad and p.ndim != 2]
    return [{"params": matrices, "weight_decay": _WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]


@torch.no_grad()
def _evaluate(probe: AttentiveProbe, tokens: Tensor) -> Tensor:
    device = probe.head.weight.device
    return torch.cat([probe(part.to(device)).float().cpu() for part in tokens.split(_BATCH)])


def patch_means(probe: AttentiveProbe, tokens: Tensor) -> Iterator[Tensor]:
    """Yield the means of the normalised patch tokens, batch by batch: what the probe reads at its start, (B, D)."""
    with torch.no_grad():
        for part in tokens.split(_BATCH):
            yield probe.norm(part[:, probe.skip :].float().to(probe.head.weight.device)).mean(1).cpu()
