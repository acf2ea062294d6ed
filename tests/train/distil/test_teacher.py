"""What a teacher sees and says: the student's view in its own size and normalisation, classes matched by name."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import add_gradients
from vitreous.accelerate.model import build
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.config import AugmentConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.rng import image_uniforms
from vitreous.data.sources.opening import open_source
from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig
from vitreous.model.pools import Mean
from vitreous.recipes import recipe
from vitreous.train.config import RunConfig, TuneConfig
from vitreous.train.distil.config import DistilConfig
from vitreous.train.distil.distiller import Distiller
from vitreous.train.distil.teacher import Teacher, adapt_images, class_order
from vitreous.train.distil.views import choose_views

DIGITS = tuple("0123456789")
STUDENT = ViTConfig(image_size=8, patch_size=4, in_channels=1, num_classes=10, width=16, depth=1, heads=2, mlp_dim=32)
GREY = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))


def teacher_of(classes=DIGITS, **changes) -> Teacher:
    """A teacher of colour images of 16 pixels, with random weights."""
    torch.manual_seed(0)
    fields = {"image_size": 16, "patch_size": 4, "in_channels": 3, "num_classes": len(classes), "width": 24}
    config = ViTConfig(**(fields | {"depth": 2, "heads": 2, "mlp_dim": 48} | changes))
    with torch.no_grad():
        model = build(config).eval().requires_grad_(False)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    size = (config.image_size, config.image_size)
    pipeline = EvalPipeline(size, config.in_channels, PreprocessConfig(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)))
    return Teacher("teacher", "vitreous", model, pipeline, tuple(classes), None)


def test_pixels_are_shared_before_normalisation():
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8), np.uint8))
    own = EvalPipeline((8, 8), 3, PreprocessConfig(mean=(0.1, 0.2, 0.3), std=(0.9, 0.8, 0.7)))
    same = dataclasses.replace(teacher_of().pipeline, size=(8, 8))
    torch.testing.assert_close(adapt_images(own.normalise(pixels), own, same), same.normalise(pixels))
    large = adapt_images(own.normalise(pixels), own, teacher_of().pipeline)
    expected = F.interpolate(same.normalise(pixels), (16, 16), mode="bilinear", antialias=True)
    torch.testing.assert_close(large, expected)


def test_channels_become_those_of_the_teacher():
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8), np.uint8))
    own = EvalPipeline((8, 8), 3, PreprocessConfig(mean=(0.1, 0.2, 0.3), std=(0.9, 0.8, 0.7)))
    grey = np.asarray(Image.fromarray(pixels[0].permute(1, 2, 0).numpy()).convert("L"))
    seen = adapt_images(own.normalise(pixels), own, GREY)
    np.testing.assert_allclose(seen[0, 0], (grey / 255 - 0.3) / 0.4, atol=0.01)  # Pillow rounds to whole levels
    colour = adapt_images(GREY.normalise(pixels[:, :1]), GREY, dataclasses.replace(teacher_of().pipeline, size=(8, 8)))
    torch.testing.assert_close(colour, teacher_of().pipeline.normalise(pixels[:, :1].expand(-1, 3, -1, -1)))


def test_classes_are_matched_by_name():
    assert class_order(teacher_of(DIGITS[::-1]), DIGITS, "digits").tolist() == list(range(9, -1, -1))


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        (("cat", *DIGITS[1:]), "it lacks '0'; digits lacks 'cat'"),
        (DIGITS[:7], "it lacks '7', '8', '9'"),
        ((*DIGITS, "ten"), "digits lacks 'ten'"),
        ((*DIGITS, "9"), "it names a class twice"),
        ((), "has no classes"),
    ],
)
def test_other_classes_are_refused_with_the_remedy(classes, text):
    with pytest.raises(ConfigError, match=rf"{text}.*--distil.targets features"):
        class_order(teacher_of(classes), DIGITS, "digits")


@pytest.fixture(scope="module")
def digits():
    return open_source(recipe("digits").data)


def distiller_of(digits, teacher=None, augment=None, model=STUDENT, **options) -> Distiller:
    config = dataclasses.replace(
        RunConfig(), model=model, augment=augment or AugmentConfig(pad_crop=2), distil=DistilConfig("t", **options)
    )
    pipeline = dataclasses.replace(GREY, size=(model.image_size, model.image_size))
    loading = BatchAugment(config.augment, pipeline, 10, 0, views=options.get("views"))
    return Distiller(teacher or teacher_of(), config, digits, loading)


def float64_loss(distiller, model, images, targets, temperature=3.0, weight=0.7, factor=0.5):
    """The loss of `both`, written out in float64."""
    seen = adapt_images(images, GREY, distiller.teacher.pipeline).double()
    teacher = distiller.teacher.model.double()
    kind, prefix = distiller.options.features, model.config.prefix_tokens
    theirs = teacher(seen, "features") if kind == "class-token" else teacher(seen, "tokens")[:, prefix:]
    own = model(images.double(), "features") if kind == "class-token" else model(images.double(), "tokens")[:, prefix:]
    logits, said = model(images.double()), teacher(seen)
    theirs = (theirs - theirs.mean(-1, keepdim=True)) / (theirs.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    if kind == "patches":  # 4 x 4 patches of the teacher to 2 x 2
        table = torch.tensor(((3, 3, 1, 0), (0, 1, 3, 3)), dtype=torch.float64) / 7
        grids = theirs.unflatten(1, (4, 4))
        theirs = torch.einsum("yi,xj,bijd->byxd", table, table, grids).flatten(1, 2)
    labels = -(targets * logits.log_softmax(1)).sum(1).mean()
    p = (said / temperature).softmax(1)
    told = (p * (p.log() - (logits / temperature).log_softmax(1))).sum(1).mean() * temperature**2
    error = ((distiller.projection.double()(own) - theirs) ** 2).mean()
    return (1 - weight) * labels + weight * told + factor * error


@pytest.mark.parametrize("features", ["class-token", "patches"])
def test_the_whole_loss_and_its_gradients(digits, features, monkeypatch):
    monkeypatch.setattr("vitreous.train.distil.teacher.computes_bf16", lambda device: False)
    options = {"temperature": 3.0, "weight": 0.7, "feature_weight": 0.5, "targets": "both", "features": features}
    distiller = distiller_of(digits, **options)
    torch.manual_seed(1)
    model, images = build(STUDENT), torch.randn(6, 1, 8, 8)
    targets = torch.rand(6, 10).softmax(1)
    loss_of = distiller.loss_of(model, images, targets, {}, None)
    loss = loss_of(lambda output: model(images, output), slice(None))
    loss.backward()
    found = [p.grad.clone() for p in (*model.parameters(), *distiller.parameters()) if p.grad is not None]
    model.zero_grad(), distiller.zero_grad()
    expected = float64_loss(distiller, model.double(), images, targets.double())
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    exact = [p.grad for p in (*model.parameters(), *distiller.parameters()) if p.grad is not None]
    assert len(exact) == len(found) >= 10
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-5)


def test_parts_of_a_batch_give_the_gradients_of_the_whole(digits):
    distiller = distiller_of(digits, targets="both", features="patches")
    torch.manual_seed(1)
    model, images, targets = build(STUDENT), torch.randn(10, 1, 8, 8), torch.rand(10, 10).softmax(1)
    loss_of = distiller.loss_of(model, images, targets, {}, None)
    loss = loss_of(lambda output: model(images, output), slice(None))
    parameters = (*model.parameters(), *distiller.parameters())
    expected = torch.autograd.grad(loss, parameters)
    extra = tuple(distiller.parameters())
    torch.testing.assert_close(add_gradients(model, images, targets, 2, loss_of=loss_of, extra=extra), loss.detach())
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)


def test_no_projection_where_widths_agree_and_none_for_logits(digits):
    assert not list(distiller_of(digits).parameters())
    assert not list(distiller_of(digits, teacher_of(width=16), targets="features").parameters())
    assert [*map(tuple, (p.shape for p in distiller_of(digits, targets="features").parameters()))] == [(24, 16), (24,)]


def test_a_teacher_of_other_classes_teaches_features(digits):
    other = teacher_of(("cat", "dog"), pool=Mean())
    distiller = distiller_of(digits, other, targets="features")
    images = torch.randn(2, 1, 8, 8)
    loss_of = distiller.loss_of(model := build(STUDENT), images, torch.ones(2, 10) / 10, {}, None)
    assert loss_of(lambda output: model(images, output), slice(None)).isfinite()
    with pytest.raises(ConfigError, match="Logits need the same classes"):
        distiller_of(digits, other)


def test_views_of_an_image_do_not_depend_on_when_it_is_shown():
    augment = BatchAugment(
        AugmentConfig(flip=0.5, pad_crop=2, policy="trivial", erasing=0.5, color_jitter=0.3), GREY, 10, 0, views=2
    )
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 1, 8, 8), np.uint8))

    def show(order, epoch, step):
        index = torch.tensor(order)
        batch = {"images": pixels[index], "labels": index, "epoch": epoch, "step": step, "offset": 0, "index": index}
        return dict(zip(order, augment.augment_batch(batch)[0], strict=True))

    first, again, other = show([0, 1, 2, 3], 0, 0), show([3, 5, 0], 4, 9), show([0, 3], 1, 0)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[3], again[3])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[3], other[3])


def test_numbers_of_images_are_uniform_and_independent():
    index = np.arange(20_000)
    rows = [image_uniforms(seed, view, index, stream="flip", columns=2) for seed, view in ((0, 0), (0, 1), (1, 0))]
    table = np.concatenate(rows, 1)
    assert table.min() >= 0
    assert table.max() < 1
    assert np.abs(table.mean(0) - 0.5).max() < 0.01
    assert np.abs(table.var(0) - 1 / 12).max() < 0.003
    assert np.abs(np.corrcoef(table.T) - np.eye(6)).max() < 0.03
    assert np.abs(np.corrcoef(table[:-1, 0], table[1:, 0])[0, 1]) < 0.03
    some = image_uniforms(0, 1, index[[5, 0]], stream="flip", columns=2)
    assert np.array_equal(some, rows[1][[5, 0]])


@pytest.mark.parametrize(
    ("changes", "count"),
    [({}, 2), ({"flip": 0.0}, 1), ({"flip": 1.0}, 1), ({"pad_crop": 2}, None), ({"mixup": 0.2}, None),
     ({"mixup": 0.2, "mix_chance": 0.0}, 2), ({"resized_crop": 0.5}, None), ({"erasing": 0.1}, None)],
)  # fmt: skip
def test_answers_are_computed_once_where_flips_are_all(changes, count):
    views = choose_views(AugmentConfig(**changes), None)
    assert (views.count if views else None) == count


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"distil": {"views": 2}, "augment": {"mixup": 0.2}}, "mix other pairs in every step: set augment.mixup 0"),
        ({"distil": {"views": 2}, "augment": {"erasing": 0.2, "off_last": 0.1}}, "augment.off_last 0.1 changes them"),
        ({"distil": {"targets": "features"}, "tune": {"source": "m", "mode": "linear"}}, "tune linear keeps them"),
        ({"distil": {"weight": 0.0}}, r"weight is 0.0, .* must be in \(0, 1\]"),
        ({"distil": {"temperature": -1.0}}, "temperature is -1.0, it must be above 0"),
        ({"distil": {"targets": "logit"}}, "targets is 'logit', it must be logits, features or both"),
        ({"distil": {"views": 0}}, "views is 0, it must be at least 1"),
    ],
)
def test_contradictions_are_refused(fields, text):
    with pytest.raises(ConfigError, match=text):
        RunConfig(
            distil=DistilConfig(teacher="t", **fields["distil"]),
            augment=AugmentConfig(**fields.get("augment", {})),
            tune=TuneConfig(**fields.get("tune", {})),
        )


def test_runs_without_a_teacher_do_not_import_it():
    script = (
        "import sys, vitreous.train.run\n"
        "print([name for name in sys.modules if name.startswith('vitreous.train.distil.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['vitreous.train.distil.config']"
