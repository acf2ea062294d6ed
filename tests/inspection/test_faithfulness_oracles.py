"""Faithfulness on a Vision Transformer trained on real digits, and against Quantus and scipy.

Quantus is not a dependency: tests that need it are skipped where it cannot be imported.
"""

import copy
import types
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from torch import Tensor, nn

from vitreous.accelerate.model import accelerate
from vitreous.errors import ConfigError, DataError, NonFiniteError
from vitreous.inspection.faithfulness.curves import deletion, insertion
from vitreous.inspection.faithfulness.randomisation import randomisation, randomised, rank_correlation
from vitreous.inspection.faithfulness.removal import blurred
from vitreous.inspection.faithfulness.saco import saco
from vitreous.inspection.faithfulness.table import faithfulness_table
from vitreous.model.vit import VisionTransformer, ViTConfig

PATCH, GRID = 2, 4


@pytest.fixture(scope="module")
def quantus() -> types.ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("quantus", reason="Quantus cannot be imported", exc_type=ImportError)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """1,797 handwritten digits, normalised, (n, 1, 8, 8), and their classes."""
    pixels, classes = load_digits(return_X_y=True)
    pixels = torch.from_numpy((pixels - pixels.mean()) / pixels.std()).float()
    return pixels.reshape(-1, 1, 8, 8), torch.from_numpy(classes)


@pytest.fixture(scope="module")
def model(digits) -> VisionTransformer:
    """A ViT of 16 patches, trained on the first 1,200 digits for 10 epochs, about 5 s."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = ViTConfig(
            image_size=8, patch_size=PATCH, in_channels=1, num_classes=10, width=32, depth=4, heads=4, mlp_dim=64
        )
        vit = VisionTransformer(config)
        optimiser = torch.optim.AdamW(vit.parameters(), lr=3e-3)
        for _ in range(10):
            for rows in torch.randperm(1200).split(50):
                loss = nn.functional.cross_entropy(vit(digits[0][rows]), digits[1][rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return vit.eval()


@pytest.fixture(scope="module")
def held_out(digits, model) -> tuple[Tensor, Tensor]:
    """120 digits that training has not seen, which the model classifies well, and the predicted classes."""
    images = digits[0][1200:1320]
    with torch.no_grad():
        predicted = model(images).argmax(1)
    assert (predicted == digits[1][1200:1320]).float().mean() > 0.8
    return images, predicted


@pytest.fixture(scope="module")
def predict(model):
    return lambda images: model(images).softmax(1)


def gradient_maps(vit: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Gradient times input, summed over the pixels of a patch, (N, 4, 4)."""
    images = images.clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(vit(images).gather(1, targets[:, None]).sum(), images)
    products = (gradient * images).detach().sum(1)
    return products.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).sum((3, 4))


def occlusion_maps(predict, images: Tensor, targets: Tensor) -> Tensor:
    """How much the probability drops without each patch, (N, 4, 4), by a loop over patches."""
    with torch.no_grad():
        whole = predict(images).gather(1, targets[:, None])[:, 0]
        drops = []
        for row in range(GRID):
            for column in range(GRID):
                without = images.clone()
                without[:, :, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] = 0
                drops.append(whole - predict(without).gather(1, targets[:, None])[:, 0])
    return torch.stack(drops, 1).unflatten(1, (GRID, GRID))


def test_maps_that_measure_removal_beat_random_maps_and_their_negatives_do_not(predict, held_out):
    images, targets = held_out
    occlusion = occlusion_maps(predict, images, targets)
    maps = {"occlusion": occlusion, "negative": -occlusion}
    rows = {row.method: row for row in faithfulness_table(predict, images, targets, maps, groups=8)}
    assert rows["occlusion"].verdict == "better than random"
    assert rows["negative"].verdict == "no better than random"
    assert rows["negative"].saco.high < rows["random"].saco.low
    assert rows["occlusion"].deletion.high < rows["random"].deletion.low
    assert rows["occlusion"].insertion.low > rows["random"].insertion.high
    each = saco(predict, images, occlusion, targets, groups=16)
    assert float(each.min()) > 0.999, "one patch per group: the map is the drop itself"


