"""Products, norms and attention by the fastest kernel: chosen by device, dtype and whether a gradient is needed.

Everywhere but on a CPU in bfloat16 these are torch's own functions. On a CPU in bfloat16 some of torch's kernels are
slow or inexact, and these replace them:

- Training on up to about a thousand tokens, attention is computed as matmul, softmax, matmul: the fused kernel's
  backward pass is slower. Without gradients the fused kernel is faster, and is used.
- ``F.linear`` first copies the bias to every row of the result. oneDNN adds it within the product.
- The gradient of a bias is a sum over rows. A product with a row of ones computes it faster.
- ``F.layer_norm`` sums the gradients of its weight and bias in bfloat16, which is inexact. Products accumulate them in
  float32.
- Autocast converts more tensors than necessary, and permuted tensors are copied before each batched product.

All products accumulate in float32, so none is less exact than autocast. benchmarks/speed/attention.py and
benchmarks/speed/train_step.py measure each choice; docs/explanation/benchmarks.md has the figures.

Shapes: B batch, H heads, T and S tokens, n rows, D width, d = D / H channels of a head, F features in, G features out.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vitreous.model.attention import NoKeyBias

__all__ = [
    "LayerNorm",
    "Linear",
    "NoKeyBiasLinear",
    "attend",
    "in_bfloat16_on_cpu",
    "linear",
    "project_heads",
    "split_heads",
]

_BF16 = torch.bfloat16
_LONG = 1200  # above this many tokens the stored T x T weights dominate memory, and save little time


def in_bfloat16_on_cpu(x: Tensor) -> bool:
    """Return whether products with x run in bfloat16 on a CPU, because of its dtype or of autocast."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return x.dtype == _BF16 or (torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == _BF16)


class Linear(nn.Linear):
    """``nn.Linear`` computed by :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., F) to (..., G)."""
        return linear(x, self.weight, self.bias)


class NoKeyBiasLinear(NoKeyBias):
    """The matrix of queries, keys and values without a bias of keys, computed by :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, 3 D)."""
        return linear(x, self.weight, self.full_bias())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b, as ``F.linear``.

    Args:
        x: (..., F).
        weight: (G, F).
        bias: (G,), or None.

    Returns:
        (..., G); in bfloat16 where autocast computes in it.
    """
    if not in_bfloat16_on_cpu(x):
        return F.linear(x, weight, bias)
    return cast(Tensor, _Linear.apply(x, weight, bias))


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b in bfloat16, by oneDNN's product with a bias where there is one."""
    if _FUSED_BIAS is None or bias is None:
        return F.linear(x, weight, bias)
    return cast(Tensor, _FUSED_BIAS(x, weight, bias, "none", [], None))


def _fused_bias() -> Any:
    """Return oneDNN's product with a bias in bfloat16, or None where it is missing, as on x86 without AVX-512."""
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None


_FUSED_BIAS = _fused_bias()


class _Linear(torch.autograd.Function):
    """x Wᵀ + b in bfloat16; the gradients of float32 weights are float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, product = x.to(_BF16), weight.to(_BF16)
        ctx.save_for_backward(rows, product)
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        with torch.autocast("cpu", enabled=False):
            return _product(rows, product, None if bias is None else bias.to(_BF16))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        dtype, weight_dtype, bias_dtype = ctx.dtypes
        flat = grad.reshape(-1, grad.shape[-1])  # (n, G)
        dx = (flat @ weight).view(x.shape).to(dtype) if wants_x else None
        dw = (flat.t() @ x.reshape(-1, x.shape[-1])).to(weight_dtype) if wants_weight else None
        db = _sums_of_rows(flat, flat.new_ones(1, len(flat)))[0].to(bias_dtype) if wants_bias else None
        return dx, dw, db


def _sums_of_rows(x: Tensor, factors: Tensor) -> Tensor:
    """Return sums of the rows of x (n, D), multiplied by their factors (m, n), as float32 (m, D)."""
    return (factors.to(x.dtype) @ x).float()


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last dimension, with gradients that are exact in bfloat16 on a CPU too."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., D)."""
        if x.dtype == _BF16 and in_bfloat16_on_cpu(x):
            return cast(Tensor, _LayerNorm.apply(x, self.weight, self.bias, self.eps))
        return super().forward(x.contiguous())  # otherwise its backward pass copies x a second time


