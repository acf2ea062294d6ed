"""Initialisation schemes: those of the paper's JAX code, timm, torchvision and others.

A scheme has one method for each role that a layer can play, such as ``attention`` or ``mlp``. The ``initialise`` method
of a module passes its layers to the methods for their roles. All random numbers come from torch's global generator.
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
    """Keeps PyTorch's defaults for layers, and draws tokens and positions from N(0, 1) as public notebook tutorials do.

    The other schemes override what they do differently.
    """

    class_token_std: ClassVar[float] = 1.0
    position_std: ClassVar[float] = 1.0
    zero_head: ClassVar[bool] = False
    """Whether the last layer of the head starts at zero if its configuration leaves this open."""

    def initialise(self, model: nn.Module) -> None:
        """Initialise all weights in place.

        The order matters: generic layers come first, then the roles that override them, then tokens and positions.
        """
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                self.layer(module)
        for hook in ("initialise", "initialise_tokens"):
            for module in model.modules():
                if hasattr(module, hook):
                    getattr(module, hook)(self)

    def layer(self, layer: nn.Linear | nn.Conv2d) -> None:
        """Initialise a dense layer or convolution. The roles below run later and may override the result."""

    def attention(self, qkv: nn.Linear, proj: nn.Linear) -> None:
        """Initialise the projections of attention in a block; ``qkv`` stacks those of queries, keys and values."""

    def mlp(self, *layers: nn.Linear) -> None:
        """Initialise the dense layers of an MLP."""

    def attention_pool(self, q: nn.Linear, kv: nn.Linear, proj: nn.Linear) -> None:
        """Initialise the projections of attention pooling."""

    def pre_logits(self, layer: nn.Linear) -> None:
        """Initialise the hidden layer of the MLP head."""

    def latent(self, query: Tensor) -> None:
        """Initialise the learned query of attention pooling, (1, 1, D), as big_vision's MAPHead does."""
        nn.init.xavier_uniform_(query[0])

    def adjust(self, model: nn.Module, position: Position, grid: tuple[int, int]) -> None:
        """Adjust weights after all of them are initialised."""

    def problems(self, position: Position, width: int) -> Iterator[str]:
        """Yield one sentence if the scheme cannot initialise the position embedding at this width."""
        yield from ()


class Jax(Scheme):
    """The scheme of google-research/vision_transformer (models_vit.py).

    Layers in the encoder are Xavier uniform; layers outside it keep flax's defaults.
    """

    class_token_std, position_std, zero_head = 0.0, 0.02, True

    def layer(self, layer: nn.Linear | nn.Conv2d) -> None:
        std = math.sqrt(1 / layer.weight[0].numel()) / 0.87962566103423978  # variance 1 / fan-in after truncation
        nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)

    def attention(self, qkv: nn.Linear, proj: nn.Linear) -> None:
        for matrix in (*qkv.weight.split(qkv.in_features), proj.weight):  # q, k and v are separate matrices there
            nn.init.xavier_uniform_(matrix)

    def mlp(self, *layers: nn.Linear) -> None:
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)

    def attention_pool(self, q: nn.Linear, kv: nn.Linear, proj: nn.Linear) -> None:
        for matrix in (q.weight, *kv.weight.split(kv.in_features), proj.weight):
            nn.init.xavier_uniform_(matrix)


class Timm(Scheme):
    """The scheme of timm 1.0 (vision_transformer.py with weight_init='').

    Weights of linear layers come from a normal distribution with standard deviation 0.02, and biases are zero. timm and
    torchvision truncate their normal distributions at -2 and 2, many standard deviations out. This code does not,
    because ``trunc_normal_`` of torch 2.11 then sets about one weight in 17 million to exactly -2.
    """

    class_token_std, position_std = 1e-6, 0.02

    def layer(self, layer: nn.Linear | nn.Conv2d) -> None:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def adjust(self, model: nn.Module, position: Position, grid: tuple[int, int]) -> None:
        for name, parameter in model.named_parameters():
            if name == "attn_pool.latent":
                std = parameter.shape[-1] ** -0.5
                nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)


class Torchvision(Scheme):
    """The scheme of torchvision (vision_transformer.py).

    The patch projection is normal with variance 1 / fan-in; MLP and qkv weights are Xavier uniform.
    """

    class_token_std, position_std, zero_head = 0.0, 0.02, True

    def layer(self, layer: nn.Linear | nn.Conv2d) -> None:
        if isinstance(layer, nn.Conv2d):
            _normal_by_fan_in(layer)

    def attention(self, qkv: nn.Linear, proj: nn.Linear) -> None:
        nn.init.xavier_uniform_(qkv.weight)  # one draw for the stacked matrix, as in nn.MultiheadAttention
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
    """Mimetic initialisation (arXiv 2305.09828): attention starts with the structure seen in trained ViTs.

    In each head, the product of the query and key weights is close to the identity, so tokens attend to similar tokens.
    The product of the value and output weights is close to the negative identity. Learned positions start as sines and
    cosines of half the usual size. All other weights are as in :class:`Jax`.
    """

    @torch.no_grad()
    def adjust(self, model: nn.Module, position: Position, grid: tuple[int, int]) -> None:
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
"""The ways to draw initial weights, by the library whose way it is, or by method."""


def _normal_by_fan_in(layer: nn.Linear | nn.Conv2d) -> None:
    nn.init.normal_(layer.weight, std=math.sqrt(1 / layer.weight[0].numel()))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _low_rank_factors(width: int, rank: int, noise: float, identity: float) -> tuple[Tensor, Tensor]:
    """Return A and B, (rank, width) each, whose product A^T B is close to ``identity`` times the identity matrix.

    A^T B is the best approximation of that rank to a target matrix: ``identity`` times the identity matrix, plus
    noise from N(0, noise^2 / width).
    """
    target = noise * torch.randn(width, width) / math.sqrt(width) + identity * torch.eye(width)
    U, S, Vh = torch.linalg.svd(target)
    root = S[:rank, None].sqrt()
    return root * U[:, :rank].T, root * Vh[:rank]
