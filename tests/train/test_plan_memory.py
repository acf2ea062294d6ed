"""The memory that a run needs for any batch, as counted before it begins, is what its first step takes."""

from __future__ import annotations

import copy

import pytest
import torch

from vitreous.accelerate.model import build
from vitreous.model.config import ViTConfig
from vitreous.train.config import OptimConfig, RunConfig
from vitreous.train.loop.optim import build_optimizer
from vitreous.train.planning.memory import fixed_bytes

MODEL = ViTConfig(image_size=16, patch_size=4, in_channels=1, num_classes=10, width=16, depth=2, heads=2, mlp_dim=32)


@pytest.mark.parametrize(
    ("optim", "ema"),
    [
        (OptimConfig(), None),
        (OptimConfig(name="adam"), 0.9),
        (OptimConfig(name="muon"), 0.9),
        (OptimConfig(name="muon", muon_stem=True), None),
        (OptimConfig(name="sgd"), None),
        (OptimConfig(name="sgd", momentum=0.0), None),
    ],
    ids=str,
)
def test_it_counts_what_a_step_allocates(optim: OptimConfig, ema: float | None) -> None:
    model = build(MODEL.with_options({"stem": "conv"}))
    model.blocks[0].requires_grad_(requires_grad=False)
    config = RunConfig(model=model.config, optim=optim, ema=ema)
    counted = fixed_bytes(model, config)
    optimizer = build_optimizer(model, optim)
    model(torch.randn(2, 1, 16, 16)).sum().backward()
    optimizer.step()
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    tensors += [*copy.deepcopy(model).state_dict().values()] if ema is not None else []
    steps = 0
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        steps += state["step"].nbytes if "step" in state else 0
    assert counted == sum(tensor.nbytes for tensor in tensors) - steps
