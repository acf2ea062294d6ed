"""The order of training where classes are shown equally often."""

from __future__ import annotations

import numpy as np
import pytest

from vitreous.data.batches.sampler import TrainSampler, balanced_order
from vitreous.errors import CheckpointError

LABELS = np.repeat([0, 1, 2, 4], [70, 20, 7, 3])  # 100 images; no class 3


def test_every_class_comes_as_often_as_another():
    order = balanced_order(LABELS, seed=3, epoch=5)
    assert len(order) == 100
    assert np.bincount(LABELS[order]).tolist() == [25, 25, 25, 0, 25]
    uneven = balanced_order(LABELS[:99], seed=3, epoch=5)  # 99 = 4 * 24 + 3
    assert sorted(np.bincount(LABELS[uneven]).tolist()) == [0, 24, 25, 25, 25]


def test_no_image_comes_twice_before_each_of_its_class_has_come():
    times = np.bincount(balanced_order(LABELS, seed=0, epoch=0), minlength=100)
    for label, few in ((0, 0), (1, 1), (2, 3), (4, 8)):
        own = times[label == LABELS]
        assert own.min() >= few
        assert own.max() <= few + 1


def test_the_order_is_a_function_of_seed_and_epoch():
    same, again, epoch, seed = (balanced_order(LABELS, *at) for at in ((1, 2), (1, 2), (1, 3), (2, 2)))
    assert same.tolist() == again.tolist()
    assert same.tolist() != epoch.tolist()
    assert same.tolist() != seed.tolist()
    assert set(same[:70]) != set(epoch[:70])  # another part of the large class


def test_plans_show_that_order_and_do_not_go_on_with_another():
    balanced = TrainSampler(100, 10, seed=1, balance=LABELS)
    balanced.set_epoch(4)
    shown = np.concatenate([plan.indices for plan in balanced])
    assert shown.tolist() == balanced_order(LABELS, 1, 4).tolist()
    with pytest.raises(CheckpointError, match="balanced was True, now False"):
        TrainSampler(100, 10, seed=1).check(balanced.identity())
