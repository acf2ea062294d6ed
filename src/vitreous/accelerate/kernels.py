"""The one place that chooses how a product is computed: by device, dtype and whether a gradient is wanted.

Everywhere but on a CPU in bfloat16 these are torch's own functions, whose kernels are the best there are, or near:
at 64 tokens fused attention in float32, with its backward pass, takes 0.8 to 1.2 times as long as written out, by the
processor. On a CPU in bfloat16 (benchmarks/attention.py and benchmarks/train_step.py measure each choice; the figures
are in docs/benchmarks.md):

- the fused attention kernel with its backward pass is 2 to 7 times slower than matmul, softmax, matmul written out, up
  to some hundred tokens, 1.4 times at a thousand, and little beyond; where no gradient is wanted, it is the faster one;
- ``F.linear`` first copies the bias to every row of the result; oneDNN's own bias needs no such pass;
- the sum over rows that is the bias's gradient is faster as a product with ones;
- ``F.layer_norm`` sums the gradients of its weight and bias in bfloat16, which leaves them off by a tenth; a product
  accumulates them in float32, and faster;
- autocast converts what it need not, and permuted tensors are copied again before each batched product.

Products accumulate in float32 in every one of them, so none is less exact than autocast.

Shapes: B batch, H heads, N and M tokens, D width, d = D / H channels of a head, F features in, G features out.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["LayerNorm", "Linear", "attend", "in_bfloat16_on_cpu", "linear", "project_heads", "split_heads"]

_BF16 = torch.bfloat16
_LONG = 1200  # tokens from which on the N x N weights that are kept take more memory than all else, for little time


def in_bfloat16_on_cpu(x: Tensor) -> bool:
    """Whether products with x run in bfloat16 on a CPU: it is that already, or autocast makes it so."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return x.dtype == _BF16 or (torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == _BF16)


class Linear(nn.Linear):
    """``nn.Linear`` by :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ... x F to ... x G."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b, as ``F.linear``.

    Args:
        x: ... x F.
        weight: G x F.
        bias: G, or None.

    Returns:
        ... x G, in bfloat16 where autocast computes in it.
    """
    if not in_bfloat16_on_cpu(x):
        return F.linear(x, weight, bias)
    return cast(Tensor, _Linear.apply(x, weight, bias))


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X Wᵀ + b in bfloat16 by oneDNN, where this build of torch and this processor have it."""
    if _FUSED_BIAS is None or bias is None:
        return F.linear(x, weight, bias)
    return cast(Tensor, _FUSED_BIAS(x, weight, bias, "none", [], None))


def _fused_bias() -> Any:
    """OneDNN's product with a bias in bfloat16; None where it has none, as on x86 without AVX-512."""
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
        flat = grad.reshape(-1, grad.shape[-1])  # n G
        dx = (flat @ weight).view(x.shape).to(dtype) if wants_x else None
        dw = (flat.t() @ x.reshape(-1, x.shape[-1])).to(weight_dtype) if wants_weight else None
        db = _sum_of_rows(flat).to(bias_dtype) if wants_bias else None
        return dx, dw, db


def _sum_of_rows(x: Tensor, factors: Tensor | None = None) -> Tensor:
    """Sum n x D over n, each row times its factor if there are any: accumulated, and here returned, in float32."""
    row = x.new_ones(1, len(x)) if factors is None else factors.to(x.dtype).reshape(1, -1)
    return (row @ x)[0].float()


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last dimension, with gradients that are right in bfloat16 on a CPU too."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ... x D."""
        if x.dtype == _BF16 and in_bfloat16_on_cpu(x):
            return cast(Tensor, _LayerNorm.apply(x, self.weight, self.bias, self.eps))
        return super().forward(x.contiguous())  # else its backward pass would copy x a second time