class _LayerNorm(torch.autograd.Function):
    """Torch's forward pass, and the gradients of weight and bias as products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        dx = dw = db = None
        if wants_x:
            only_x = [True, False, False]
            norm_backward = torch.ops.aten.native_layer_norm_backward
            dx = norm_backward(grad, x, x.shape[-1:], mean, rstd, weight, bias, only_x)[0]
        rows, scale = grad.reshape(-1, x.shape[-1]), rstd.reshape(1, -1)  # (n, D) and (1, n)
        if wants_weight or wants_bias:  # of the weight: the sum of grad (x - mean) rstd
            of_means, of_bias = _sums_of_rows(rows, torch.cat((mean.reshape(1, -1) * scale, torch.ones_like(scale))))
            dw = (_sums_of_rows(x.reshape(rows.shape) * rows, scale)[0] - of_means).to(weight.dtype)
            db = of_bias.to(bias.dtype)
        return dx, dw if wants_weight else None, db if wants_bias else None, None


def project_heads(x: Tensor, projection: nn.Linear, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Project tokens by one matrix of several parts, such as queries, keys and values, and split each into heads.

    One product computes all parts. An exported graph has one product for each part instead: its runtime can then fuse
    the transposition of the heads into attention.

    Args:
        x: Tokens, (B, T, D).
        projection: From D to (parts * D) channels.
        parts: Number of parts.
        heads: Number of heads of each part (H).

    Returns:
        The parts, (B, H, T, d) each.
    """
    known = type(projection) in (Linear, NoKeyBiasLinear)  # a derived layer, as LoRA's, has more
    if not torch.compiler.is_exporting() or not known:
        return split_heads(projection(x), parts, heads)
    weights = projection.weight.chunk(parts)
    bias = projection.full_bias() if isinstance(projection, NoKeyBias) else projection.bias
    biases = (None,) * parts if bias is None else bias.chunk(parts)
    each = (F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return tuple(part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in each)


def split_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split projected tokens (B, T, parts * D) into parts of (B, H, T, d), such as queries, keys and values.

    Unbinding before transposing lets the backward pass assemble the gradient in one copy. The fused kernel, which is
    used without gradients, reads the parts without a copy.
    """
    by_head = tuple(part.transpose(1, 2) for part in x.unflatten(-1, (parts, heads, -1)).unbind(2))
    copied = in_bfloat16_on_cpu(x) and torch.is_grad_enabled()
    return tuple(part.contiguous() for part in by_head) if copied else by_head


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """Return softmax(q kᵀ / sqrt(d) + bias) v by the fastest kernel (equations 6 and 7).

    Args:
        q: Queries, (B, H, T, d).
        k: Keys, (B, H, S, d).
        v: Values, (B, H, S, d).
        bias: Added to the scaled scores, broadcastable to (B, H, T, S).
        dropout: Fraction of attention weights set to zero, in [0, 1).

    Returns:
        (B, H, T, d).
    """
    if not (in_bfloat16_on_cpu(q) and torch.is_grad_enabled() and k.shape[2] < _LONG):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    if bias is None and dropout == 0:
        return cast(Tensor, _Attend.apply(q, k, v))
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    return F.dropout(scores.softmax(-1).to(v.dtype), dropout) @ v


class _Attend(torch.autograd.Function):
    """Softmax attention in bfloat16 as batched products, without copies of contiguous tensors."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.dtypes = q.dtype, k.dtype, v.dtype
        B, H, T, d = q.shape
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.to(_BF16).reshape(B * H, -1, d) for x in (q, k, v))
            weights = _scaled_bmm(q, k.transpose(1, 2), 1 / math.sqrt(d))  # (B * H, T, S)
            torch.softmax(weights, -1, out=weights)
            ctx.save_for_backward(q, k, v, weights)
            return torch.bmm(weights, v).view(B, H, T, d)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        q, k, v, weights = ctx.saved_tensors
        B, H, T, d = grad.shape
        grad = grad.reshape(B * H, T, d)
        dv = torch.bmm(weights.transpose(1, 2), grad)
        scores = torch.bmm(grad, v.transpose(1, 2))  # (B * H, T, S): gradient of the weights, next of the scores
        scores = torch._softmax_backward_data(scores, weights, -1, weights.dtype)
        dq = _scaled_bmm(scores, k, 1 / math.sqrt(d))
        dk = _scaled_bmm(scores.transpose(1, 2), q, 1 / math.sqrt(d))
        return tuple(x.view(B, H, -1, d).to(dtype) for x, dtype in zip((dq, dk, dv), ctx.dtypes, strict=True))


def _scaled_bmm(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return the products of (B, n, m) and (B, m, p) times a scale, without a pass of its own over the result."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale)
