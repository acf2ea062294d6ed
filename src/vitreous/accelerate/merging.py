"""Token merging (ToMe, arXiv 2210.09461): a trained model made faster by merging patch tokens that are similar.

Shapes: B batch, H heads, T = P + N tokens, P prefix tokens ([CLS] and registers), N patches, D width, d channels of a
head, r tokens merged in a block.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.accelerate.kernels import attend, project_heads
from vitreous.accelerate.model import FastBlock, FastVisionTransformer, accelerate
from vitreous.errors import ConfigError
from vitreous.model.block import BlockConfig
from vitreous.model.positions import POSITIONS, Position
from vitreous.model.positions.learned_base import LearnedPosition
from vitreous.model.vit import VisionTransformer

__all__ = ["TokenMerging", "merge_similar", "merge_tokens", "merged_tokens"]


def merge_tokens(model: VisionTransformer, count: int) -> None:
    """Make a model's encoder merge tokens in each block, in evaluation mode; no training is needed.

    Args:
        model: Changed in place, and accelerated; its weights stay as they are.
        count: Tokens merged in each block (r), at most half of its patch tokens. 0 turns merging off.

    Raises:
        ConfigError: If the count is negative; if blocks need the position of each token, because a merged one has
            several; if attention needs whole rows and columns; or if the model has a user's own blocks.
    """
    if count < 0:
        raise ConfigError(f"merge_tokens is {count}, it must be at least 0")
    position, attention = model.config.position, model.config.attention
    if count and attention.needs_grid:
        raise ConfigError(
            f"tokens cannot be merged with attention {attention.kind}: merged patches leave no whole rows and columns. "
            "Models with attention softmax can; use merge_tokens 0"
        )
    if count and position.acts_in_blocks:
        free = [_with_layers(kind()) for kind in POSITIONS if not kind().acts_in_blocks]
        raise ConfigError(
            f"tokens cannot be merged with position {_with_layers(position)}: it needs the position of each token in "
            f"every block. Models with position {' or '.join(free)} can; use merge_tokens 0"
        )
    if count and model.config.block.kind != BlockConfig.kind:
        raise ConfigError(
            f"tokens cannot be merged in blocks of the kind {model.config.block.kind}, only between the attention and "
            f"the MLP of {BlockConfig.kind} blocks: use merge_tokens 0"
        )
    fast = accelerate(model)
    if isinstance(fast, FastVisionTransformer):
        fast.merging = TokenMerging(count, model.config.prefix_tokens) if count else None
    elif count:
        raise ConfigError("tokens cannot be merged in a model with classes of your own: use merge_tokens 0")


def _with_layers(position: Position) -> str:
    """Return the kind, and before which blocks a learned embedding is added."""
    return f"{position.kind} with layers {position.layers}" if isinstance(position, LearnedPosition) else position.kind


def merged_tokens(model: nn.Module) -> int:
    """Return how many tokens a model merges in each block, 0 for none."""
    merging = model.merging if isinstance(model, FastVisionTransformer) else None
    return cast(TokenMerging, merging).count if merging else 0


@dataclass(frozen=True)
class TokenMerging:
    """Runs encoder blocks on fewer and fewer tokens.

    Between attention and MLP, patch tokens are dealt alternately into two sets (section 3). Each token of the first set
    finds the token of the second whose keys are most similar, and the r most similar pairs are merged: their mean,
    weighted by how many patches each represents. A token that represents s patches counts s times in attention
    ("proportional attention": log s is added to its scores).

    Args:
        count: Tokens merged in each block (r).
        prefix: Leading tokens that are never merged (P).
    """

    count: int
    prefix: int

    def __call__(self, blocks: nn.ModuleList, z: Tensor, queries: int | None = None) -> Tensor:
        """Map tokens (B, T, D) to (B, T, D); each patch gets the token that it was merged into.

        Args:
            blocks: The encoder's.
            z: Tokens.
            queries: How many tokens of the result are needed, from the first, at most P; None is all.
        """
        merged_into = torch.arange(z.shape[1] - self.prefix, device=z.device).expand(z.shape[0], -1)  # (B, N)
        sizes = torch.ones_like(z[:, self.prefix :, :1])  # (B, N, 1)
        for index, block in enumerate(cast("Iterable[FastBlock]", blocks)):
            first = queries if index == len(blocks) - 1 else None
            z, keys = _attention(block, z, F.pad(sizes, (0, 0, self.prefix, 0), value=1.0) if index else None, first)
            prefix, patches = z[:, : self.prefix], z[:, self.prefix :]
            count = min(self.count, patches.shape[1] // 2)
            if count:
                patches, sizes, target = merge_similar(patches, sizes, keys[:, self.prefix :], count)
                merged_into = target.gather(1, merged_into)
                z = torch.cat((prefix, patches), 1)
            z = z + block.ls2(block.mlp(block.norm2(z)))  # equation 3 of arXiv 2010.11929
        return z if queries else torch.cat((z[:, : self.prefix], _rows(z, self.prefix + merged_into)), 1)


def merge_similar(x: Tensor, sizes: Tensor, keys: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the most similar tokens (bipartite soft matching, section 3).

    Args:
        x: Patch tokens, (B, N, D).
        sizes: How many patches each represents, (B, N, 1).
        keys: Attention keys, whose cosine is the similarity, (B, N, d).
        count: Tokens to merge (r), at most N / 2.

    Returns:
        Tokens (B, N - r, D), their sizes, and the index of the token that each of the N became, (B, N).
    """
    keys = F.normalize(keys, dim=-1)
    similarity, partner = (keys[:, ::2] @ keys[:, 1::2].transpose(1, 2)).max(-1)  # (B, N / 2): of the even tokens
    order = similarity.topk(similarity.shape[1], dim=1).indices  # the ONNX exporter lacks argsort
    merged, kept = order[:, :count], order[:, count:].sort(1).values
    N, left = x.shape[1], kept.shape[1]

    weighted = torch.cat((x * sizes, sizes), -1)  # (B, N, D + 1): moved together
    target = partner.gather(1, merged)  # (B, r)
    is_target = target[:, None] == torch.arange(N // 2, device=x.device)[:, None]  # (B, N / 2, r)
    odd = weighted[:, 1::2] + is_target.to(x.dtype) @ _rows(weighted, 2 * merged)  # sums rows
    weighted = torch.cat((_rows(weighted, 2 * kept), odd), 1)

    became = torch.zeros_like(keys[..., 0], dtype=torch.long)
    stays = torch.arange(left, device=x.device).expand(x.shape[0], -1)
    became[:, ::2] = torch.zeros_like(partner).scatter(1, kept, stays).scatter(1, merged, target + left)
    became[:, 1::2] = torch.arange(left, N - count, device=x.device)
    sizes = weighted[..., -1:]
    return weighted[..., :-1] / sizes, sizes, became


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Take rows (B, m) of tables (B, N, D), as (B, m, D); faster than ``gather``, which takes single numbers."""
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (index + first).flatten()).unflatten(0, (x.shape[0], index.shape[1]))


def _attention(block: FastBlock, z: Tensor, sizes: Tensor | None, queries: int | None) -> tuple[Tensor, Tensor]:
    """Apply equation 2 with proportional attention; return tokens (B, T, D) and the keys' mean over heads, (B, T, d).

    With ``queries``, return only that many tokens, from the first.
    """
    attn = block.attn
    q, k, v = project_heads(block.norm1(z), attn.qkv, 3, attn.heads)  # (B, H, T, d)
    q, k = attn.q_norm(q), attn.k_norm(k)
    bias = None if sizes is None else sizes.log().transpose(1, 2)[:, None]  # (B, 1, 1, T)
    mixed = attend(q[:, :, :queries], k, v, bias).transpose(1, 2).flatten(2)  # (B, T, D)
    return z[:, :queries] + block.ls1(attn.proj(attn.norm(mixed))), k.mean(1)
