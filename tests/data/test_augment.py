"""Whole augmented batches: what each option must keep, targets that stay distributions, repeatable draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from photos import digits, pipeline, tiles
from PIL import Image
from torchvision.transforms.v2 import functional as tv

from vitreous.data.augment import mixing
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.augment.resized_crop import resized_crop
from vitreous.data.config import AugmentConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import generator, uniforms
from vitreous.errors import ConfigError

K = 7
PIPELINE = pipeline(24, 32)
EVERYTHING = {
    "pad_crop": 3,
    "policy": "rand",
    "color_jitter": 0.3,
    "erasing": 0.5,
    "mixup": 0.4,
    "cutmix": 1.0,
}


def batch(count: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    return tiles(count, 24, 32), torch.arange(count) % K


def augment(seed: int = 0, label_smoothing: float = 0.0, **fields: object) -> BatchAugment:
    return BatchAugment(AugmentConfig(**{"flip": 0.0, **fields}), PIPELINE, K, seed, label_smoothing)


def test_without_options_it_is_the_evaluation_pipeline():
    images, labels = batch()
    pixels, targets = augment()(images, labels, epoch=0, step=0)
    assert torch.equal(pixels, PIPELINE.normalise(images))
    assert torch.equal(targets, F.one_hot(labels, K).float())
    assert pixels.dtype == targets.dtype == torch.float32


def test_draws_depend_on_seed_epoch_and_step_alone():
    images, labels = batch()
    before = images.clone()
    torch.manual_seed(1)
    first = augment(seed=3, **EVERYTHING)(images, labels, epoch=2, step=5)
    torch.manual_seed(2)
    np.random.default_rng().random()
    again = augment(seed=3, **EVERYTHING)(images, labels, epoch=2, step=5)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(images, before)
    for seed, epoch, step in ((4, 2, 5), (3, 1, 5), (3, 2, 4), (3, 5, 2)):
        other = augment(seed=seed, **EVERYTHING)(images, labels, epoch=epoch, step=step)
        assert (first[0] != other[0]).flatten(1).any(1).float().mean() > 0.9


def test_it_leaves_torchs_and_numpys_global_generators_alone():
    images, labels = batch()
    state, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()
    augment(**EVERYTHING)(images, labels, epoch=0, step=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpys)


def test_streams_are_apart_and_the_numbers_are_these():
    # Frozen: another order of draws would make every recorded run unrepeatable.
    assert generator(0, 1, 2, stream="order").permutation(8).tolist() == FROZEN_ORDER
    first = uniforms(7, 0, 3, stream="flip", columns=2, count=5000)
    assert np.allclose(first[0], FROZEN_FLIP)
    assert abs(np.corrcoef(first[:, 0], uniforms(7, 0, 3, stream="crop", columns=2, count=5000)[:, 0])[0, 1]) < 0.05
    assert abs(np.corrcoef(first[:, 0], uniforms(7, 0, 4, stream="flip", columns=2, count=5000)[:, 0])[0, 1]) < 0.05
    assert np.array_equal(uniforms(7, 0, 3, stream="flip", columns=2, count=100, offset=60), first[60:160])
    assert np.array_equal(uniforms(-1, 0, 3, stream="flip", columns=2, count=3).shape, (3, 2))


FROZEN_ORDER = [4, 2, 1, 3, 0, 7, 6, 5]
FROZEN_FLIP = [0.13944226503372192, 0.8666684031486511]


@pytest.mark.parametrize("fields", [EVERYTHING, {"policy": "trivial"}, {"policy": "three", "cutmix": 1.0}])
def test_a_step_cut_into_parts_is_the_same_step(fields):
    images, labels = batch(48)
    whole = augment(**fields)(images, labels, epoch=1, step=1)
    parts = [
        augment(**fields)(images[at : at + 12], labels[at : at + 12], epoch=1, step=1, offset=at)
        for at in range(0, 48, 12)
    ]
    assert torch.equal(torch.cat([targets for _, targets in parts]), whole[1])
    assert torch.allclose(torch.cat([pixels for pixels, _ in parts]), whole[0], atol=0.03)  # a level where sums round
    assert (torch.cat([pixels for pixels, _ in parts]) == whole[0]).float().mean() > 0.999


def test_flips_come_as_often_as_asked():
    images, labels = batch(48)
    flipped = total = 0
    for step in range(40):
        pixels, _ = augment(flip=0.3)(images, labels, epoch=0, step=step)
        mirrored = (pixels == PIPELINE.normalise(images.flip(3))).flatten(1).all(1)
        kept = (pixels == PIPELINE.normalise(images)).flatten(1).all(1)
        assert (mirrored ^ kept).all()
        flipped, total = flipped + int(mirrored.sum()), total + len(images)
    assert abs(flipped / total - 0.3) < 4 * (0.3 * 0.7 / total) ** 0.5


def test_pad_crop_takes_every_offset_alike():
    image = torch.arange(24 * 32).view(1, 1, 24, 32)
    position = torch.cat([image // 32, image % 32, image * 0], 1).to(torch.uint8).expand(400, 3, 24, 32)
    seen = torch.zeros(5, 5)
    for step in range(5):
        pixels, _ = augment(pad_crop=2)(position, torch.zeros(400, dtype=torch.long), epoch=0, step=step)
        mean, std = torch.tensor(PIPELINE.config.mean), torch.tensor(PIPELINE.config.std)
        middle = ((pixels[:, :, 12, 16] * std + mean) * 255).round().long()[:, :2] - torch.tensor([12, 16]) + 2
        seen.index_put_(tuple(middle.T), torch.ones(400), accumulate=True)
    assert (seen > 0).all()
    assert ((seen - 80).square() / 80).sum() < 51  # chi-square with 24 degrees of freedom, p = 0.001


def test_boxes_are_cut_from_canvases_and_flips_follow():
    canvases, labels = tiles(16, 30, 40), torch.zeros(16, dtype=torch.long)
    boxes = torch.tensor([[0.1, 0.2, 0.5, 0.6]]).repeat(16, 1)
    pixels, _ = augment()(canvases, labels, epoch=0, step=0, boxes=boxes)
    assert torch.equal(pixels, PIPELINE.normalise(resized_crop(canvases, boxes, (24, 32))))
    mirrored, _ = augment(flip=1.0)(canvases, labels, epoch=0, step=0, boxes=boxes)
    assert torch.allclose(mirrored, pixels.flip(3), atol=0.03)
    shifted, _ = augment(pad_crop=2)(canvases, labels, epoch=0, step=0, boxes=boxes)
    assert shifted.shape == pixels.shape
    with pytest.raises(ConfigError, match="pass the batch's boxes"):
        augment()(canvases, labels, epoch=0, step=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_large_images_go_through_in_groups_as_they_would_alone(layout):
    canvases, labels = tiles(30, 160, 200), torch.zeros(30, dtype=torch.long)
    boxes = torch.rand(30, 4, generator=torch.Generator().manual_seed(0)) / 2 + torch.tensor([0, 0, 0.4, 0.4])
    strong = BatchAugment(AugmentConfig(color_jitter=0.4), pipeline(150, 180), K, 0)
    images = canvases.contiguous(memory_format=layout)
    together, _ = strong(images, labels, epoch=0, step=0, boxes=boxes.clamp(max=1))
    for at in range(30):
        alone, _ = strong(
            canvases[at : at + 1], labels[:1], epoch=0, step=0, offset=at, boxes=boxes[at : at + 1].clamp(max=1)
        )
        assert torch.allclose(together[at], alone[0], atol=0.03)  # a level where sums round
        assert (together[at] == alone[0]).float().mean() > 0.999


def test_erasing_touches_its_box_only_and_fills_it_with_normal_noise():
    images, labels = batch(48)
    plain = PIPELINE.normalise(images)
    noise, erased = [], 0
    for step in range(20):
        pixels, _ = augment(erasing=0.5)(images, labels, epoch=0, step=step)
        for old, new in zip(plain, pixels, strict=True):
            changed = (old != new).any(0)
            if changed.any():
                rows, columns = changed.any(1).nonzero(), changed.any(0).nonzero()
                assert changed[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
                assert 0.01 < changed.float().mean() < 0.37  # 2 to 33 % of the area, rounded to whole pixels
                noise.append(new[:, changed].flatten())
                erased += 1
    assert abs(erased / 960 - 0.5) < 0.07
    drawn = torch.cat(noise)
    assert abs(drawn.mean()) < 0.05
    assert abs(drawn.std() - 1) < 0.05


@pytest.mark.parametrize("count", [1, 2, 7, 48])
def test_mixup_is_the_blend_that_its_targets_say(count):
    images, labels = batch(count)
    plain = PIPELINE.normalise(images)
    other = mixing.partners(count, torch.device("cpu"))
    assert count == 1 or (other != torch.arange(count)).all()
    for step in range(10):
        pixels, targets = augment(mixup=0.8)(images, labels, epoch=0, step=step)
        assert torch.allclose(targets.sum(1), torch.ones(count), atol=1e-6)
        if count > 1:
            share = targets[0, labels[0]]
            assert torch.allclose(pixels, share * plain + (1 - share) * plain[other], atol=1e-5)
            expected = share * F.one_hot(labels, K) + (1 - share) * F.one_hot(labels[other], K)
            assert torch.allclose(targets, expected, atol=1e-6)
        else:
            assert torch.allclose(pixels, plain, atol=1e-6)


@pytest.mark.parametrize("count", [2, 7, 48])
def test_cutmix_pastes_the_area_that_its_targets_say(count):
    images, labels = batch(count)
    plain = PIPELINE.normalise(images)
    other = mixing.partners(count, torch.device("cpu"))
    areas = []
    for step in range(30):
        pixels, targets = augment(cutmix=1.0)(images, labels, epoch=0, step=step)
        # Every image gets the same box; where no partner differs from its image, nothing can be seen.
        pasted = (pixels != plain).any(1).any(0)
        if pasted.any():
            rows, columns = pasted.any(1).nonzero(), pasted.any(0).nonzero()
            box = (slice(rows.min(), rows.max() + 1), slice(columns.min(), columns.max() + 1))
            assert torch.equal(pixels[:, :, *box], plain[other][:, :, *box])
        area = float(pasted.sum()) / (24 * 32)
        areas.append(area)
        expected = (1 - area) * F.one_hot(labels, K) + area * F.one_hot(labels[other], K)
        if count == 48:
            assert torch.allclose(targets, expected, atol=1e-6)
        assert torch.allclose(targets.sum(1), torch.ones(count), atol=1e-6)
    assert max(areas) > 0.5
    assert min(areas) < 0.1


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.3, 0.75, 1.0])
@pytest.mark.parametrize("centre", [(0.0, 0.0), (0.5, 0.5), (0.999, 0.2)])
def test_cutmix_boxes_are_inside_and_of_the_area(share, centre):
    top, left, bottom, right = mixing.cutmix_box(share, centre, (40, 60))
    assert 0 <= top <= bottom <= 40
    assert 0 <= left <= right <= 60
    side = (1 - share) ** 0.5
    if centre == (0.5, 0.5):
        assert (bottom - top, right - left) == (int(40 * side), int(60 * side))
    else:
        assert (bottom - top, right - left) <= (int(40 * side), int(60 * side))


@pytest.mark.parametrize("fields", [{"mixup": 1.0}, {"cutmix": 1.0}], ids=["mixup", "cutmix"])
def test_pairs_of_which_one_has_no_target_are_not_mixed(fields):
    images, labels = batch(9)
    targets = F.one_hot(labels, K).float()
    targets[[1, 4, 5]] = 0
    mixed, found = augment(flip=0.0, **fields)(images, targets, epoch=0, step=0)
    every, expected = augment(flip=0.0, **fields)(images, labels, epoch=0, step=0)
    whole = PIPELINE.normalise(images)
    for n in range(9):
        is_mixed = n in (2, 3, 6, 7, 8)  # the last one has the first as its partner
        assert torch.equal(mixed[n], every[n] if is_mixed else whole[n])
        assert torch.equal(found[n], expected[n] if is_mixed else targets[n])


def test_smoothed_targets_are_those_of_torchs_cross_entropy():
    labels = torch.arange(20) % K
    logits = torch.randn(20, K, generator=torch.Generator().manual_seed(0))
    targets = mixing.smooth_targets(labels, K, 0.1)
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1)
    assert torch.allclose(F.cross_entropy(logits, targets), expected, atol=1e-6)
    images, labels = batch(20)
    _, mixed = augment(label_smoothing=0.1, mixup=1.0)(images, labels, epoch=0, step=0)
    share = (mixed[0, labels[0]] - 0.1 / K) / 0.9
    other = mixing.partners(20, torch.device("cpu"))
    smooth = mixing.smooth_targets(labels, K, 0.1)
    assert torch.allclose(mixed, share * smooth + (1 - share) * smooth[other], atol=1e-6)


def test_each_batch_gets_mixup_or_cutmix_and_as_many_as_asked():
    images, labels = batch(8)
    plain, kinds = PIPELINE.normalise(images), {"none": 0, "mixup": 0, "cutmix": 0}
    for step in range(300):
        pixels, targets = augment(mixup=1.0, cutmix=1.0, mix_chance=0.6)(images, labels, epoch=0, step=step)
        if torch.equal(targets, F.one_hot(labels, K).float()):
            kinds["none"] += 1
        else:
            other = plain[mixing.partners(8, torch.device("cpu"))]
            kinds["cutmix" if ((pixels == plain) | (pixels == other)).all() else "mixup"] += 1
    assert abs(kinds["none"] / 300 - 0.4) < 0.1
    assert abs(kinds["mixup"] / 300 - 0.3) < 0.1
    assert abs(kinds["cutmix"] / 300 - 0.3) < 0.1


def test_mixing_waits_for_its_epoch():
    images, labels = batch()
    always, later = (augment(flip=0.5, mixup=1.0, mix_after=epochs) for epochs in (0, 3))
    _, unmixed = later(images, labels, epoch=2, step=0)
    assert torch.equal(unmixed, F.one_hot(labels, K).float())
    mixed = [each(images, labels, epoch=3, step=0) for each in (always, later)]
    assert all(torch.equal(a, b) for a, b in zip(*mixed, strict=True))
    assert not torch.equal(mixed[0][1], unmixed)


def test_off_last_leaves_crop_flip_and_jitter_only():
    images, labels = batch()
    strong = augment(flip=0.5, off_last=0.25, **EVERYTHING)
    calm = augment(flip=0.5, pad_crop=3, color_jitter=0.3)
    for progress in (0.75, 0.9, 1.0):
        late = strong(images, labels, epoch=0, step=0, progress=progress)
        assert all(torch.equal(a, b) for a, b in zip(late, calm(images, labels, epoch=0, step=0), strict=True))
    early = strong(images, labels, epoch=0, step=0, progress=0.7499)
    assert not torch.equal(early[1], F.one_hot(labels, K).float())
    always = augment(**EVERYTHING)(images, labels, epoch=0, step=0, progress=1.0)
    assert torch.equal(always[1], early[1])


def test_smaller_images_come_first():
    images, labels = batch()
    growing, whole = (
        augment(flip=0.5, small_first=sides, small_until=0.6, **EVERYTHING) for sides in ((0.25, 0.75), ())
    )
    for progress, size in (
        (0, (6, 8)),
        (0.29, (6, 8)),
        (0.31, (18, 24)),
        (0.59, (18, 24)),
        (0.6, (24, 32)),
        (1, (24, 32)),
    ):
        small, targets = growing(images, labels, epoch=0, step=0, progress=progress)
        full, expected = whole(images, labels, epoch=0, step=0, progress=progress)
        assert small.shape == (48, 3, *size)
        assert torch.equal(targets, expected)
        assert torch.equal(small, tv.resize(full, size, antialias=True))


def test_crops_are_cut_at_the_smaller_size_unless_pixels_are_counted_behind_them():
    canvases, labels = (
        torch.randint(0, 256, (16, 3, 40, 50), generator=torch.Generator().manual_seed(0)),
        torch.arange(16) % K,
    )
    canvases, boxes = canvases.to(torch.uint8), torch.tensor([[0.1, 0.2, 0.5, 0.6]]).repeat(16, 1)
    small, _ = augment(flip=0.0, small_first=(0.5,))(canvases, labels, epoch=0, step=0, boxes=boxes)
    assert torch.equal(small, PIPELINE.normalise(resized_crop(canvases, boxes, (12, 16))))
    for fields in ({"policy": "rand"}, {"pad_crop": 2}):
        small, _ = augment(small_first=(0.5,), **fields)(canvases, labels, epoch=0, step=0, boxes=boxes)
        full, _ = augment(**fields)(canvases, labels, epoch=0, step=0, boxes=boxes)
        assert torch.equal(small, tv.resize(full, (12, 16), antialias=True))


def test_images_without_augmentation_are_those_of_evaluation_at_the_size_of_training():
    images, _ = batch()
    growing = augment(small_first=(0.5,), small_until=0.5)
    assert torch.equal(growing.without_augmentation({"images": images}, 0.5), PIPELINE.normalise(images))
    expected = tv.resize(PIPELINE.normalise(images), (12, 16), antialias=True)
    assert torch.equal(growing.without_augmentation({"images": images}, 0.4), expected)


@pytest.mark.parametrize(("fit", "ratio"), [("crop", 1.0), ("crop", 0.8), ("squash", 1.0)])
def test_images_still_to_be_cropped_are_cut_as_in_evaluation(fit, ratio):
    config = PreprocessConfig(fit=fit, crop_ratio=ratio, interpolation="bilinear", mean=(0.5,) * 3, std=(0.25,) * 3)
    own = EvalPipeline((24, 32), 3, config)
    ramp = BatchAugment(AugmentConfig(), own, K, 0)
    for width, height in ((200, 60), (60, 100), (64, 48)):
        across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
        image = Image.fromarray(np.stack([across, down, (across + down) / 2], 2).astype(np.uint8))
        squashed = torch.from_numpy(np.array(image.resize((40, 30), Image.Resampling.BILINEAR))).permute(2, 0, 1)[None]
        shown = ramp.without_augmentation({"images": squashed, "aspect": torch.tensor([width / height])})
        assert (shown[0] - own(image)).abs().max() < 0.2  # of a range of 4; a pixel of the ramp is up to 0.17


@pytest.mark.parametrize("policy", ["none", "rand", "trivial", "three"])
def test_one_channel_digits_go_through_everything(policy):
    pixels, labels = digits()
    grey = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    config = AugmentConfig(**{**EVERYTHING, "policy": policy, "pad_crop": 1})
    images = torch.from_numpy(pixels[:64]).permute(0, 3, 1, 2)
    out, targets = BatchAugment(config, grey, 10, 0, 0.1)(images, torch.from_numpy(labels[:64]), epoch=0, step=0)
    assert out.shape == (64, 1, 8, 8)
    assert out.isfinite().all()
    assert torch.allclose(targets.sum(1), torch.ones(64))


def test_autocast_does_not_blur_pixels():
    canvases, labels = tiles(8, 30, 40), torch.zeros(8, dtype=torch.long)
    boxes = torch.tensor([[0.1, 0.2, 0.7, 0.6]]).repeat(8, 1)
    fields = {"policy": "three", "color_jitter": 0.2}
    expected, _ = augment(**fields)(canvases, labels, epoch=0, step=0, boxes=boxes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pixels, _ = augment(**fields)(canvases, labels, epoch=0, step=0, boxes=boxes)
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels, expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pad_crop": 24}, "pad_crop is 24, it must be below the image's 24 pixels"),
        ({"policy_magnitude": 11.0}, r"policy_magnitude is 11, it must be in \[0, 10\]"),
    ],
)
def test_what_does_not_fit_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        augment(**fields)
