"""The paper's hybrids: timm's counts, names and logits, the closed form of standardisation, and what does not fit."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F

from vitreous.accelerate.model import create
from vitreous.errors import ConfigError, UsageError
from vitreous.model.sizes import config_of
from vitreous.model.stems.resnet import StdConv2d
from vitreous.model.vit import VisionTransformer


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("R26+S/32", "vit_small_r26_s32_224"),
        ("R50+B/16", "vit_base_r50_s16_224"),
        ("R50+L/32", "vit_large_r50_s32_224"),
    ],
)
def test_sizes_have_timms_tensors(name, entry):
    with torch.device("meta"):
        ours = create(name)
    theirs = timm.create_model(entry, depth=1, num_classes=1000).state_dict()  # no meta device: timm runs its stem
    inside = {k: tuple(v.shape) for k, v in ours.state_dict().items() if not k.startswith("blocks.") or ".0." in k[:9]}
    assert inside == {key: tuple(value.shape) for key, value in theirs.items()}


def test_parameter_counts():
    counts = {"R50+B/16": 98_659_112, "R50+L/32": 328_994_856, "R26+S/32": 36_431_912}
    for name, count in counts.items():
        with torch.device("meta"):
            assert sum(p.numel() for p in create(name).parameters()) == count


@pytest.mark.parametrize("flavour", ["google", "timm"])
@pytest.mark.parametrize(("kernel", "stride", "side"), [(7, 2, 32), (3, 2, 9), (3, 1, 8), (1, 2, 8)])
def test_a_standardised_convolution_is_the_plain_one_with_standardised_weights(flavour, kernel, stride, side):
    generator = torch.Generator().manual_seed(0)
    conv = StdConv2d(5, 6, kernel, stride, flavour).double()
    conv.weight.data = torch.randn(conv.weight.shape, generator=generator, dtype=torch.float64)
    x = torch.randn(2, 5, side, side, generator=generator, dtype=torch.float64)
    rows = conv.weight.detach().flatten(1)
    centred = rows - rows.mean(1, keepdim=True)
    variance = centred.square().mean(1, keepdim=True)
    scale = variance.sqrt() + 1e-5 if flavour == "google" else (variance + 1e-8).sqrt()
    total = (-(-side // stride) - 1) * stride + kernel - side
    before, after = max(total, 0) // 2, max(total, 0) - max(total, 0) // 2
    wanted = F.conv2d(F.pad(x, (before, after, before, after)), (centred / scale).view_as(conv.weight), None, stride)
    torch.testing.assert_close(conv(x), wanted, rtol=1e-12, atol=1e-12)


def test_it_learns_at_any_resolution_and_in_checkpointed_blocks():
    config = config_of("R26+S/32", depth=1, width=64, heads=2, mlp_dim=64, num_classes=3, image_size=64)
    model = VisionTransformer(config)
    model.head.weight.data.normal_()
    loss = model(torch.randn(2, 3, 64, 96)).square().mean()
    loss.backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_what_does_not_fit():
    with pytest.raises(UsageError, match="the patch is 16 or 32"):
        config_of("R50+B/8")
    with pytest.raises(ConfigError, match="multiples of 16"):
        config_of("B/8", stem="resnet")
    with pytest.raises(ConfigError, match="multiple of 32"):
        config_of("B/16", stem={"kind": "resnet", "width": 48})
