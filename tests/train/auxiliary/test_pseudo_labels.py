"""Pseudo-labels of unlabelled images: which answers are learnt, their loss, and what runs store, resume and refuse."""

from __future__ import annotations

import csv
import dataclasses
import io

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import Passes, add_gradients
from vitreous.cli.main import main
from vitreous.data.augment.mixing import smooth_targets
from vitreous.data.batches.sampler import BatchPlan
from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.errors import ConfigError
from vitreous.model.config import ViTConfig
from vitreous.runs.state_file import read_state
from vitreous.train.assembly import make_module
from vitreous.train.auxiliary.config import AuxConfig
from vitreous.train.auxiliary.pseudo_labels import confident_targets
from vitreous.train.console import Display
from vitreous.train.planning.plan import _step_flops
from vitreous.train.setup import prepare

AUX = AuxConfig("fixmatch", threshold=0.2, begin=0.0)
PLAIN = AugmentConfig(flip=0.0)


def source_config(runs, out, source, **options):
    return runs.config(out, **({"data": DataConfig(str(source)), "batch_size": 40} | options))


def set_up(config):
    return prepare(config, (), Display(Console(file=io.StringIO())))


def module_and_loading(config):
    """A module before its first step, with a head that answers, and the loaders of the run."""
    setup = set_up(config)
    torch.manual_seed(0)
    torch.nn.init.normal_(setup.model.head.weight, std=0.3)  # it is zero otherwise
    setup.data_module.setup("fit")
    module = make_module(setup, lambda step: 0.0).train()
    module.manual_backward = lambda loss: loss.backward()
    return module, setup.data_module


def module_and_batch(config):
    """The same module, and the first batch of the run."""
    module, loading = module_and_loading(config)
    return module, next(iter(loading.train_dataloader()))


def gradients_of(module, batch, progress=0.0):
    """The loss of a step and the gradients that it adds."""
    module.model.zero_grad()
    loss = module.compute_gradients(batch, progress)
    return loss, [p.grad.clone() for p in module.model.parameters()]


def test_an_answer_counts_from_the_threshold_on():
    probabilities = torch.tensor([[0.7, 0.3], [0.1, 0.9], [0.69, 0.31], [0.5, 0.5]])
    assert confident_targets(probabilities, 0.7).tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]


def test_targets_are_not_smoothed_again():
    targets = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert torch.equal(smooth_targets(targets, 3, 0.1), targets)
    assert smooth_targets(targets.long(), 3, 0.1)[0, 0] == pytest.approx(0.05)  # of several labels


def test_the_loss_is_that_of_labels_and_of_confident_answers(runs, tmp_path, digits):
    aux = dataclasses.replace(AUX, pseudo_weight=0.25)
    module, batch = module_and_batch(source_config(runs, tmp_path, digits / "images.csv", aux=aux, augment=PLAIN))
    model = module.model
    shown = module.pipeline.normalise(batch["unlabelled"]["images"])
    highest, answers = model.eval()(shown).detach().softmax(1).max(1)
    threshold = float(highest.median())
    confident = highest >= threshold
    assert 0 < confident.sum() < len(shown)
    module.auxiliary.options = dataclasses.replace(aux, threshold=threshold)
    loss, found = gradients_of(module.train(), batch)
    model.train().zero_grad()
    images, targets = module.augment.augment_batch(batch)
    of_labels = F.cross_entropy(model(images), targets)
    of_answers = (F.cross_entropy(model(shown), answers, reduction="none") * confident).mean()
    expected = of_labels + 0.25 * of_answers
    torch.testing.assert_close(loss, expected.detach())
    expected.backward()
    torch.testing.assert_close(found, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-6)
    means = module.auxiliary.means()
    assert means["classification"] == pytest.approx(float(of_labels.detach()))
    assert means["pseudo"] == pytest.approx(float(of_answers.detach() / confident.float().mean()))
    assert means["confident"] == pytest.approx(float(confident.float().mean()))


def test_images_without_an_answer_are_not_shown_to_the_trained_model(runs, tmp_path, digits):
    config = source_config(runs, tmp_path, digits / "images.csv", aux=AUX, augment=PLAIN, ema=None)
    module, batch = module_and_batch(config)
    shown = module.pipeline.normalise(batch["unlabelled"]["images"])
    highest = module.model.eval()(shown).detach().softmax(1).amax(1)
    module.auxiliary.options = dataclasses.replace(AUX, threshold=float(highest.topk(3)[0][-1]))
    trained = []
    module.model.train().norm.register_forward_hook(lambda *call: trained.append(len(call[1][0])))
    module.compute_gradients(batch, 0.0)
    assert trained == [40, 43]  # the first is for predictions
    module.auxiliary.options = dataclasses.replace(AUX, threshold=1.0)
    loss, _ = gradients_of(module, batch)
    assert trained[2:] == [40, 40]
    images, targets = module.augment.augment_batch(batch)
    torch.testing.assert_close(loss, F.cross_entropy(module.model(images), targets).detach())
    assert module.auxiliary.sums[1].tolist() == [80, 3, 80]