class _LayerNorm(torch.autograd.Function):
    """Forward as torch's; the gradients of weight and bias as products."""

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
        rows = grad.reshape(-1, x.shape[-1])  # n D
        if wants_weight:  # sum of grad (x - mean) rstd, as two products with a row of factors each
            dw = (_sum_of_rows(x.reshape(rows.shape) * rows, rstd) - _sum_of_rows(rows, mean * rstd)).to(weight.dtype)
        if wants_bias:
            db = _sum_of_rows(rows).to(bias.dtype)
        return dx, dw, db, None


def project_heads(x: Tensor, projection: nn.Linear, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Project tokens B x N x D by a matrix of several parts, as queries, keys and values, and split each into heads.

    One product makes all parts. In a graph that is exported each is a product of its own: other programs turn the heads
    within their attention then, and need not take the parts out of one result first.

    Args:
        x: Tokens, B x N x D.
        projection: From D to (parts D) channels.
        parts: How many.
        heads: H, of each.

    Returns:
        As :func:`split_heads`.
    """
    if not torch.compiler.is_exporting() or type(projection) is not Linear:  # another's weight is not all of it
        return split_heads(projection(x), parts, heads)
    weights = projection.weight.chunk(parts)
    biases = (None,) * parts if projection.bias is None else projection.bias.chunk(parts)
    each = (F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return tuple(part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in each)


def split_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split projected tokens B x N x (parts D) into so many of B x H x N x d, as queries, keys and values.

    They are taken apart before they are turned, so that their gradients are put together in place, in one copy. The
    fused kernel, which needs no gradient, reads them where they lie.
    """
    turned = tuple(part.transpose(1, 2) for part in x.unflatten(-1, (parts, heads, -1)).unbind(2))
    copied = in_bfloat16_on_cpu(x) and torch.is_grad_enabled()
    return tuple(part.contiguous() for part in turned) if copied else turned


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """Return softmax(q kᵀ / sqrt(d) + bias) v by the kernel that is fastest here (equations 6 and 7).

    Args:
        q: Queries, B x H x N x d.
        k: Keys, B x H x M x d.
        v: Values, B x H x M x d.
        bias: Added to the scaled scores, broadcastable to B x H x N x M.
        dropout: Share of attention weights set to zero, in [0, 1).

    Returns:
        B x H x N x d.
    """
    if not (in_bfloat16_on_cpu(q) and torch.is_grad_enabled() and k.shape[2] < _LONG):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    if bias is None and dropout == 0:
        return cast(Tensor, _Attend.apply(q, k, v))
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)  # B H N M
    if bias is not None:
        scores = scores + bias
    return F.dropout(scores.softmax(-1).to(v.dtype), dropout) @ v


class _Attend(torch.autograd.Function):
    """Softmax attention in bfloat16 as batched products, with nothing copied that is contiguous already."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.dtypes = q.dtype, k.dtype, v.dtype
        B, H, N, d = q.shape
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.to(_BF16).reshape(B * H, -1, d) for x in (q, k, v))
            q = q * (1 / math.sqrt(d))
            weights = torch.bmm(q, k.transpose(1, 2))  # BH N M
            torch.softmax(weights, -1, out=weights)
            ctx.save_for_backward(q, k, v, weights)
            return torch.bmm(weights, v).view(B, H, N, d)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        q, k, v, weights = ctx.saved_tensors
        B, H, N, d = grad.shape
        grad = grad.reshape(B * H, N, d)
        dv = torch.bmm(weights.transpose(1, 2), grad)
        scores = torch.bmm(grad, v.transpose(1, 2))  # BH N M: of the weights, then of the scores
        scores = torch._softmax_backward_data(scores, weights, -1, weights.dtype)
        dq = torch.bmm(scores, k).mul_(1 / math.sqrt(d))
        dk = torch.bmm(scores.transpose(1, 2), q)
        return tuple(x.view(B, H, -1, d).to(dtype) for x, dtype in zip((dq, dk, dv), ctx.dtypes, strict=True))
