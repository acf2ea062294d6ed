"""Similarity of positions and scores by offset against written-out loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from measured_models import images_of, model_of

from vit_reference import Seen, reference
from vitreous.errors import ConfigError
from vitreous.inspection.positions import position_scores, position_similarity
from vitreous.model.config import PARTS

EMBEDDINGS = [kind.kind for kind in PARTS["position"] if kind().has_embedding]
IN_ATTENTION = [kind.kind for kind in PARTS["position"] if kind().acts_in_blocks and not kind().has_embedding]


@pytest.mark.parametrize("kind", EMBEDDINGS)
@pytest.mark.parametrize("options", [{}, {"registers": 2}, {"class_token": False, "pool": "mean"}], ids=str)
@pytest.mark.parametrize("fast", [False, True])
def test_similarity_is_the_cosine_of_every_pair(kind: str, options: dict[str, object], fast: bool) -> None:
    model = model_of(fast, position=kind, **options)
    c = model.config
    (h, w), P = c.grid, c.prefix_tokens
    with torch.no_grad():
        table = c.position.embedding(model, c, c.grid)[0, P:].double().numpy()
    found = position_similarity(model).similarity
    assert found.shape == (h, w, h, w)
    for i in range(h * w):
        for j in range(h * w):
            a, b = table[i], table[j]
            cosine = (a @ b) / math.sqrt(a @ a) / math.sqrt(b @ b)
            assert found[i // w, i % w, j // w, j % w] == pytest.approx(cosine, abs=1e-12)


def test_two_dimensional_embeddings_are_similar_along_rows_and_columns() -> None:
    """Halves that depend on the row or the column alone make the similarity a sum of two, as in figure 10."""
    model = model_of(position="learned-2d")
    for table in (model.pos_embed_row, model.pos_embed_column):  # halves of norm 1
        table.data.copy_(torch.nn.functional.normalize(table.data, dim=-1))
    found = position_similarity(model).similarity
    row, column = model.pos_embed_row[0].detach(), model.pos_embed_column[0].detach()
    along_rows, along_columns = (row @ row.T).numpy(), (column @ column.T).numpy()
    expected = (along_rows[:, None, :, None] + along_columns[None, :, None, :]) / 2
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_another_grid_is_resampled_and_zeros_are_similar_to_nothing() -> None:
    model = model_of()
    assert position_similarity(model, (3, 5)).similarity.shape == (3, 5, 3, 5)
    model.pos_embed.data.zero_()
    assert position_similarity(model).similarity.max() == 0


@pytest.mark.parametrize("position", [*IN_ATTENTION, {"kind": "rope-2d", "absolute": "cls"}], ids=str)
@pytest.mark.parametrize("fast", [False, True])
def test_scores_are_means_over_pairs_of_each_offset(position: str | dict[str, str], fast: bool) -> None:
    """Also where learned vectors are added to the tokens as well, as in EVA-02."""
    model = model_of(fast, position=position, registers=1)
    images, (h, w), c = images_of(model, 3), model.config.grid, model.config
    kind = c.position.kind
    seen: Seen = {}
    reference(images, {n: t.detach() for n, t in model.state_dict().items()}, c, seen=seen)
    P, N, d = c.prefix_tokens, h * w, c.width // c.heads
    found = position_scores(model, images, batch_size=2)
    assert found.product.shape == (c.depth, c.heads, 2 * h - 1, 2 * w - 1)
    for layer in range(c.depth):
        for head in range(c.heads):
            q, k, share = (seen[name][layer * c.heads + head] for name in ("q", "k", "share"))
            sums = {}
            for i in range(N):
                for j in range(N):
                    offset = (j // w - i // w, j % w - i % w)
                    product = (q[:, P + i] * k[:, P + j]).sum(-1) / math.sqrt(d)
                    # What is left of the log weights beside the product is the bias, up to a constant of the row that
                    # the class token, which has none, determines.
                    log = share[:, P + i].log()
                    constant = (q[:, P + i] * k[:, 0]).sum(-1) / math.sqrt(d) - log[:, 0]
                    bias = log[:, P + j] + constant - product
                    sums.setdefault(offset, []).append((product.mean(), bias.mean()))
            means = {
                offset: [float(torch.stack(each).mean()) for each in zip(*pairs, strict=True)]
                for offset, pairs in sums.items()
            }
            # In relative-bias the class token has a bias of its own, the same for every patch.
            own = found.bias[layer, head, h - 1, w - 1] - means[0, 0][1] if kind == "relative-bias" else 0
            for (down, across), (product, bias) in means.items():
                place = (layer, head, down + h - 1, across + w - 1)
                assert found.product[place] == pytest.approx(product, abs=1e-9)
                if found.bias is not None:
                    assert found.bias[place] == pytest.approx(bias + own, abs=1e-9)
                else:
                    assert bias == pytest.approx(0, abs=1e-9)
    assert (found.bias is not None) == kind.startswith("relative")


def test_scores_do_not_depend_on_the_batch_size() -> None:
    model = model_of(position="relative")
    images = images_of(model, 5)
    one, all_at_once = position_scores(model, images, batch_size=1), position_scores(model, [images[:2], images[2:]])
    np.testing.assert_allclose(one.product, all_at_once.product, atol=1e-12)
    np.testing.assert_allclose(one.bias, all_at_once.bias, atol=1e-12)
    assert json.loads(json.dumps(one.to_dict()))["bias"] == one.bias.tolist()


def test_models_without_what_is_asked_are_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="no embedding: use position_scores"):
        position_similarity(model_of(position="rope-2d"))
    with pytest.raises(ConfigError, match="no embedding: the model does not know"):
        position_similarity(model_of(position="none"))
    model = model_of()
    with pytest.raises(ConfigError, match="use position_similarity"):
        position_scores(model, images_of(model, 1))