def test_the_moving_average_answers_if_there_is_one(runs, tmp_path, digits):
    config = source_config(runs, tmp_path, digits / "images.csv", aux=AUX, augment=PLAIN, ema=0.9)
    module, batch = module_and_batch(config)
    with torch.no_grad():
        module.average.head.weight.zero_()
        module.average.head.bias.copy_(torch.eye(10)[3] * 9)
    seen = []
    module.augment.augment_batch = lambda batch, progress: (
        seen.append(batch["labels"]) or type(module.augment).augment_batch(module.augment, batch, progress)
    )
    module.compute_gradients(batch, 0.0)
    assert torch.equal(seen[1], F.one_hot(torch.full((40,), 3), 10).float())


def test_the_model_itself_predicts_in_evaluation_mode_if_there_is_no_average(runs, tmp_path, digits):
    module, batch = module_and_batch(source_config(runs, tmp_path, digits / "images.csv", aux=AUX, ema=None))
    module.model.norm.eval()  # as a frozen module
    modes = {name: each.training for name, each in module.model.named_modules()}
    assert modes[""]
    during = []
    module.model.norm.register_forward_hook(lambda *_: during.append((module.model.training, torch.is_grad_enabled())))
    module.compute_gradients(batch, 0.0)
    assert during == [(False, False), (True, True)]
    assert {name: each.training for name, each in module.model.named_modules()} == modes


