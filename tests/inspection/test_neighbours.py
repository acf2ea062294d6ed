"""Nearest images and patches against an exhaustive search."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from measured_models import images_of, model_of
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from vitreous.errors import ConfigError, DataError
from vitreous.inspection import neighbours
from vitreous.inspection.neighbours import nearest_images, nearest_patches
from vitreous.model.vit import VisionTransformer


@pytest.mark.parametrize("options", [{}, {"pool": "map", "head": "mlp"}], ids=str)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_nearest_images_are_those_of_scikit_learn(options: dict[str, object], fast: bool, batch_size: int) -> None:
    model = model_of(fast, **options)
    queries, gallery = images_of(model, 3), images_of(model, 40, seed=2)
    with torch.no_grad():
        oracle = NearestNeighbors(n_neighbors=6, metric="cosine", algorithm="brute")
        oracle.fit(model(gallery, "features").numpy())
        distance, index = oracle.kneighbors(model(queries, "features").numpy())
    found = nearest_images(model, queries, gallery, count=6, batch_size=batch_size)
    np.testing.assert_array_equal(found.images, index)
    np.testing.assert_allclose(found.similarity, 1 - distance, atol=1e-9)
    assert json.loads(json.dumps(found.to_dict()))["images"] == index.tolist()


def test_copies_come_first_in_the_order_of_the_gallery() -> None:
    model = model_of()
    gallery = images_of(model, 9)
    gallery[6] = gallery[2]
    found = nearest_images(model, gallery[2:3], iter(gallery.split(1)), count=20)
    assert found.images.shape == (1, 9)
    assert found.images[0, :2].tolist() == [2, 6]
    np.testing.assert_allclose(found.similarity[0, :2], 1, atol=1e-12)


def test_nearest_training_digits_have_the_class_of_the_query(
    trained: VisionTransformer, digits: tuple[Tensor, Tensor]
) -> None:
    images, labels = digits
    found = nearest_images(trained, images[:200], images[200:1400], count=3, batch_size=256)
    assert (labels[200:1400][found.images] == labels[:200, None]).float().mean() > 0.9


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_nearest_patches_are_those_of_an_exhaustive_search(
    fast: bool, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "_MAX_SIMILARITIES", 60)  # so that a batch is searched in parts
    model = model_of(fast, registers=1)
    image, gallery, P = images_of(model, 1)[0], images_of(model, 10, seed=2), model.config.prefix_tokens
    chosen = [(0, 3), (2, 1)]
    found = nearest_patches(model, image, chosen, gallery, count=4, batch_size=batch_size)
    with torch.no_grad():
        tokens = model(gallery, "tokens")[:, P:].numpy()
        own = model(image[None], "tokens")[0, P:].numpy()
    for query, (row, column) in enumerate(chosen):
        a = own[row * 4 + column]
        best = []
        for number, patches in enumerate(tokens):
            cosines = [a @ b / np.sqrt((a @ a) * (b @ b)) for b in patches]
            place = int(np.argmax(cosines))
            best.append((-cosines[place], number, place // 4, place % 4))
        for rank, (cosine, number, at_row, at_column) in enumerate(sorted(best)[:4]):
            assert found.images[query, rank] == number
            assert found.patches[query, rank].tolist() == [at_row, at_column]
            assert found.similarity[query, rank] == pytest.approx(-cosine, abs=1e-9)
    assert json.loads(json.dumps(found.to_dict()))["patches"] == found.patches.tolist()


def test_a_gallery_of_another_size_has_its_own_grid() -> None:
    model = model_of(position="sincos-2d")
    gallery = torch.randn(3, 3, 20, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = nearest_patches(model, gallery[1, :, :20, :24], [(4, 5)], gallery, count=1)
    assert (found.images.tolist(), found.patches.tolist()) == ([[1]], [[[4, 5]]])


def test_wrong_input_is_refused() -> None:
    model = model_of()
    images = images_of(model, 2)
    with pytest.raises(ConfigError, match="count is 0"):
        nearest_images(model, images, images, count=0)
    with pytest.raises(ConfigError, match="within 3 x 4 patches"):
        nearest_patches(model, images[0], [(3, 0)], images)
    with pytest.raises(DataError, match="no images"):
        nearest_images(model, images, images[:0])
    with pytest.raises(ConfigError, match=r"model\.eval"):
        nearest_images(model.train(), images, images)
