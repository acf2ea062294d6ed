"""Token merging against a reference that joins one token at a time, written with loops and lists."""

import math

import pytest
import torch

from vit_reference import head_of
from vitreous.accelerate.merging import merge_similar, merge_tokens
from vitreous.accelerate.model import FastVisionTransformer, build
from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig

SMALL = {"image_size": 24, "patch_size": 4, "num_classes": 5, "width": 24, "depth": 3, "heads": 2, "mlp_dim": 40}


def model_of(**changes) -> FastVisionTransformer:
    torch.manual_seed(0)
    model = build(ViTConfig(**{**SMALL, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def images(count=2, size=24) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def attention_by_loops(block, tokens, sizes):
    """Each query against each key, a key of size s counted s times; also the keys' mean over heads."""
    attn = block.attn
    normed = [block.norm1(token) for token in tokens]
    parts = [attn.qkv(token).view(3, attn.heads, -1) for token in normed]
    q, k, v = ([part[which] for part in parts] for which in range(3))
    q, k = [attn.q_norm(each) for each in q], [attn.k_norm(each) for each in k]
    out = []
    for query, token in zip(q, tokens, strict=True):
        heads = []
        for h in range(attn.heads):
            scores = [math.exp(float(query[h] @ key[h]) / math.sqrt(len(query[h]))) for key in k]
            total = sum(size * score for size, score in zip(sizes, scores, strict=True))
            heads.append(sum(s * e * value[h] for s, e, value in zip(sizes, scores, v, strict=True)) / total)
        out.append(token + block.ls1(attn.proj(torch.cat(heads))))
    return out, [key.mean(0) for key in k]


def join_by_loops(tokens, keys, groups, count):
    """Join the `count` closest pairs of an even token and its nearest odd one; a group is the patches of a token."""

    def cosine(a, b):
        return float(a @ b / (a.norm() * b.norm()))

    even, odd = range(0, len(tokens), 2), range(1, len(tokens), 2)
    nearest = {i: max(odd, key=lambda j: cosine(keys[i], keys[j])) for i in even}
    gone = sorted(even, key=lambda i: -cosine(keys[i], keys[nearest[i]]))[:count]
    joined = []
    for i in [i for i in even if i not in gone] + list(odd):
        members = [i, *(g for g in gone if nearest[g] == i)]
        weight = sum(len(groups[m]) for m in members)
        token = sum(len(groups[m]) * tokens[m] for m in members) / weight
        joined.append((token, [patch for m in members for patch in groups[m]]))
    return [token for token, _ in joined], [group for _, group in joined]


def encoded_by_loops(model, image, count):
    """All tokens after the encoder, each patch's place holding the token that it became a part of."""
    z, _ = model._embed(*model.patch_embed(image[None]))
    prefix = model.config.prefix_tokens
    front, patches = list(z[0, :prefix]), list(z[0, prefix:])
    groups = [[n] for n in range(len(patches))]
    for block in model.blocks:
        sizes = [1] * prefix + [len(group) for group in groups]
        tokens, keys = attention_by_loops(block, front + patches, sizes)
        front, patches = tokens[:prefix], tokens[prefix:]
        patches, groups = join_by_loops(patches, keys[prefix:], groups, min(count, len(patches) // 2))
        front, patches = ([t + block.ls2(block.mlp(block.norm2(t))) for t in part] for part in (front, patches))
    places = {patch: token for token, group in zip(patches, groups, strict=True) for patch in group}
    return model.norm(torch.stack(front + [places[n] for n in range(len(places))]))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"registers": 3, "position": {"prefix": "all"}, "pool": "mean"},
        {"position": "sincos-2d", "pool": "map", "class_token": False},
        {"position": "learned-2d", "attention": {"qk_norm": True}, "block": {"layer_scale": 0.3}, "pool": "seq"},
        {"image_size": (12, 28), "pool": "cls-mean"},  # 21 patches: an odd number
    ],
    ids=lambda changes: ", ".join(changes) or "plain",
)
@pytest.mark.parametrize("count", [1, 4, 100])
@torch.no_grad()
def test_merging_is_what_loops_make_of_it(changes, count):
    model = model_of(**changes)
    batch = images() if "image_size" not in changes else images()[:, :, :12].repeat(1, 1, 1, 2)[..., :28].roll(1, 3)
    merge_tokens(model, count)
    found = model(batch, "tokens")
    expected = torch.stack([encoded_by_loops(model, image, count) for image in batch])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model(batch), head_of(model, found), rtol=1e-9, atol=1e-9)
    assert model(batch).shape == (2, 5)


@torch.no_grad()
def test_none_merged_is_the_plain_model_to_the_last_bit():
    model = model_of()
    plain = model(images())
    merge_tokens(model, 4)
    assert not torch.equal(model(images()), plain)
    merge_tokens(model, 0)
    assert torch.equal(model(images()), plain)


@torch.no_grad()
def test_equal_patches_can_be_merged_without_any_loss():
    """Tokens that are the same add up to one that counts as often: proportional attention makes this exact."""
    model = model_of(position="none", pool="mean")
    flat = torch.full((1, 3, 24, 24), 0.7, dtype=torch.float64)
    plain = model(flat)
    merge_tokens(model, 10)
    torch.testing.assert_close(model(flat), plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("n", "count"), [(2, 1), (9, 4), (16, 8), (7, 2)])
def test_joining_loses_no_patch_and_keeps_the_mean(n, count):
    generator = torch.Generator().manual_seed(2)
    x, keys = (torch.randn(3, n, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    sizes = torch.randint(1, 5, (3, n, 1), generator=generator).double()
    joined, grown, moved = merge_similar(x, sizes, keys, count)
    assert joined.shape == (3, n - count, 6)
    torch.testing.assert_close((joined * grown).sum(1), (x * sizes).sum(1))
    counted = torch.zeros(3, n - count, 1, dtype=torch.float64).scatter_add(1, moved[..., None], sizes)
    assert torch.equal(counted, grown)


@torch.no_grad()
def test_training_is_not_touched():
    model = model_of()
    model.train()
    plain = model(images())
    merge_tokens(model, 4)
    assert torch.equal(model(images()), plain)


@pytest.mark.parametrize("position", ["rope-2d", "relative"])
def test_positions_within_attention_are_refused(position):
    model = model_of(position=position)
    with pytest.raises(ConfigError, match=f"cannot be merged with position {position}"):
        merge_tokens(model, 4)
    merge_tokens(model, 0)
    with pytest.raises(ConfigError, match="merge_tokens is -1"):
        merge_tokens(model, -1)
