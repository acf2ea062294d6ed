"""The class maps a second time: explicit softmax attention of the float64 reference, differentiated by its weights.

Shapes: B images, N tokens, P prefix tokens, (h, w) patches down and across.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit_reference import Seen, head, layer_norm, reference
from vitreous.model.config import ViTConfig, pair
from vitreous.model.vit import VisionTransformer


class Reference:
    """One pass over images, with everything that maps need; heads of a block stacked: B x H x N x N."""

    def __init__(self, model: VisionTransformer, images: Tensor, targets: Tensor) -> None:
        self.c, self.targets = model.config, targets
        self.w = {name: tensor.detach().double() for name, tensor in model.state_dict().items()}
        self.images = images.double().requires_grad_()
        self.seen: Seen = {}
        self.logits = reference(self.images, self.w, self.c, seen=self.seen)
        ph, pw = pair(self.c.patch_size)
        self.grid = images.shape[2] // ph, images.shape[3] // pw
        H = self.c.heads
        self.heads = [self.seen["share"][i : i + H] for i in range(0, H * self.c.depth, H)]

    def score(self, logits: Tensor) -> Tensor:
        return sum(logits[b, k] for b, k in enumerate(self.targets.tolist()))  # type: ignore[return-value]

    def patches(self, rows: Tensor) -> Tensor:
        return rows[:, self.c.prefix_tokens :].reshape(len(rows), *self.grid)

    def positive(self, shares: list[Tensor], logits: Tensor) -> Tensor:
        """The mean over heads of the positive part of weights times their gradients."""
        found = torch.autograd.grad(self.score(logits), shares, retain_graph=True)
        return torch.stack([(a * g).clamp(min=0) for a, g in zip(shares, found, strict=True)]).mean(0).detach()

    def by_scores(self, shares: list[Tensor]) -> Tensor:
        """The mean over heads of the positive part of the gradients by scores: by the Jacobian of softmax."""
        found = torch.autograd.grad(self.score(self.logits), shares, retain_graph=True)
        total = torch.zeros(len(self.images), shares[0][0].numel(), dtype=torch.float64)
        for share, gradient in zip(shares, found, strict=True):
            a, g = share.detach().flatten(1), gradient.flatten(1)  # one query: B x N
            jacobian = torch.diag_embed(a) - a[:, :, None] * a[:, None, :]
            total += (jacobian @ g[:, :, None])[:, :, 0].clamp(min=0)
        return total / len(shares)

    def pooling_rows(self, of_class: bool) -> Tensor:
        """What the pooling reads of each token, B x N."""
        B, N = len(self.images), self.seen["after"][-1].shape[1]
        rows, c = torch.zeros(B, N, dtype=torch.float64), self.c
        if c.pool.kind in ("map", "seq"):
            shares = self.seen["pool_share"]
            each = self.by_scores(shares) if of_class else torch.stack(shares).mean(0).detach()
            rows[:, N - each.reshape(B, -1).shape[1] :] = each.reshape(B, -1)
            return rows
        if c.pool.kind == "prefix":
            rows[:, : c.prefix_tokens] = 1 / c.prefix_tokens
            return rows
        if c.pool.kind != "cls":
            first = 0 if c.pool.prefix else c.prefix_tokens
            rows[:, first:] = 1 / (N - first)
        if c.pool.kind != "mean":
            rows[:, 0] += 1
        return rows / 2 if c.pool.kind == "cls-mean" else rows

    def gradient_attention(self) -> Tensor:
        N = self.seen["after"][-1].shape[1]
        R = torch.eye(N, dtype=torch.float64).repeat(len(self.images), 1, 1)
        for shares in self.heads:
            R = R + self.positive(shares, self.logits) @ R
        rows = self.pooling_rows(True)
        if self.c.pool.kind != "mean":
            return self.patches((rows[:, None] @ R)[:, 0])
        z = self.seen["tokens"][-1]
        (found,) = torch.autograd.grad(self.score(self.logits), z, retain_graph=True)
        maps = []
        for b, row in enumerate(rows):
            pooled = [t for t, share in enumerate(row.tolist()) if share > 0]
            given = {t: float(z[b, t].detach() @ found[b, t]) for t in pooled}
            above = torch.zeros_like(row)
            for t in pooled:
                above[t] = max(0.0, given[t] - sum(given.values()) / len(pooled))
            start = above / above.sum() if above.sum() else above
            added = start @ R[b] - start
            maps.append(start + (added / added.sum() if added.sum() else added))
        return self.patches(torch.stack(maps))

    def legrad(self) -> Tensor:
        maps = []
        for shares, after in zip(self.heads, self.seen["after"], strict=True):
            z = layer_norm(after, self.w, "norm", self.c.norm_eps) if self.c.final_norm == "tokens" else after
            found = torch.autograd.grad(self.score(head(z, self.w, self.c)), shares, retain_graph=True)
            maps.append(torch.stack(found).clamp(min=0).mean((0, 2)))
        return self.patches(torch.stack(maps).mean(0))

    def grad_cam(self, layer: int) -> Tensor:
        z = self.seen["before"][layer]
        (gradient,) = torch.autograd.grad(self.score(self.logits), z, retain_graph=True)
        P = self.c.prefix_tokens
        weights = gradient[:, P:].mean(1, keepdim=True)
        return self.patches((weights * z).sum(-1).clamp(min=0).detach())

    def rollout(self, fusion: str, residual: float) -> Tensor:
        N = self.seen["after"][-1].shape[1]
        R = torch.eye(N, dtype=torch.float64).repeat(len(self.images), 1, 1)
        for shares in self.heads:
            fused = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}[fusion](torch.stack(shares), 0).detach()
            fused = fused / fused.sum(-1, keepdim=True)
            R = (residual * torch.eye(N, dtype=torch.float64) + (1 - residual) * fused) @ R
        return self.patches((self.pooling_rows(False)[:, None] @ R)[:, 0])

    def attention(self, layer: int, heads: list[int]) -> Tensor:
        weights = torch.stack([self.heads[layer][h] for h in heads]).mean(0).detach()
        return self.patches((self.pooling_rows(False)[:, None] @ weights)[:, 0])

    def occlusion(self) -> Tensor:
        (h, w), out = self.grid, torch.zeros(len(self.images), *self.grid, dtype=torch.float64)
        ph, pw = self.images.shape[2] // h, self.images.shape[3] // w
        for r in range(h):
            for q in range(w):
                some = self.images.detach().clone()
                some[:, :, r * ph : (r + 1) * ph, q * pw : (q + 1) * pw] = 0
                change = self.logits.detach() - reference(some, self.w, self.c)
                out[:, r, q] = change[torch.arange(len(some)), self.targets]
        return out


def images_of(config: ViTConfig, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, config.in_channels, *pair(config.image_size), generator=generator)


def distance(found: Tensor, expected: Tensor) -> float:
    """Largest difference, in units of the largest expected value."""
    return float((found.double() - expected).abs().max() / expected.abs().max())
