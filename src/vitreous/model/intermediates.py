"""Intermediate values of one forward pass: tokens, queries, keys, values and attention of given layers.

Fused attention stays on, except in requested layers whose weights are asked for: those compute attention as explicit
products, once, from their queries and keys, since the weights do not exist in the fused kernel. Where a part does not
(axial attention, pooling), the weights are computed afterwards. Everything is what the pass computed.

Shapes: B batch, C channels, H heads, (h, w) patches down and across, P prefix tokens ([CLS] and registers),
T = P + h w tokens, M queries (T in a block, 1 in pooling), D width, d channels of a head, F features, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index as to_index
from typing import Any, cast

from torch import Tensor

from vitreous.errors import ConfigError, pluralize
from vitreous.model.config import ViTConfig, pair
from vitreous.model.record import Record, attention_weights

__all__ = ["AttentionValues", "Intermediates", "LayerValues", "intermediates"]


@dataclass(frozen=True)
class AttentionValues:
    """What one attention computed.

    Attributes:
        queries: After the norm of queries and the rotation, where the model has them, (B, H, M, d).
        keys: Likewise, (B, H, T, d).
        values: (B, H, T, d).
        mixed: The weighted mean of the values, before heads are joined and projected, (B, H, M, d).
        bias: What the position embedding adds to the scaled scores, broadcastable to (B, H, M, T), or None. It is
            minus infinity where a token cannot attend to another, as in axial attention; those weights are zero.
        attention: Weights in float32 at least, (B, H, M, T); None unless they were asked for.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    mixed: Tensor
    bias: Tensor | None
    attention: Tensor | None

    def weights(self) -> Tensor:
        """Return the attention weights, (B, H, M, T), computed now if they were not asked for."""
        return attention_weights(self.queries, self.keys, self.bias) if self.attention is None else self.attention

    def weights_gradient(self, of_mixed: Tensor) -> Tensor:
        """Return the gradient with respect to the attention weights, (B, H, M, T).

        With o = A v, dL/dA = (dL/do) vᵀ, so that fused attention, in which A does not exist, serves as well. Weights
        that are zero by construction take no part in the result, and their gradient is zero.

        Args:
            of_mixed: The gradient with respect to ``mixed``, (B, H, M, d).
        """
        gradient = of_mixed @ self.values.transpose(-2, -1).to(of_mixed.dtype)
        return gradient if self.bias is None else gradient.masked_fill(self.bias.isneginf(), 0.0)


@dataclass(frozen=True)
class LayerValues(AttentionValues):
    """What one block computed.

    Attributes:
        index: The block's number, from 0.
        before: Tokens that the block reads, (B, T, D): [CLS], registers, then patches in raster order.
        after: Tokens after it, (B, T, D); those of the last block are not normalised yet.
    """

    index: int
    before: Tensor
    after: Tensor


@dataclass(frozen=True)
class Intermediates:
    """The values of one pass. All of them carry gradients where gradients are enabled.

    Attributes:
        layers: The requested layers, in the order of the request.
        pooling: The attention of the pooling (`map`; in `seq` the softmax over tokens, as one head); None otherwise.
        grid: Patches down and across, (h, w).
        prefix_tokens: Leading tokens that are no patches (P).
        tokens: After the final norm, (B, T, D).
        features: What the last layer reads, (B, F).
        logits: (B, K); the features, if the model has no classes.
    """

    layers: tuple[LayerValues, ...]
    pooling: AttentionValues | None
    grid: tuple[int, int]
    prefix_tokens: int
    tokens: Tensor
    features: Tensor
    logits: Tensor


def intermediates(
    model: Any, images: Tensor, layers: Sequence[int] | None = None, attention: bool = False
) -> Intermediates:
    """Run one pass and return its intermediate values.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised, (B, C, h patch, w patch), of any grid that the model accepts.
        layers: Numbers of blocks, from 0; negative ones count from the end. None: all.
        attention: Whether to return attention weights, (B, H, T, T) per layer.

    Raises:
        ConfigError: If a layer does not exist or is given twice, the model is in training mode or merges tokens, or
            the images do not fit.
    """
    config = cast(ViTConfig, model.config)
    if model.training:
        raise ConfigError(
            "intermediate values of a model in training mode depend on dropout, and patches may be missing: "
            "call model.eval() first"
        )
    numbers = _layer_numbers(layers, config.depth)
    records, of_pool = {number: Record(explicit=attention) for number in numbers}, Record()
    tokens = model(images, "tokens", records)
    pooled = model.pool(tokens, of_pool) if config.pool.attends else model.pool(tokens)
    features = model.pre_logits(model.fc_norm(pooled))
    ph, pw = pair(config.patch_size)
    return Intermediates(
        layers=tuple(_layer(number, records[number], attention) for number in numbers),
        pooling=AttentionValues(**_attention(of_pool, attention)) if config.pool.attends else None,
        grid=(images.shape[2] // ph, images.shape[3] // pw),
        prefix_tokens=config.prefix_tokens,
        tokens=tokens,
        features=features,
        logits=model.head(features),
    )


def _layer_numbers(layers: Sequence[int] | None, depth: int) -> list[int]:
    """Return the numbers of the blocks from 0, in the order given."""
    if layers is None:
        return list(range(depth))
    if wrong := [layer for layer in layers if not -depth <= to_index(layer) < depth]:
        names = ", ".join(map(str, wrong))
        raise ConfigError(f"layers has {names}, the model has {pluralize(depth, 'block')}: use {-depth} to {depth - 1}")
    numbers = [to_index(layer) % depth for layer in layers]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise ConfigError(f"layers names block {', '.join(map(str, twice))} twice: name each once")
    return numbers


def _layer(number: int, record: Record, attention: bool) -> LayerValues:
    if record.before is None or record.after is None or record.queries is None:
        raise ConfigError(
            f"block {number} keeps no values: its class ignores `record`. Pass it on as Block and Attention do"
        )
    return LayerValues(index=number, before=record.before, after=record.after, **_attention(record, attention))


def _attention(record: Record, attention: bool) -> dict[str, Any]:
    """Return the fields of :class:`AttentionValues`."""
    q, k, bias = cast(Tensor, record.queries), cast(Tensor, record.keys), record.bias
    weights = attention_weights(q, k, bias) if attention and record.weights is None else record.weights
    return {
        "queries": q,
        "keys": k,
        "values": record.values,
        "mixed": record.mixed,
        "bias": bias,
        "attention": weights,
    }
