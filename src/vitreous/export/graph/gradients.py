"""Traces a function that computes gradients, so that a graph has its backward pass: runtimes have no gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["FREE_BATCH", "trace_gradients"]

FREE_BATCH = 7
"""Images in an example whose batch size is to stay free: no other size of a model may be the same."""


def trace_gradients(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], *, free: bool = False, plain_norms: bool = False
) -> torch.fx.GraphModule:
    """Return a module with the operators of a function's forward and backward pass, without gradients or mutation.

    Args:
        function: Of tensors; its parameters become those of the module.
        inputs: An example.
        free: Whether sizes stay free; else they are those of the example.
        plain_norms: Whether layer norms are written as means and products, for runtimes whose layer norm does not give
            the mean and the deviation that its gradient needs.
    """
    table: Any = core_aten_decompositions()
    how: Any = {"tracing_mode": "symbolic", "_allow_non_fake_inputs": True} if free else {}
    functional = dict(_FUNCTIONAL)
    if plain_norms:
        functional |= get_decompositions([torch.ops.aten.native_layer_norm])
    # A fused attention has no backward pass that formats can express.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        whole = make_fx(function, decomposition_table=table, **how)(*inputs)
    whole.graph.eliminate_dead_code()
    plain: Callable[..., Any] = torch.func.functionalize(whole, remove="mutations")
    with torch.no_grad():
        return _without_repetition(make_fx(plain, decomposition_table=functional, **how)(*inputs))


def _without_repetition(traced: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Compute each value once: outputs can come from several passes of the same model."""
    first: dict[Any, torch.fx.Node] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr" and first.setdefault(node.target, node) is not node:
            node.replace_all_uses_with(first[node.target])
    merged = CSEPass()(traced)
    assert merged is not None
    merged.graph_module.graph.eliminate_dead_code()
    merged.graph_module.recompile()
    return merged.graph_module


def _copy(into: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Do what ``aten.copy`` does; the exporter forgets that it broadcasts."""
    return source.to(into.dtype).expand(into.shape)


_FUNCTIONAL: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.copy.default: _copy,
    torch.ops.aten.lift_fresh_copy.default: lambda constant: constant * 1,
}
