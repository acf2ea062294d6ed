"""A batch's gradient by threads that each take a share of its pictures is that of the whole batch."""

from __future__ import annotations

import copy
import gc
import itertools
import threading
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import _threads, add_gradients, map_parts, num_parts
from vitreous.accelerate.model import FastVisionTransformer, build
from vitreous.model.config import ViTConfig
from vitreous.train.config import TuneConfig
from vitreous.train.finetune.trainable import choose_trained

VARIANTS = {
    "plain": {},
    "linear patches, seq pooling": {"stem": "linear", "pool": "seq"},
    "rotary, registers, QK-norm, LayerScale": {
        "position": "rope-2d",
        "registers": 2,
        "attention": {"qk_norm": True},
        "block": {"layer_scale": 0.3},
    },
    "relative, mlp head": {"position": "relative", "head": {"kind": "mlp", "hidden": 20}},
    "learned-2d, map": {"position": "learned-2d", "pool": "map", "final_norm": "pooled"},
    "checkpoints, stochastic depth": {"block": {"checkpoint": True, "drop_path": 0.6}, "depth": 3},
    "convolutions, stochastic depth": {"stem": "conv", "block": {"drop_path": 0.6}},
    "convolutions and max-pools": {"stem": {"kind": "conv", "downsample": "max-pool", "width": 8}},
}