def test_threads_compute_the_gradient_of_the_whole_batch(runs, tmp_path, digits):
    config, found = source_config(runs, tmp_path, digits / "images.csv", aux=AUX, augment=PLAIN), []
    draws = torch.Generator().manual_seed(1)
    images, weight = torch.randn(40, 1, 8, 8, generator=draws), torch.rand(10, generator=draws)
    targets = torch.eye(10).repeat(4, 1)
    for threads in (1, 2):
        module, _ = module_and_batch(config)
        task, model, terms = module.auxiliary, module.model, {}
        loss_of = task.loss_of(targets, 15, 1, weight, terms)
        if threads == 1:
            loss = loss_of(Passes.of(model, images), slice(None))
            loss.backward()
        else:  # the border is inside the first part
            loss = add_gradients(model, images, targets, 2, loss_of=loss_of)
        task.record(terms)
        assert task.sums[1].tolist() == [15, 25, 0]
        found.append((loss.detach(), task.means(), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("memory_gb", [2.0, 0.0], ids=["memory", "files"])
def test_predictions_are_for_the_images_of_evaluation_and_labels_for_their_crops(runs, tmp_path, memory_gb):
    rows = []
    for n in range(24):
        pixels = np.random.default_rng(n).integers(0, 255, (4, 6, 3), np.uint8)
        Image.fromarray(pixels).resize((96, 64), Image.Resampling.BICUBIC).save(tmp_path / f"{n}.png")
        rows.append((f"{n}.png", "ab"[n % 2] if n < 12 else ""))
    with (tmp_path / "images.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    config = source_config(
        runs,
        tmp_path / "run",
        "",
        data=DataConfig(str(tmp_path / "images.csv"), memory_gb=memory_gb, workers=0, val_fraction=0.3),
        preprocess=PreprocessConfig(fit="crop", crop_ratio=0.875),
        augment=AugmentConfig(resized_crop=0.3),
        aux=dataclasses.replace(AUX, unlabelled_ratio=2.0),
        model=ViTConfig(image_size=16, patch_size=8, num_classes=2, width=16, depth=1, heads=2, mlp_dim=32),
        batch_size=4,
    )
    module, batch = module_and_batch(config)
    others = batch["unlabelled"]
    shown = module.augment.without_augmentation(others)
    names = [f"{12 + n}.png" for n in others["index"].tolist()]
    expected = torch.stack([module.pipeline(Image.open(tmp_path / name)) for name in names])
    assert (shown - expected).abs().mean() < 0.2 * expected.std()  # resized twice
    module.auxiliary.options = dataclasses.replace(AUX, threshold=0.0001)
    crops, targets = module.auxiliary._pseudo_labelled(module, others, 0.0, {})
    assert torch.equal(crops, module.augment.augment_batch(others | {"labels": targets})[0])
    assert targets.sum(1).tolist() == [1.0] * 8
    assert (crops - expected).abs().mean() > 0.4 * expected.std()
    none = set_up(config).data_module._dataset("unlabelled")[BatchPlan(0, 0, 4, np.arange(0))]
    assert len(none["images"]) == len(none.get("uncropped", ())) == 0  # a micro-batch may have no unlabelled images


def test_nothing_is_learnt_from_the_others_before_it_begins(runs, tmp_path, digits):
    aux = dataclasses.replace(AUX, begin=0.5, threshold=0.05)
    module, batch = module_and_batch(source_config(runs, tmp_path, digits / "images.csv", aux=aux, augment=PLAIN))
    early, before = gradients_of(module, batch, 0.49)
    assert module.auxiliary.means().keys() == {"classification"}
    images, targets = module.augment.augment_batch(batch)
    torch.testing.assert_close(early, F.cross_entropy(module.model(images), targets).detach())
    late, after = gradients_of(module, batch, 0.5)
    assert late > early
    assert not any(torch.allclose(*each) for each in zip(before, after, strict=True))


def test_the_gradient_of_a_step_does_not_depend_on_its_micro_batches(runs, tmp_path, digits):
    found = []
    for accumulate in (1, 4):
        aux = dataclasses.replace(AUX, unlabelled_ratio=0.4, threshold=0.05)  # which all predictions reach
        config = source_config(
            runs,
            tmp_path,
            digits / "images.csv",
            aux=aux,
            accumulate=accumulate,
            augment=AugmentConfig(flip=0.5, mixup=1.0),
        )
        module, loading = module_and_loading(config)
        for _, batch in zip(range(accumulate), loading.train_dataloader(), strict=False):
            module.compute_gradients(batch, 0.0)
        assert module.auxiliary.sums[1].tolist() == [40, 16, 16]
        found.append([p.grad for p in module.model.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_a_killed_run_ends_in_the_same_bits(runs, selected, tmp_path, digits):
    augment = AugmentConfig(flip=0.5, pad_crop=2, mixup=0.2)
    aux = dataclasses.replace(AUX, begin=0.5, threshold=0.05)
    for name in ("whole", "killed"):
        config = source_config(
            runs, tmp_path / name, digits / "images.csv", aux=aux, augment=augment, batch_size=20, ema=0.9
        )
        if name == "killed":
            runs.broken_off(config, 5)  # of four steps in each of two epochs
        with pytest.raises(runs.Killed):
            runs.train(config, resume=name == "killed", said=(said := []))
    whole, resumed = (read_state(tmp_path / name / "last.ckpt") for name in ("whole", "killed"))
    for part in ("model", "average", "auxiliary"):
        assert all(torch.equal(whole[part][name], resumed[part][name]) for name in whole[part])
    columns = ("train_classification", "train_pseudo", "train_confident", "train_loss")
    assert [[row.get(name) for name in columns] for row in whole["history"]] == [
        [row.get(name) for name in columns] for row in resumed["history"]
    ]
    assert "train_pseudo" not in whole["history"][0]
    for name in ("whole", "killed"):
        with (tmp_path / name / "metrics.csv").open(newline="") as file:
            written = list(csv.DictReader(file))
        assert [row["train_confident"] for row in written] == ["", "1.0"]
        assert all(float(row["images_per_second"]) > 1 and None not in row for row in written)
    assert torch.equal(*selected)
    expected = "pseudo-labels of at least 5% after 50% of the run, of 20 labelled and 20 unlabelled images per step"
    assert expected in " ".join(said[0].split())


def test_a_plan_counts_answers_and_pseudo_labels_from_where_they_begin(runs, tmp_path, digits):
    flops = {}
    for ratio in (1.0, 2.0):
        aux = dataclasses.replace(AUX, begin=0.25, unlabelled_ratio=ratio)
        config = source_config(runs, tmp_path, digits / "images.csv", aux=aux)
        assert config.phases == ((0.0, 0.25), (0.25, 1.0))
        flops[ratio] = _step_flops(set_up(config))
    (before, with_one), (_, with_two) = flops[1.0], flops[2.0]
    # A forward pass costs a little more than a third of both passes: images need no gradient.
    assert with_one == pytest.approx(before * (2 + 1 / 3), rel=0.04)
    assert with_two - with_one == pytest.approx(with_one - before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0.0}, "threshold is 0.0, it is a probability"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"begin": 1.0}, "begin is 1.0, it is a fraction of the run"),
        ({"pseudo_weight": 0.0}, "pseudo_weight is 0.0, it must be a number above 0"),
        (
            {"unlabelled_ratio": 0.0},
            "unlabelled_ratio is 0, but aux fixmatch learns from unlabelled images: set it above 0",
        ),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(AUX, **options)


def test_runs_without_unlabelled_images_are_refused(runs, tmp_path, digits):
    with pytest.raises(ConfigError, match="learns from images without a label, and there are none: name some with"):
        set_up(runs.config(tmp_path, aux=AUX))


def test_options_of_the_other_task_are_refused(capsys, digits):
    command = ["train", "digits", "--unlabelled", str(digits), "--aux"]
    assert main([*command, "fixmatch", "--aux.mask", "0.6"]) == 2
    assert "aux.mask has no effect here: aux.method is fixmatch, only mae uses it" in capsys.readouterr().err
    assert main([*command, "mae", "--aux.begin", "0.6"]) == 2
    assert "aux.begin has no effect here: aux.method is mae, only fixmatch uses it" in capsys.readouterr().err
