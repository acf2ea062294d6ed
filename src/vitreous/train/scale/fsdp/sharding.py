"""Shards a model: its blocks one by one, and the rest together. A process gathers the weights of a block to use them.

Gradients are added up, as DistributedDataParallel does here, and on a CPU in the order of the ranks too, so that both
give the same bits.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from vitreous.accelerate.model import FastVisionTransformer
from vitreous.errors import ConfigError
from vitreous.train.scale.fsdp.layout import Layout

__all__ = ["refuse_unsharded", "shard_model"]


def refuse_unsharded(model: nn.Module) -> None:
    """Refuse a model whose blocks' weights are read outside of the blocks, where they are not gathered."""
    sources = getattr(model, "_sources", {})
    if any(name.startswith("blocks.") for names in sources.values() for name in names):
        raise ConfigError(
            "strategy fsdp cannot shard position embeddings that every block has of its own: use strategy ddp, or "
            "--model.position.layers first or shared"
        )


def shard_model(model: nn.Module, layout: Layout, *, in_bf16: bool, compiles: bool = False) -> None:
    """Shard the parameters of a model in place, on the device of the layout. Buffers stay whole.

    With `in_bf16` blocks gather and compute in bfloat16. Their gradients are added up, and their weights updated, in
    float32. The rest of the model computes as autocast has it. `compiles` compiles each block, between gathering and
    freeing its weights.
    """
    policy = MixedPrecisionPolicy()
    if in_bf16:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    for block in cast(FastVisionTransformer, model).blocks:
        if compiles:
            block.forward = torch.compile(block.forward)
        fully_shard(block, mesh=layout.mesh, mp_policy=policy)
    fully_shard(model, mesh=layout.mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if layout.mesh.device_type == "cpu":
                module.set_custom_all_gather(cast(Any, _Gather(layout)))
                module.set_custom_reduce_scatter(cast(Any, _AddInOrder(layout)))


class _Exchange:
    """An exchange on CPUs, in which the process shows that it waits (heartbeat.py)."""

    def __init__(self, layout: Layout) -> None:
        self.pulse = layout.team.pulse

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the memory for a result."""
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Exchange):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        """Gather the parts of all processes."""
        with self.pulse.waiting():
            distributed.all_gather(list(output_tensor.chunk(group.size())), input_tensor, group=group)


class _AddInOrder(_Exchange):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Give each process its part of the sum of all tensors, added in the order of the ranks."""
        received = torch.empty_like(input_tensor)
        with self.pulse.waiting():
            distributed.all_to_all_single(received, input_tensor, group=group)
        parts = received.chunk(group.size())
        output_tensor.copy_(parts[0])
        for part in parts[1:]:
            output_tensor += part
