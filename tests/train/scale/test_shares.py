"""Shares of a batch add up to the batch: images, pairs to mix, random draws of the model, evaluation batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitreous.accelerate.model import build
from vitreous.data.augment.mixing import partners
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.batches.sampler import OrderedSampler, Share, TrainSampler
from vitreous.data.config import AugmentConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.model.config import ViTConfig
from vitreous.train.scale.shares import WholeDraws

MODEL = ViTConfig(image_size=16, patch_size=4, in_channels=1, num_classes=10, width=16, depth=2, heads=2, mlp_dim=32)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [8, 9, 15, 64])
def test_shares_cover_a_batch_and_keep_pairs_together(count: int, world: int) -> None:
    shares = [Share(rank, world).of_batch(count) for rank in range(world)]
    assert sorted(np.concatenate(shares)) == list(range(count))
    whole = partners(count, torch.device("cpu"))
    for share in shares:
        assert len(share) >= 2
        mixed_with = share[partners(len(share), torch.device("cpu")).numpy()]
        assert mixed_with.tolist() == whole[torch.from_numpy(share)].tolist()


@pytest.mark.parametrize("world", [2, 3])
def test_processes_train_on_the_images_of_one(world: int) -> None:
    alone = TrainSampler(50, 20, 2, seed=5)
    samplers = [TrainSampler(50, 20, 2, seed=5) for _ in range(world)]
    for rank, sampler in enumerate(samplers):
        sampler.share = Share(rank, world)
    for whole, *plans in zip(alone, *samplers, strict=True):
        found = {}
        for plan in plans:
            assert (plan.epoch, plan.step, plan.offset, plan.whole) == (*whole[:3], len(whole.indices))
            found |= dict(zip(plan.positions.tolist(), plan.indices.tolist(), strict=True))
        assert [found[whole.offset + n] for n in range(len(whole.indices))] == whole.indices.tolist()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_an_evaluation_hands_out_whole_batches_once(world: int) -> None:
    for size in range(1, 4 * 5 + 2):
        plans = [list(OrderedSampler(size, 5, Share(rank, world))) for rank in range(world)]
        assert len({len(each) for each in plans}) == 1  # all take as many turns
        batches = [plan.indices.tolist() for turn in zip(*plans, strict=True) for plan in turn]
        assert [each for each in batches if each] == [plan.indices.tolist() for plan in OrderedSampler(size, 5)]


@pytest.mark.parametrize("world", [2, 3])
def test_augmentation_is_that_of_the_whole_batch(world: int) -> None:
    config = AugmentConfig(mixup=0.3, cutmix=1.0, flip=0.5, pad_crop=2, erasing=0.5, color_jitter=0.2, policy="rand")
    pipeline = EvalPipeline((16, 16), 3, PreprocessConfig(mean=(0.4,) * 3, std=(0.2,) * 3))
    augment = BatchAugment(config, pipeline, 10, seed=3)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (13, 3, 16, 16), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (13,), generator=generator)
    for step in range(4):
        whole, targets = augment(images.clone(), labels, epoch=1, step=step, offset=13)
        for rank in range(world):
            rows = Share(rank, world).of_batch(13)
            place = {"epoch": 1, "step": step, "offset": 13, "positions": (rows + 13).tolist()}
            part, part_targets = augment(images[rows], labels[rows], **place)
            assert torch.equal(part, whole[rows])
            assert torch.equal(part_targets, targets[rows])


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.2, "stem": "linear"},
        {"dropout": 0.2},
        {"attention": {"dropout": 0.3}},
        {"block": {"drop_path": 0.5}},
        {"patch_dropout": 0.4},
    ],
    ids=str,
)
def test_the_model_draws_for_the_whole_batch(options: dict[str, object]) -> None:
    model = build(MODEL.with_options(options)).train()
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(13, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(7)
    whole = model(images)
    torch.manual_seed(8)
    assert not torch.equal(whole, model(images))
    for rows in ([0, 1, 2, 3, 12], [4, 5], [6, 7, 8, 9, 10, 11]):
        torch.manual_seed(7)
        with WholeDraws(torch.tensor(rows), 13):
            part = model(images[rows])
        assert torch.allclose(part, whole[rows], atol=1e-5)
