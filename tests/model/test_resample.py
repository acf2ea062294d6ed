"""Each way to resize positions against the library that it is named after, or its published lines."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig
from vitreous.model.positions.resample import resample
from vitreous.model.vit import VisionTransformer

Grid = tuple[int, int]


def google(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """google-research/vision_transformer, vit_jax/checkpoint.py, interpolate_posembed."""
    ndimage = pytest.importorskip("scipy.ndimage")
    grid = table.reshape(*old, -1).numpy()
    zoomed = ndimage.zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1)
    return torch.from_numpy(zoomed).reshape(1, new[0] * new[1], -1)


def by_timm(table: Tensor, old: Grid, new: Grid) -> Tensor:
    layers = pytest.importorskip("timm.layers")
    return layers.resample_abs_pos_embed(table, list(new), list(old), num_prefix_tokens=0)


def by_torchvision(table: Tensor, old: Grid, new: Grid) -> Tensor:
    from torchvision.models.vision_transformer import interpolate_embeddings

    state = {"encoder.pos_embedding": torch.cat((torch.zeros(1, 1, table.shape[-1]), table), 1)}
    found = interpolate_embeddings(new[0] * 4, 4, state)["encoder.pos_embedding"]
    return found[:, 1:]


def huggingface(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """transformers, models/vit/modeling_vit.py, ViTEmbeddings.interpolate_pos_encoding."""
    dim = table.shape[-1]
    x = table.reshape(1, *old, dim).permute(0, 3, 1, 2)
    x = F.interpolate(x, size=new, mode="bicubic", align_corners=False)
    return x.permute(0, 2, 3, 1).view(1, -1, dim)


def dinov2(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """facebookresearch/dinov2, models/vision_transformer.py, interpolate_pos_encoding with interpolate_offset 0.1."""
    dim = table.shape[-1]
    sx, sy = float(new[0] + 0.1) / old[0], float(new[1] + 0.1) / old[1]
    x = table.reshape(1, *old, dim).permute(0, 3, 1, 2)
    x = F.interpolate(x, mode="bicubic", antialias=False, scale_factor=(sx, sy))
    assert x.shape[-2:] == new
    return x.permute(0, 2, 3, 1).view(1, -1, dim)


def siglip2(table: Tensor, old: Grid, new: Grid) -> Tensor:
    """A triangle as wide as two old cells, or as two new ones if they are larger, along each axis (as in PIL)."""

    def weights(old: int, new: int) -> Tensor:
        scale = old / new
        centres = (torch.arange(new, dtype=torch.float64) + 0.5) * scale
        places = torch.arange(old, dtype=torch.float64) + 0.5
        found = (1 - (places - centres[:, None]).abs() / max(scale, 1.0)).clamp(min=0)  # (new, old)
        return found / found.sum(1, keepdim=True)

    grid = table.reshape(*old, -1).double()
    resized = torch.einsum("ab,cd,bde->ace", weights(old[0], new[0]), weights(old[1], new[1]), grid)
    return resized.reshape(1, new[0] * new[1], -1).to(table.dtype)


REFERENCES = {
    "google": google,
    "timm": by_timm,
    "torchvision": by_torchvision,
    "huggingface": huggingface,
    "dinov2": dinov2,
    "siglip2": siglip2,
}
SQUARE_ONLY = {"torchvision"}


@pytest.mark.parametrize("method", REFERENCES)
@pytest.mark.parametrize("new", [(7, 7), (24, 24), (16, 16), (9, 20), (14, 21), (1, 3)], ids=str)
def test_named_library_does_the_same(method: str, new: Grid) -> None:
    if method in SQUARE_ONLY and new[0] != new[1]:
        pytest.skip("torchvision's own function only knows squares")
    table = torch.randn(1, 14 * 14, 8)
    found = resample(table, (14, 14), new, method)
    assert found.shape == (1, new[0] * new[1], 8)
    torch.testing.assert_close(found, REFERENCES[method](table, (14, 14), new), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", sorted(set(REFERENCES) - SQUARE_ONLY))
def test_from_rectangles(method: str) -> None:
    table = torch.randn(1, 4 * 9, 5)
    for new in ((8, 18), (9, 4), (3, 3)):
        found = resample(table, (4, 9), new, method)
        torch.testing.assert_close(found, REFERENCES[method](table, (4, 9), new), rtol=1e-5, atol=1e-5)


def test_methods_differ_from_each_other() -> None:
    table = torch.randn(1, 16, 3)
    for new in ((7, 7), (3, 3)):
        found = [resample(table, (4, 4), new, method) for method in REFERENCES]
        for i, one in enumerate(found):
            same = [torch.allclose(one, other, atol=1e-3) for other in found[:i]]
            assert not any(same)


@pytest.mark.parametrize("method", REFERENCES)
def test_dtypes_and_the_same_grid(method: str) -> None:
    table = torch.randn(1, 16, 3, dtype=torch.float64)
    assert resample(table, (4, 4), (4, 4), method) is table
    exact = resample(table, (4, 4), (6, 5), method)
    assert exact.dtype == torch.float64
    half = resample(table.bfloat16(), (4, 4), (6, 5), method)
    assert half.dtype == torch.bfloat16
    # Rounded once on the way in and once on the way out, not in between.
    expected = resample(table.bfloat16().double(), (4, 4), (6, 5), method).bfloat16()
    assert ((half - expected).abs() <= expected.abs() / 128 + 1e-6).all()
    constant = resample(torch.ones(1, 16, 3), (4, 4), (11, 3), method)
    torch.testing.assert_close(constant, torch.ones(1, 33, 3))


def test_unknown_methods() -> None:
    with pytest.raises(ConfigError, match=r"'lanczos'.*google, timm"):
        resample(torch.zeros(1, 4, 1), (2, 2), (3, 3), "lanczos")


@pytest.mark.parametrize("prefix", ["cls", "all", "none"])
@pytest.mark.parametrize("method", REFERENCES)
def test_forward_uses_the_method_and_leaves_prefix_positions(method: str, prefix: str) -> None:
    config = ViTConfig(
        (12, 16),
        4,
        3,
        5,
        24,
        1,
        3,
        40,
        registers=2,
        position={"resample": method, "prefix": prefix},
        head={"zero": False},
    )
    model = VisionTransformer(config).eval()
    larger = VisionTransformer(ViTConfig(**(vars(config) | {"image_size": (20, 24)}))).eval()
    own = {"cls": 1, "all": 3, "none": 0}[prefix]
    state = model.state_dict()
    patches = REFERENCES["huggingface" if method == "torchvision" else method](
        state["pos_embed"][:, own:], (3, 4), (5, 6)
    )
    if method == "torchvision":  # its lines, with the corners aligned, for a rectangle
        picture = state["pos_embed"][:, own:].reshape(1, 3, 4, -1).permute(0, 3, 1, 2)
        patches = F.interpolate(picture, (5, 6), mode="bicubic", align_corners=True).flatten(2).transpose(1, 2)
    larger.load_state_dict(state | {"pos_embed": torch.cat((state["pos_embed"][:, :own], patches), 1)})
    images = torch.randn(2, 3, 20, 24)
    torch.testing.assert_close(model(images), larger(images), rtol=1e-4, atol=1e-5)


def test_learned_2d_is_resized_by_row_and_by_column() -> None:
    config = ViTConfig(
        (12, 16), 4, 3, 5, 24, 1, 3, 40, position={"kind": "learned-2d", "resample": "google"}, head={"zero": False}
    )
    model = VisionTransformer(config).eval()
    larger = VisionTransformer(ViTConfig(**(vars(config) | {"image_size": (28, 8)}))).eval()
    state = model.state_dict()

    def stretched(name: str, length: int) -> Tensor:  # linear between aligned ends
        table, rows = state[name][0], []
        for i in range(length):
            at = i * (len(table) - 1) / max(1, length - 1)
            low = min(math.floor(at), len(table) - 2)
            rows.append(table[low] * (1 - at + low) + table[low + 1] * (at - low))
        return torch.stack(rows)[None]

    resized = {name: stretched(name, n) for name, n in (("pos_embed_row", 7), ("pos_embed_column", 2))}
    larger.load_state_dict(state | resized)
    images = torch.randn(2, 3, 28, 8)
    torch.testing.assert_close(model(images), larger(images), rtol=1e-4, atol=1e-5)
