"""How weights start: the schemes of the paper's JAX code, timm, torchvision and others.

A scheme has one method for each role that a layer can have; a part tells the scheme which of its layers has which role,
in its own ``initialise``. All draws come from torch's global generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitreous.model.positions import Learned, Position
from vitreous.model.positions.sincos_2d import sincos_table

__all__ = ["SCHEMES", "Jax", "Mimetic", "Scheme", "Timm", "Torchvision"]


class Scheme:
    """PyTorch's layer defaults; tokens and positions from N(0, 1), as the public notebook tutorials have them."""

    class_token_std: ClassVar[float] = 1.0
    position_std: ClassVar[float] = 1.0
    zero_head: ClassVar[bool] = False
    """Whether the last layer starts at zero where the configuration does not say."""

    def initialise(self, model: nn.Module) -> None:
        """Draw all weights in place. Parts may change those of their layers; tokens and positions come last."""
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                self.layer(module)
        for hook in ("initialise", "initialise_tokens"):
            for module in model.modules():
                if hasattr(module, hook):
                    getattr(module, hook)(self)

    def layer(self, layer: nn.Linear | nn.Conv2d) -> None:
        """Any dense layer or convolution, unless a role below overrides it."""

    def attention(self, qkv: nn.Linear, proj: nn.Linear) -> None:
        """The projections of an encoder block's attention; queries, keys and values are stacked in ``qkv``."""

    def mlp(self, *layers: nn.Linear) -> None:
        """The dense layers of an MLP."""

    def attention_pool(self, q: nn.Linear, kv: nn.Linear, proj: nn.Linear) -> None:
        """The projections of attention pooling."""

    def pre_logits(self, layer: nn.Linear) -> None:
        """The hidden layer of the MLP head."""

    def latent(self, query: Tensor) -> None:
        """The learned query of attention pooling, 1 x 1 x D; as big_vision's MAPHead."""
        nn.init.xavier_uniform_(query[0])

    def finish(self, model: nn.Module, position: Position, grid: tuple[int, int]) -> None:
        """What is set after everything is drawn."""

    def problems(self, position: Position, width: int) -> Iterator[str]:
        """Yield one sentence if the scheme cannot initialise the position embedding at this width."""
        yield from ()


class Jax(Scheme):
    """google-research/vision_transformer, models_vit.py: xavier uniform in the encoder, flax defaults outside."""

    class_token_std, position_std, zero_head = 0.0, 0.02, True

    def layer(self, layer: nn.Linear | nn.Conv2d) -> None:
        std = math.sqrt(1 / layer.weight[0].numel()) / 0.87962566103423978  # truncated at 2 sigma, variance 1 / fan-in
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)

    def attention(self, qkv: nn.Linear, proj: nn.Linear) -> None:
        for matrix in (*qkv.weight.split(qkv.in_features), proj.weight):  # query, key and value are drawn apart
            nn.init.xavier_uniform_(matrix)

    def mlp(self, *layers: nn.Linear) -> None:
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)

    def attention_pool(self, q: nn.Linear, kv: nn.Linear, proj: nn.Linear) -> None:
        for matrix in (q.weight, *kv.weight.split(kv.in_features), proj.weight):
            nn.init.xavier_uniform_(matrix)


class Timm(Scheme):
    """timm 1.0, vision_transformer.py, weight_init='': linear layers normal 0.02, biases zero.

    timm and torchvision truncate their normals at -2 and 2, many standard deviations out. There torch 2.11's
    ``trunc_normal_`` puts one weight in some 17 million at exactly -2, so these are not truncated.
    """

    class_token_std, position_std = 1e-6, 0.02

    def layer(self, layer: nn.Linear | nn.Conv2d) -> None:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def finish(self, model: nn.Module, position: Position, grid: tuple[int, int]) -> None:
        for name, parameter in model.named_parameters():
            if name == "attn_pool.latent":
                std = parameter.shape[-1] ** -0.5
                nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)


class Torchvision(Scheme):
    """torchvision, vision_transformer.py: patches normal by fan-in, MLP and qkv xavier uniform."""

    class_token_std, position_std, zero_head = 0.0, 0.02, True

    def layer(self, layer: nn.Linear | nn.Conv2d) -> None:
        if isinstance(layer, nn.Conv2d):
            _normal_by_fan_in(layer)

    def attention(self, qkv: nn.Linear, proj: nn.Linear) -> None:
        nn.init.xavier_uniform_(qkv.weight)  # over the stacked matrix, as nn.MultiheadAttention does
        if qkv.bias is not None:
            nn.init.zeros_(qkv.bias)
        nn.init.zeros_(proj.bias)

    def mlp(self, *layers: nn.Linear) -> None:
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)

    def attention_pool(self, q: nn.Linear, kv: nn.Linear, proj: nn.Linear) -> None:
        nn.init.xavier_uniform_(kv.weight)
        nn.init.zeros_(kv.bias)

    def pre_logits(self, layer: nn.Linear) -> None:
        _normal_by_fan_in(layer)


class Mimetic(Jax):
    """Mimetic initialisation (arXiv 2305.09828): attention starts as trained ViTs end; the rest is as :class:`Jax`.

    In each head, the product of the query and key weights is near the identity, so tokens attend to similar tokens. The
    product of the value and output weights is near the negative identity. Learned positions start as sines and cosines
    of half the usual size.
    """

    @torch.no_grad()
    def finish(self, model: nn.Module, position: Position, grid: tuple[int, int]) -> None:
        module: Any
        for module in model.modules():
            if not (hasattr(module, "qkv") and hasattr(module, "heads")):
                continue
            D, heads = module.qkv.in_features, module.heads
            pairs = [_low_rank_factors(D, D // heads, noise=0.7, identity=0.7) for _ in range(heads)]
            queries, keys = zip(*pairs, strict=True)
            projection, values = _low_rank_factors(D, D, noise=0.4, identity=-0.4)
            module.qkv.weight.copy_(torch.cat([*queries, *keys, values]))
            module.proj.weight.copy_(projection.T)
        if isinstance(position, Learned):
            table: Tensor = model.pos_embed  # type: ignore[assignment]
            table[:, -math.prod(grid) :].copy_(sincos_table(grid, table.shape[-1]) / 2)

    def problems(self, position: Position, width: int) -> Iterator[str]:
        if isinstance(position, Learned) and width % 4:
            yield f"position learned with init mimetic needs a width that is a multiple of 4, it is {width}"


SCHEMES: dict[str, Scheme] = {
    "jax": Jax(),
    "timm": Timm(),
    "torchvision": Torchvision(),
    "torch": Scheme(),
    "mimetic": Mimetic(),
}


def _normal_by_fan_in(layer: nn.Linear | nn.Conv2d) -> None:
    nn.init.normal_(layer.weight, std=math.sqrt(1 / layer.weight[0].numel()))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _low_rank_factors(width: int, rank: int, noise: float, identity: float) -> tuple[Tensor, Tensor]:
    """Return A and B, rank x width; A^T B is the nearest of that rank to N(0, noise^2 / D) + identity I."""
    target = noise * torch.randn(width, width) / math.sqrt(width) + identity * torch.eye(width)
    left, strength, right = torch.linalg.svd(target)
    root = strength[:rank, None].sqrt()
    return root * left[:, :rank].T, root * right[:rank]