@pytest.fixture(params=[2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def model_of(**changes) -> FastVisionTransformer:
    torch.manual_seed(0)
    fields = {"image_size": 16, "patch_size": 4, "width": 32, "depth": 2, "heads": 2, "mlp_dim": 48, "num_classes": 5}
    return build(ViTConfig(**(fields | {"init": "timm"} | changes))).train()


def batch_of(count: int = 37) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 16, 16, generator=draws), torch.rand(count, 5, generator=draws).softmax(1)


def whole(model, images, targets, weight=None, scale=1.0):
    other = copy.deepcopy(model)
    for copied, parameter in zip(other.parameters(), model.parameters(), strict=True):
        copied.grad = None if parameter.grad is None else parameter.grad.clone()
    loss = F.cross_entropy(other(images).float(), targets, weight=weight)
    (scale * loss).backward()
    return loss.detach(), [parameter.grad for parameter in other.parameters()], dict(other.named_buffers())


def layout(tensor):
    """Strides of the dimensions that have more than one element: those of the others say nothing of memory."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def assert_alike(model, expected, rtol=1e-4):
    for (name, parameter), grad in zip(model.named_parameters(), expected, strict=True):
        assert (parameter.grad is None) == (grad is None), name
        if grad is not None:
            assert layout(parameter.grad) == layout(parameter), name
            assert (parameter.grad - grad).norm() <= rtol * grad.norm() + 1e-7, name


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_loss_and_gradients_are_those_of_the_whole_batch(changes, threads):
    model, (images, targets) = model_of(**changes), batch_of()
    for seed in range(2):  # the second time gradients are there already
        torch.manual_seed(seed)
        loss, expected, buffers = whole(model, images, targets)
        torch.manual_seed(seed)
        torch.testing.assert_close(add_gradients(model, images, targets, threads), loss)
        assert_alike(model, expected)
        torch.testing.assert_close(dict(model.named_buffers()), buffers)  # what batch norm has seen


def test_class_weights_and_a_scale_count_as_in_the_whole(threads):
    model, (images, targets) = model_of(), batch_of()
    weight = torch.tensor([0.2, 3.0, 1.0, 0.5, 2.0])
    loss, expected, _ = whole(model, images, targets, weight, 0.25)
    torch.testing.assert_close(add_gradients(model, images, targets, threads, weight=weight, scale=0.25), loss)
    assert_alike(model, expected)


def test_frozen_parameters_get_no_gradient(threads):
    model, (images, targets) = choose_trained(model_of(), TuneConfig(source="trained", mode="linear")), batch_of()
    expected = whole(model, images, targets)[1]
    add_gradients(model, images, targets, threads)
    assert_alike(model, expected)
    assert model.blocks[0].attn.qkv.weight.grad is None


@pytest.mark.parametrize("stem", ["linear", "conv"])
def test_autocast_of_the_caller_holds_in_the_threads(stem, threads):
    model, (images, targets) = model_of(stem=stem), batch_of()
    exact = whole(model, images, targets)[1]
    with torch.autocast("cpu", torch.bfloat16):
        add_gradients(model, images, targets, threads)
    assert_alike(model, exact, rtol=0.1)
    found = [parameter.grad for parameter in model.parameters()]
    assert any((a - b).norm() > 1e-4 * b.norm() for a, b in zip(found, exact, strict=True))  # rounded to bf16


def test_it_is_the_same_to_the_last_bit_each_time(threads):
    images, targets = batch_of()
    first, second = model_of(), model_of()
    losses = [add_gradients(model, images, targets, threads) for model in (first, second)]
    assert torch.equal(*losses)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_the_threads_compute_alone_and_nobody_else_does(threads):
    model, (images, targets) = model_of(), batch_of()
    seen = []

    def look(*given):
        seen.append(torch.get_num_threads())
        if given and isinstance(given[-1], torch.Tensor) and given[-1].requires_grad:
            given[-1].register_hook(lambda _: look())  # in the backward pass

    model.norm.register_forward_hook(look)
    add_gradients(model, images, targets, threads)
    assert seen == [1] * 2 * threads
    assert torch.get_num_threads() == threads


def test_an_error_in_a_thread_is_the_callers_and_changes_no_gradient(threads):
    model, (images, targets) = model_of(stem="linear"), batch_of()
    number, ended = itertools.count(), []

    def fail_in_one(*_):
        if next(number) == 0:
            raise MemoryError("of one share")
        time.sleep(0.5)
        ended.append(1)

    hook = model.norm.register_forward_hook(fail_in_one)
    with pytest.raises(MemoryError, match="of one share"):
        add_gradients(model, images, targets, threads)
    assert len(ended) == threads - 1  # none of them goes on behind the caller's back
    assert all(parameter.grad is None for parameter in model.parameters())
    hook.remove()
    add_gradients(model, images, targets, threads)  # the threads are still there


@pytest.mark.parametrize(
    "rate",
    [{"dropout": 0.1}, {"attention": {"dropout": 0.1}}, {"attention": {"proj_dropout": 0.1}}, {"patch_dropout": 0.1}],
    ids=str,
)
def test_a_model_that_draws_in_forward_pictures_gets_the_batch_as_it_is(rate, threads):
    model, (images, _) = model_of(**rate), batch_of(400)
    assert num_parts(model, images) == 1


def test_no_thread_draws(threads):
    model, (images, targets) = model_of(block={"drop_path": 0.5}), batch_of(400)
    assert num_parts(model, images) == threads
    torch.manual_seed(0)
    for block in model.blocks:
        block.draw(images)
    drawn = torch.get_rng_state()
    torch.manual_seed(0)
    add_gradients(model, images, targets, threads)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_patches_that_are_kept_at_the_end_of_a_run_let_it_be_shared(threads):
    model, (images, _) = model_of(patch_dropout=0.5), batch_of(400)
    model.patch_dropout = 0.0
    assert num_parts(model, images) == threads


def test_batch_norm_in_the_stem_is_no_hindrance(threads):
    assert num_parts(model_of(stem="conv"), batch_of(400)[0]) == threads


@pytest.mark.filterwarnings("ignore:.*script_method. is deprecated:DeprecationWarning")  # torch 2.11, of itself
def test_other_batch_norm_few_pictures_other_models_and_compiled_ones_get_the_batch_as_it_is(threads):
    images, _ = batch_of(400)
    normed = model_of()
    normed.head = nn.Sequential(nn.BatchNorm1d(32), normed.head)
    assert num_parts(normed, images) == 1
    assert num_parts(model_of(), images[: 125 * threads - 1]) == 1  # of 16 patches each
    assert num_parts(model_of(), images[: 125 * threads]) == threads
    assert num_parts(model_of().eval(), images[: 94 * threads - 1]) == 1
    assert num_parts(model_of().eval(), images[: 94 * threads]) == threads
    assert num_parts(model_of(), torch.zeros(8 * threads - 1, 3, 256, 256)) == 1
    assert num_parts(model_of(), torch.zeros(8 * threads, 3, 256, 256)) == threads
    assert num_parts(nn.Sequential(nn.Flatten(), nn.Linear(768, 5)), images) == 1
    derived, replaced, compiled = model_of(), model_of(), model_of()
    derived.__class__ = type("Derived", (FastVisionTransformer,), {})
    assert num_parts(derived, images) == 1
    replaced.blocks[1] = nn.Identity()
    assert num_parts(replaced, images) == 1
    compiled.blocks[0].compile()
    assert num_parts(compiled, images) == 1


@pytest.mark.parametrize("changes", [*VARIANTS.values(), {"dropout": 0.3}], ids=[*VARIANTS, "dropout"])
def test_logits_in_evaluation_are_those_of_the_whole_batch(changes, threads):
    model, (images, _) = model_of(**changes).eval(), batch_of(400)
    assert num_parts(model, images) == threads
    found = torch.cat(map_parts(model, images, threads))
    with torch.no_grad():
        torch.testing.assert_close(found, model(images), rtol=1e-4, atol=1e-5)
    assert not found.requires_grad


def test_in_evaluation_autocast_of_the_caller_holds_in_the_threads(threads):
    model, (images, _) = model_of().eval(), batch_of(400)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.cat(map_parts(model, images, threads))
    exact = torch.cat(map_parts(model, images, threads))
    assert found.dtype == torch.bfloat16
    assert exact.dtype == torch.float32
    assert 1e-4 < (found - exact).abs().max() < 0.1


def test_batch_norm_behind_the_stem_is_no_hindrance_in_evaluation(threads):
    model, (images, _) = model_of(), batch_of(400)
    model.head = nn.Sequential(nn.BatchNorm1d(32), model.head)
    assert num_parts(model, images) == 1
    assert num_parts(model.eval(), images) == threads


def test_threads_that_cannot_be_had_leave_none_that_waits(threads, monkeypatch):
    begin, begun = threading.Thread.start, []

    def scarce(self):
        if len(begun) == 1:
            raise RuntimeError("can't start new thread")
        begun.append(self)
        begin(self)

    _threads.cache_clear()
    monkeypatch.setattr(threading.Thread, "start", scarce)
    with pytest.raises(RuntimeError, match="new thread"):
        _threads(threads)
    assert torch.get_num_threads() == threads
    monkeypatch.undo()
    gc.collect()  # of the pool, whose threads then end
    begun[0].join(60)
    assert not begun[0].is_alive()


def test_processes_that_train_together_get_the_batch_as_it_is(threads, tmp_path):
    images, _ = batch_of(400)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert num_parts(model_of(), images) == 1
    finally:
        torch.distributed.destroy_process_group()
    assert num_parts(model_of(), images) == threads


@pytest.mark.parametrize("count", [1, 5])
def test_one_thread_or_very_many_get_the_batch_as_it_is(count):
    images, _ = batch_of(1_000)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        assert num_parts(model_of(), images) == 1
    finally:
        torch.set_num_threads(before)
