"""Token merging (ToMe, arXiv 2210.09461): a trained model made faster by joining patches that look alike.

Shapes: B batch, H heads, N tokens, P prefix tokens ([CLS] and registers), n = N - P patch tokens, D width, d channels
of a head, r tokens joined in a block.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import ConfigError
from vitreous.model.kernels import attend, project_heads
from vitreous.model.vit import Block, VisionTransformer

__all__ = ["TokenMerging", "join_alike", "merge_tokens"]


def merge_tokens(model: VisionTransformer, count: int) -> None:
    """Have a model's encoder join tokens in each block, in evaluation mode; no training is needed.

    Args:
        model: Changed in place; its weights stay as they are.
        count: Tokens joined in each block (r). At most half of the patches that are left are joined in one. 0: none,
            which is the plain model.

    Raises:
        ConfigError: If the count is negative, or attention itself needs each token's place: a joined one has several.
    """
    if count < 0:
        raise ConfigError(f"merge_tokens is {count}, it must be at least 0")
    if count and model.config.position in ("rope-2d", "relative"):
        raise ConfigError(
            f"tokens cannot be merged with position {model.config.position}: it needs the place of each token in every "
            "block. Models with learned, sincos-2d or no positions can; use merge_tokens 0"
        )
    model.merging = TokenMerging(count, model.config.prefix_tokens) if count else None


@dataclass(frozen=True)
class TokenMerging:
    """Runs encoder blocks on fewer and fewer tokens.

    Between attention and MLP (section 3 of the paper) patches are dealt in turn into two sets. Each of the first finds
    the one in the second whose keys are most like its own, and the `count` most alike join theirs: the mean, weighted
    by how many patches each stands for. A token that stands for s patches counts s times in attention ("proportional
    attention": log s is added to its scores).

    Args:
        count: Tokens joined in each block (r).
        prefix: Leading tokens that are never joined (P).
    """

    count: int
    prefix: int

    def __call__(self, blocks: nn.ModuleList, z: Tensor, wanted: int | None = None) -> Tensor:
        """Map tokens B x N x D to B x N x D: in each patch's place stands the token that it became a part of.

        With ``wanted``, compute no more than the first so many tokens of the result, at most P.
        """
        places = torch.arange(z.shape[1] - self.prefix, device=z.device).expand(z.shape[0], -1)  # B n
        sizes = torch.ones_like(z[:, self.prefix :, :1])  # B n 1
        for index, block in enumerate(cast("Iterable[Block]", blocks)):
            read = wanted if index == len(blocks) - 1 else None
            z, keys = _attention(block, z, F.pad(sizes, (0, 0, self.prefix, 0), value=1.0) if index else None, read)
            front, patches = z[:, : self.prefix], z[:, self.prefix :]
            joined = min(self.count, patches.shape[1] // 2)
            if joined:
                patches, sizes, moved = join_alike(patches, sizes, keys[:, self.prefix :], joined)
                places = moved.gather(1, places)
                z = torch.cat((front, patches), 1)
            z = z + block.ls2(block.mlp(block.norm2(z)))  # equation 3 of arXiv 2010.11929
        return z if wanted else torch.cat((z[:, : self.prefix], _rows(z, self.prefix + places)), 1)


def join_alike(x: Tensor, sizes: Tensor, keys: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Join the tokens that are most alike (bipartite soft matching, section 3 of the paper).

    Args:
        x: Tokens, B x n x D.
        sizes: How many patches each stands for, B x n x 1.
        keys: What likeness is judged by, B x n x d.
        count: How many tokens disappear, at most n / 2.

    Returns:
        Tokens B x (n - count) x D, their sizes, and where each of the n went, B x n.
    """
    keys = F.normalize(keys, dim=-1)
    likeness, partner = (keys[:, ::2] @ keys[:, 1::2].transpose(1, 2)).max(-1)  # B n/2: of the even ones
    order = likeness.topk(likeness.shape[1], dim=1).indices  # as argsort, which the ONNX exporter lacks
    gone, kept = order[:, :count], order[:, count:].sort(1).values
    n, left = x.shape[1], kept.shape[1]

    weighted = torch.cat((x * sizes, sizes), -1)  # B n D+1: one move for both
    target = partner.gather(1, gone)  # B r
    joins = target[:, None] == torch.arange(n // 2, device=x.device)[:, None]  # B n/2 r
    odd = weighted[:, 1::2] + joins.to(x.dtype) @ _rows(weighted, 2 * gone)  # a sum of rows, as a product
    weighted = torch.cat((_rows(weighted, 2 * kept), odd), 1)

    moved = torch.zeros_like(keys[..., 0], dtype=torch.long)
    stays = torch.arange(left, device=x.device).expand(x.shape[0], -1)
    moved[:, ::2] = torch.zeros_like(partner).scatter(1, kept, stays).scatter(1, gone, target + left)
    moved[:, 1::2] = torch.arange(left, n - count, device=x.device)
    sizes = weighted[..., -1:]
    return weighted[..., :-1] / sizes, sizes, moved


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Take rows (B, m) of tables B x n x D, as B x m x D: whole, where ``gather`` takes number by number."""
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (index + first).flatten()).unflatten(0, (x.shape[0], index.shape[1]))


def _attention(block: Block, z: Tensor, sizes: Tensor | None, wanted: int | None) -> tuple[Tensor, Tensor]:
    """Equation 2 with proportional attention: return tokens B x N x D, and their keys' mean over heads, B x N x d.

    With ``wanted``, only the first so many tokens.
    """
    attn = block.attn
    q, k, v = project_heads(block.norm1(z), attn.qkv, 3, attn.heads)  # B H N d
    q, k = attn.q_norm(q), attn.k_norm(k)
    bias = None if sizes is None else sizes.log().transpose(1, 2)[:, None]  # B 1 1 N
    mixed = attend(q[:, :, :wanted], k, v, bias).transpose(1, 2).flatten(2)  # B N D
    return z[:, :wanted] + block.ls1(attn.proj(mixed)), k.mean(1)
