"""Losses against lightly and transformers, where they are installed, and against numbers that they gave once.

The fixed numbers are those of lightly 1.6.0 on a CPU, with torch 2.14.1: the losses below on `projections()`, with 32
slices from ``torch.manual_seed(0)``. For DINO, the logits are a third of the projections and the center is
``linspace(-0.2, 0.2, 8)``.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings

import numpy as np
import pytest
import torch

from vitreous.accelerate.batch_parts import add_gradients, without_statistics
from vitreous.accelerate.model import build
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig
from vitreous.model.stems import ConvStem, LinearStem
from vitreous.train.pretrain.objectives.dino import Dino, DinoConfig, dino_loss
from vitreous.train.pretrain.objectives.invariance import invariance_loss, unit_vectors
from vitreous.train.pretrain.objectives.lejepa import LeJepaConfig, sigreg
from vitreous.train.pretrain.objectives.mae import Mae, MaeConfig, draw_mask, mae_loss, patch_targets
from vitreous.train.pretrain.objectives.mpp import Mpp, MppConfig, corrupt, draw_corruption, mean_colours
from vitreous.train.pretrain.objectives.spread import effective_rank, rankme
from vitreous.train.pretrain.objectives.views import ViewsConfig
from vitreous.train.pretrain.objectives.visreg import VisRegConfig, center_loss, scale_loss, shape_loss

PIPELINE = EvalPipeline((16, 16), 3, PreprocessConfig(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3)))
SMALL = ViTConfig(image_size=16, patch_size=4, num_classes=0, width=32, depth=2, heads=2, mlp_dim=64, stem=LinearStem())
SLICES = 32
VISREG = {  # of VISRegLoss.forward_components: weight 0.6, the first two views large
    "total": 0.33919191360473633,
    "agreement": 0.4488491117954254,
    "scale": 0.005689447745680809,
    "shape": 0.2577912509441376,
    "center": 0.002606385387480259,
}
SIGREG, LEJEPA, DINO = 2.374737501144409, 0.5451435446739197, 2.665412664413452


def projections(views: int = 3, images: int = 16, features: int = 8) -> torch.Tensor:
    """Numbers without a random generator, (V, B, D)."""
    n = torch.arange(views * images * features, dtype=torch.float64)
    return (torch.sin(1.7 * n + 0.3 * n.sqrt()) * 1.3 + 0.2 * torch.cos(0.05 * n)).float().view(views, images, -1)


def slices() -> torch.Tensor:
    torch.manual_seed(0)
    return unit_vectors(8, SLICES, torch.empty(0))


def our_visreg(z: torch.Tensor) -> dict[str, float]:
    parts = {"agreement": invariance_loss(z, 2), "scale": scale_loss(z), "center": center_loss(z)}
    parts["shape"] = shape_loss(z, slices())
    total = 0.4 * parts["agreement"] + 0.6 * (parts["scale"] + parts["shape"] + parts["center"])
    return {name: float(value) for name, value in parts.items()} | {"total": float(total)}


def our_lejepa(z: torch.Tensor) -> float:
    return float(0.05 * sigreg(z, slices()) + 0.95 * invariance_loss(z, 2))


def our_dino(z: torch.Tensor) -> float:
    center = torch.linspace(-0.2, 0.2, 8)
    return float(dino_loss(torch.softmax((z[:2] - center) / 0.04, -1), z / 0.1))


def test_losses_equal_the_numbers_of_lightly():
    z = projections()
    assert our_visreg(z) == pytest.approx(VISREG, rel=1e-6, abs=1e-8)
    assert float(sigreg(z, slices())) == pytest.approx(SIGREG, rel=1e-6)
    assert our_lejepa(z) == pytest.approx(LEJEPA, rel=1e-6)
    assert our_dino(z / 3) == pytest.approx(DINO, rel=1e-6)


def test_losses_equal_lightly():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses = pytest.importorskip("lightly.loss", reason="lightly is not installed")
    z = torch.randn(4, 24, 8, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    theirs = losses.VISRegLoss(lambda_param=0.6, num_slices=SLICES)
    found = theirs.forward_components(local_proj=z[2:], global_proj=z[:2])._asdict()
    found["agreement"] = found.pop("pred")
    assert our_visreg(z) == pytest.approx({name: float(value) for name, value in found.items()}, rel=1e-6)
    torch.manual_seed(0)
    lejepa = losses.LeJEPALoss(lambda_param=0.05, sigreg_num_vectors=SLICES)
    expected = float(lejepa(local_proj=z[2:], global_proj=z[:2]))
    assert our_lejepa(z) == pytest.approx(expected, rel=1e-6)
    dino = losses.DINOLoss(output_dim=8)
    dino.center.copy_(torch.linspace(-0.2, 0.2, 8).view(1, 1, 8))
    assert our_dino(z) == pytest.approx(float(dino(list(z[:2]), list(z))), rel=1e-6)


def test_the_center_and_the_teacher_are_moving_averages():
    torch.manual_seed(0)
    backbone = build(SMALL)
    options = DinoConfig(outputs=8, hidden=16, bottleneck=4, center_momentum=0.9, momentum=0.5)
    objective = Dino(backbone, PIPELINE, options, ViewsConfig())
    views = [torch.randn(4, 3, 16, 16) for _ in range(2)]
    with torch.no_grad():
        outputs = torch.stack([objective.teacher_head(objective.teacher(view, "features")) for view in views])
    objective(views)
    assert torch.allclose(objective.center, 0.1 * outputs.mean((0, 1)), atol=1e-7)
    before, target = objective.teacher.cls_token.clone(), objective.backbone.cls_token
    with torch.no_grad():
        target.add_(1.0)
    objective.after_update(0.0)
    assert torch.allclose(objective.teacher.cls_token, before + 0.5, atol=1e-6)
    objective.after_update(1.0)  # by the end the teacher stands still
    assert torch.allclose(objective.teacher.cls_token, before + 0.5, atol=1e-6)


def test_the_teacher_has_the_statistics_of_the_stem_too():
    torch.manual_seed(0)
    config = dataclasses.replace(SMALL, patch_size=8, stem=ConvStem(downsample="stride"))
    objective = Dino(
        build(config), PIPELINE, DinoConfig(outputs=8, hidden=16, bottleneck=4, momentum=0.5), ViewsConfig()
    )
    objective.train()
    objective.teacher.eval()  # as what is frozen is
    objective.backbone(torch.randn(8, 3, 16, 16) + 3)
    names = [name for name, _ in objective.teacher.named_buffers() if name.endswith(("running_mean", "running_var"))]
    assert names
    before, student = (dict(model.named_buffers()) for model in (copy.deepcopy(objective.teacher), objective.backbone))
    objective.after_update(0.0)
    after = dict(objective.teacher.named_buffers())
    for name in names:
        assert not torch.allclose(student[name], before[name])
        torch.testing.assert_close(after[name], (before[name] + student[name]) / 2)


def their_mae(normalise: bool):
    """A masked autoencoder of transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        config = transformers.ViTMAEConfig(
            **{"image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"intermediate_size": 64, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1},
            **{"decoder_num_attention_heads": 2, "decoder_intermediate_size": 64, "norm_pix_loss": normalise},
            attn_implementation="eager",
        )
        torch.manual_seed(3)
        return transformers.ViTMAEForPreTraining(config).eval()


def test_the_dino_loss_is_not_rounded_to_bfloat16():
    target, student = projections(2).softmax(-1), projections(3)
    with torch.autocast("cpu", torch.bfloat16):
        found = dino_loss(target, student)
    assert torch.equal(found, dino_loss(target, student))


@pytest.mark.parametrize("normalise", [True, False])
def test_the_mae_loss_equals_that_of_transformers_on_the_same_mask(normalise):
    theirs = their_mae(normalise)
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    found = theirs(images, noise=torch.rand(3, 16, generator=torch.Generator().manual_seed(6)))
    ours = found.logits.detach().view(3, 16, 16, 3).transpose(2, 3).flatten(2)  # they order a patch by rows, we by RGB
    is_hidden, targets = found.mask.bool(), patch_targets(images, (4, 4), normalise)
    assert is_hidden.sum() == 36
    assert float(mae_loss(ours[is_hidden], targets[is_hidden])) == pytest.approx(float(found.loss.detach()), abs=1e-6)


@pytest.mark.parametrize("stem", [LinearStem(), ConvStem()])
def test_threads_compute_the_mae_loss_and_gradient_of_the_whole_batch(stem):
    found = []
    for threads in (1, 2):
        torch.manual_seed(0)
        objective = Mae(build(config(stem=stem)), PIPELINE, MaeConfig(decoder_heads=2)).train()
        images = torch.randn(13, 3, 16, 16)
        torch.manual_seed(1)
        if threads == 1:
            losses = objective((images,))
            losses.loss.backward()
            loss, embeddings = losses.loss.detach(), losses.embeddings
        else:
            split = objective.in_parts((images,))
            own = {"loss_of": split.loss_of, "extra": split.trained}
            with without_statistics(objective.backbone.patch_embed):
                loss = add_gradients(objective.backbone, split.shown, split.shown, 2, **own)
            embeddings = torch.cat([rows for _, rows in sorted(split.embeddings.items())])
        gradients = {name: p.grad for name, p in objective.named_parameters() if p.requires_grad}
        found.append((loss, embeddings, gradients, dict(objective.named_buffers())))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_running_statistics_are_those_of_whole_images():
    torch.manual_seed(0)
    objective = Mae(build(config(stem=ConvStem())), PIPELINE, MaeConfig(decoder_heads=2)).train()
    stem, images = copy.deepcopy(objective.backbone.patch_embed), torch.randn(4, 3, 16, 16)
    stem(images)
    objective((images,))
    torch.testing.assert_close(dict(objective.backbone.patch_embed.named_buffers()), dict(stem.named_buffers()))
    objective.eval()
    objective((images,))
    torch.testing.assert_close(dict(objective.backbone.patch_embed.named_buffers()), dict(stem.named_buffers()))
    assert not objective.backbone.patch_embed.training


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("stem", [LinearStem(), ConvStem()])
def test_the_encoder_sees_visible_patches_alone(stem, training):
    torch.manual_seed(0)
    objective = Mae(build(config(stem=stem)), PIPELINE, MaeConfig(decoder_heads=2)).train(training)
    images = torch.randn(2, 3, 16, 16)
    kept, hidden = draw_mask(images, objective.backbone.patch_embed.patch, 0.75)
    assert kept.shape == (2, 4)
    assert hidden.shape == (2, 12)
    assert torch.cat((kept, hidden), 1).sort(1).values.tolist() == [list(range(16))] * 2
    lengths = []
    for block in objective.backbone.blocks:
        block.register_forward_hook(lambda module, inputs, output: lengths.append(inputs[0].shape[1]))
    first = objective.predict(images, kept, hidden)[0]
    assert lengths == [5, 5]  # [CLS] and 4 of 16 patches
    changed = images.clone()
    for image, patches in zip(changed, hidden, strict=True):
        for n in patches.tolist():
            image[:, 4 * (n // 4) : 4 * (n // 4) + 4, 4 * (n % 4) : 4 * (n % 4) + 4] = 7.0
    assert torch.equal(objective.predict(changed, kept, hidden)[0], first)


def reference_colours(pixels: np.ndarray, patch: int) -> np.ndarray:
    """Appendix B.1.2, patch by patch in whole numbers: 3 bits of the mean of each channel."""
    count, _, height, width = pixels.shape
    found = np.zeros((count, height // patch * (width // patch)), int)
    for image in range(count):
        for n in range(found.shape[1]):
            row, column = divmod(n, width // patch)
            block = pixels[image, :, row * patch :, column * patch :][:, :patch, :patch]
            red, green, blue = (int(channel.sum()) // (32 * patch * patch) for channel in block.astype(int))
            found[image, n] = 64 * red + 8 * green + blue
    return found


def test_mpp_classes_equal_a_reference_and_come_from_pixels_before_normalisation():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 16, 16), dtype=np.uint8)
    pixels[3:] = pixels[3:, :, :1, :1]  # one colour each, also at the edges of the levels
    pixels[5] = 32
    expected = reference_colours(pixels, 4)
    objective = Mpp(build(SMALL), PIPELINE, MppConfig())
    normalised = PIPELINE.normalise(torch.from_numpy(pixels))
    assert objective.classes == 512
    assert mean_colours(objective.to_pixels(normalised), (4, 4)).tolist() == expected.tolist()


def test_mpp_corrupts_as_the_appendix_says():
    torch.manual_seed(0)
    drawn = draw_corruption(2000, 16, MppConfig())
    chosen = torch.zeros(2000, 16, dtype=torch.bool).scatter(1, drawn.chosen, True)
    own = torch.arange(16)
    replaced = drawn.source != own
    assert (chosen.sum(1) == 8).all()
    assert not (drawn.masked & ~chosen).any()
    assert not (replaced & (~chosen | drawn.masked)).any()
    assert drawn.masked.sum() / chosen.sum() == pytest.approx(0.8, abs=0.01)  # sd 0.003 at n = 16,000
    assert replaced.sum() / chosen.sum() == pytest.approx(0.1, abs=0.01)
    x, token = torch.randn(2000, 16, 4), torch.full((1, 1, 4), 9.0)
    expected = x.clone()
    for image, patch in replaced.nonzero().tolist():
        expected[image, patch] = x[image, drawn.source[image, patch]]
    expected[drawn.masked] = 9.0
    assert torch.equal(corrupt(x, token, drawn), expected)


def test_the_mpp_loss_is_the_cross_entropy_of_the_corrupted_patches():
    torch.manual_seed(0)
    objective = Mpp(build(SMALL), PIPELINE, MppConfig()).eval()
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    images = PIPELINE.normalise(pixels)
    torch.manual_seed(4)
    loss = float(objective((images,)).loss.detach())
    torch.manual_seed(4)
    drawn = draw_corruption(2, 16, MppConfig())
    x, grid = objective.backbone.patch_embed(images)
    z = objective.backbone.from_patches(corrupt(x, objective.mask_token, drawn), grid, "tokens")[:, 1:]
    log_p = torch.log_softmax(objective.predict(z).double(), -1)
    classes = reference_colours(pixels.numpy(), 4)
    terms = [-log_p[b, n, classes[b, n]] for b in range(2) for n in drawn.chosen[b].tolist()]
    assert loss == pytest.approx(float(torch.stack(terms).mean().detach()), abs=1e-5)


def test_ranks_of_known_spectra():
    basis = torch.linalg.qr(torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    basis = torch.linalg.qr(basis - basis.mean(0))[0]
    assert effective_rank(basis) == pytest.approx(6, abs=1e-6)
    assert effective_rank(basis[:, :1] @ torch.ones(1, 6, dtype=torch.float64)) == pytest.approx(1, abs=1e-6)
    assert effective_rank(torch.ones(5, 3)) == 0.0
    assert rankme(torch.ones(5, 3)) == pytest.approx(1, abs=1e-6)
    assert rankme(basis * torch.tensor([1.0, 1, 1, 1e-9, 1e-9, 1e-9])) == pytest.approx(3, abs=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mpp(build(config(stem=ConvStem())), PIPELINE, MppConfig()), "the stem conv"),
        (lambda: Mae(build(config(image_size=4)), PIPELINE, MaeConfig(decoder_heads=2)), "hides none of 1"),
        (
            lambda: Mae(build(SMALL), PIPELINE, MaeConfig(decoder_heads=2)).check_scale(0.25),
            "hides none of 1 patches of",
        ),
        (
            lambda: Dino(build(SMALL), PIPELINE, DinoConfig(), ViewsConfig(local=1)).check_scale(0.75),
            "augment.small_first 0.75 makes small crops 6 x 6, it must be a multiple of the patch, 4 x 4",
        ),
        (lambda: MaeConfig(mask=1.0, decoder_depth=0), "^mae.mask is 1.0.*mae.decoder_depth is 0"),
        (lambda: MppConfig(masked=0.9, replaced=0.2), "^mpp.masked is 0.9 and mpp.replaced 0.2, .* together at most 1"),
        (lambda: ViewsConfig(count=1), "^views.count is 1, .* from 2 to 16"),
        (lambda: VisRegConfig(weight=2.0), r"^visreg.weight is 2.0, .* in \[0, 1\]"),
        (lambda: LeJepaConfig(slices=0), "^lejepa.slices is 0"),
        (lambda: DinoConfig(teacher_temperature=0.0), "^dino.teacher_temperature is 0.0, .* above 0"),
        (
            lambda: Dino(build(SMALL), PIPELINE, DinoConfig(), ViewsConfig(local=1, local_size=6)),
            "multiple of the patch",
        ),
    ],
)
def test_impossible_options_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def config(**fields) -> ViTConfig:
    return dataclasses.replace(SMALL, **fields)