def test_the_batch_size_of_a_transformer_does_not_matter(predict, held_out):
    images, targets = held_out[0][:40], held_out[1][:40]
    maps = gradient_maps(predict, images, targets)
    found = [saco(predict, images, maps, targets, groups=8, batch_size=size) for size in (3, 64, 512)]
    assert (found[0] - found[1]).abs().max() < 1e-6
    assert (found[0] - found[2]).abs().max() < 1e-6


# Quantus ------------------------------------------------------------------------------------------------------------


class Probabilities(nn.Module):
    """A model that Quantus can call: its outputs are scored as they are."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images: Tensor) -> Tensor:
        return self.vit(images).softmax(1)


def quantus_scores(metric, model, images: Tensor, targets: Tensor, per_pixel: Tensor) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = metric(
            model=Probabilities(model).eval(),
            x_batch=images.numpy().copy(),
            y_batch=targets.numpy(),
            a_batch=per_pixel[:, None].numpy(),
            softmax=None,
            device="cpu",
            channel_first=True,
        )
    return np.asarray(found)


PLAIN = {"abs": False, "normalise": False, "disable_warnings": True}


@pytest.mark.parametrize("fill", [0.0, -0.8])
def test_deletion_of_patches_equals_region_perturbation_of_quantus(quantus, model, predict, held_out, fill):
    images, targets = held_out
    maps = gradient_maps(model, images, targets)
    metric = quantus.RegionPerturbation(patch_size=PATCH, regions_evaluation=16, perturb_baseline=fill, **PLAIN)
    per_pixel = maps.repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    drops = quantus_scores(metric, model, images, targets, per_pixel)
    found = deletion(predict, images, maps, targets, steps=16, background=torch.tensor([fill]))
    assert np.abs((found.scores[:, :1] - found.scores[:, 1:]).numpy() - drops).max() < 1e-6
    area = np.trapezoid(found.scores.numpy()[:, :1] - np.insert(drops, 0, 0, axis=1), dx=1 / 16, axis=1)
    assert np.abs(found.auc.numpy() - area).max() < 1e-6


@pytest.mark.parametrize("step", [1, 4, 32])
def test_deletion_of_pixels_equals_pixel_flipping_of_quantus(quantus, model, predict, held_out, step):
    images, targets = held_out[0][:40], held_out[1][:40]
    maps = torch.randn(40, 8, 8, generator=torch.Generator().manual_seed(2))
    metric = quantus.PixelFlipping(features_in_step=step, perturb_baseline=0.0, **PLAIN)
    flipped = quantus_scores(metric, model, images, targets, maps)
    found = deletion(predict, images, maps, targets, steps=64 // step).scores[:, 1:].numpy()
    assert np.abs(found - flipped).max() < 1e-6


def test_insertion_equals_pixel_flipping_of_quantus_from_the_background(quantus, model, predict, held_out):
    """Quantus has no insertion: it starts from blurred images, and each flip restores pixels of the original."""
    images, targets = held_out[0][:40], held_out[1][:40]
    maps = torch.randn(40, 8, 8, generator=torch.Generator().manual_seed(3))
    originals = images.flatten(1).numpy()

    def restore(arr, indices, **_):
        changed = arr.copy()
        np.put_along_axis(changed, indices, np.take_along_axis(originals, indices, 1), 1)
        return changed

    metric = quantus.PixelFlipping(features_in_step=4, perturb_func=restore, **PLAIN)
    behind = blurred(images, 5, 2.0)
    wanted = quantus_scores(metric, model, behind, targets, maps)
    found = insertion(predict, images, maps, targets, steps=16, background=behind).scores
    assert np.abs(found[:, 1:].numpy() - wanted).max() < 1e-6


def test_the_correlation_equals_that_of_quantus_for_the_maps_of_each_randomised_layer(quantus, model, held_out):
    images, targets = held_out[0][:40], held_out[1][:40]
    seen = []

    def explain(model, inputs, targets, **_):
        maps = gradient_maps(model.vit, torch.as_tensor(inputs), torch.as_tensor(targets))
        seen.append(maps.clone())
        return maps.repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)[:, None].numpy()

    metric = quantus.MPRT(**PLAIN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = metric(
            model=Probabilities(copy.deepcopy(model)).eval(),
            x_batch=images.numpy(),
            y_batch=targets.numpy(),
            explain_func=explain,
            channel_first=True,
            device="cpu",
        )
    wanted = [layer for name, layer in scores.items() if name != "original"]
    originals, changed = seen[0], seen[-len(wanted) :]
    assert len(wanted) > 10
    found = torch.stack([rank_correlation(originals, maps) for maps in changed]).numpy()
    assert np.nanmax(np.abs(found - np.array(wanted))) < 1e-6
    assert np.isfinite(found).mean() > 0.9
    assert np.ptp(found[np.isfinite(found)]) > 0.5


# Randomisation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [None, 4])
def test_the_correlation_equals_scipys_with_and_without_ties(levels):
    first, second = torch.randn(2, 50, 5, 7, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    second = second + first
    if levels:
        first, second = (torch.round(maps * levels / 4) for maps in (first, second))
    wanted = [spearmanr(a.flatten(), b.flatten()).statistic for a, b in zip(first, second, strict=True)]
    assert rank_correlation(first, second).numpy() == pytest.approx(np.array(wanted), abs=1e-12)


def test_the_correlation_with_a_constant_map_is_undefined_and_with_itself_1():
    maps = torch.rand(3, 4, 4)
    assert rank_correlation(maps, maps).tolist() == pytest.approx([1.0] * 3)
    assert rank_correlation(maps, -maps).tolist() == pytest.approx([-1.0] * 3)
    assert rank_correlation(maps, torch.full((3, 4, 4), 0.1)).isnan().all()


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("last_blocks", [None, 0, 1, 4])
def test_only_the_last_blocks_and_what_follows_them_change(model, held_out, fast, last_blocks):
    vit = accelerate(copy.deepcopy(model)).eval() if fast else model
    before, state = copy.deepcopy(vit.state_dict()), torch.get_rng_state()
    other = randomised(vit, last_blocks)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(other) is type(vit)
    assert not other.training
    count = 2 if last_blocks is None else last_blocks
    new = (*(f"blocks.{number}." for number in range(4 - count, 4)), "norm.", "head.")
    for name, value in other.state_dict().items():
        assert torch.equal(vit.state_dict()[name], before[name]), "the model itself stays as it is"
        assert torch.equal(value, before[name]) != name.startswith(new), name
    assert other.head.weight.std() > 0, "a head at zero would have constant maps"
    assert torch.equal(randomised(vit, last_blocks).head.weight, other.head.weight)
    assert not torch.equal(randomised(vit, last_blocks, seed=1).head.weight, other.head.weight)


def test_maps_that_ignore_the_model_survive_randomisation_and_gradients_do_not(model, held_out):
    images, targets = held_out
    brightness = lambda vit, images, targets: images[:, 0].unfold(1, 2, 2).unfold(2, 2, 2).mean((3, 4))  # noqa: E731
    assert randomisation(brightness, model, images, targets).tolist() == pytest.approx([1.0] * len(images))
    correlations = randomisation(gradient_maps, model, images, targets)
    assert correlations.shape == (len(images),)
    assert abs(float(correlations.mean())) < 0.5


def test_wrong_randomisations_are_named(model):
    for count in (-1, 5):
        with pytest.raises(ConfigError, match="from 0 to 4"):
            randomised(model, count)
    with pytest.raises(DataError, match="one shape"):
        rank_correlation(torch.rand(2, 3, 3), torch.rand(2, 9))
    with pytest.raises(NonFiniteError, match="no ranks"):
        rank_correlation(torch.rand(2, 3, 3), torch.full((2, 3, 3), torch.nan))
