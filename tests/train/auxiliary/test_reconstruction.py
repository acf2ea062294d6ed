"""The second task of a run: its loss, its gradient by threads, what its runs store and resume, and what is refused."""

from __future__ import annotations

import dataclasses
import io

import pytest
import torch
from rich.console import Console
from torch.nn import functional as F

from vitreous.accelerate.batch_parts import Passes, add_gradients
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import load_model
from vitreous.cli.main import main
from vitreous.data.config import AugmentConfig
from vitreous.errors import ConfigError
from vitreous.model.block import BlockConfig
from vitreous.model.config import ViTConfig
from vitreous.model.stems import ConvStem, PatchStem
from vitreous.runs.state_file import read_state
from vitreous.train.auxiliary.config import AuxConfig
from vitreous.train.auxiliary.reconstruction import ReconstructionTask, settle
from vitreous.train.config import RunConfig, TuneConfig
from vitreous.train.console import Display
from vitreous.train.distil.config import DistilConfig
from vitreous.train.planning.plan import _step_flops
from vitreous.train.pretrain.objectives.mae import MaeDecoder
from vitreous.train.setup import prepare

AUX = AuxConfig("mae", decoder_width=8, decoder_depth=1, decoder_heads=2)
MODEL = ViTConfig(image_size=16, patch_size=4, num_classes=5, width=32, depth=2, heads=2, mlp_dim=48, init="timm")
WHOLE = dataclasses.replace(AUX, classify="whole", mask=0.75, end=1.0)  # as published
STEMS = [PatchStem(), ConvStem(downsample="stride")]


def task_of(stem, drop_path=0.0, aux=AUX, images=6):
    """A model, its task, and a batch of normalised images with soft targets."""
    torch.manual_seed(0)
    config = RunConfig(model=dataclasses.replace(MODEL, stem=stem, block=BlockConfig(drop_path=drop_path)), aux=aux)
    model, task = build(config.model).train(), ReconstructionTask(config)
    return model, task, torch.randn(images, 3, 16, 16), torch.rand(images, 5).softmax(1)


def patches_of(images):
    """The pixels of each patch, (B, 16, 48), cut out one by one."""
    cut = [images[:, :, y : y + 4, x : x + 4].flatten(1) for y in range(0, 16, 4) for x in range(0, 16, 4)]
    return torch.stack(cut, 1)


@pytest.mark.parametrize(("aux", "visible"), [(AUX, 8), (WHOLE, 4)], ids=["visible", "whole"])
def test_the_loss_is_a_tenth_of_classification_and_nine_tenths_of_the_hidden_pixels(aux, visible):
    model, task, images, targets = task_of(PatchStem(), aux=aux)
    shown = []
    task.decoder.register_forward_hook(lambda _, given, made: shown.append((*given[2:], made)))
    loss_of, seen, masked = task.loss_of(images, targets, None)
    assert seen is images
    loss = loss_of(Passes.of(model, seen, masked), slice(None))
    ((kept, hidden, made),) = shown
    assert kept.shape == (6, visible)
    assert masked is None
    assert torch.cat((kept, hidden), 1).sort(1).values.tolist() == [list(range(16))] * 6
    wrong = [(made[n] - patches_of(images)[n, hidden[n]]).square().mean() for n in range(6)]
    logits = model(images)
    if aux is AUX:
        logits = model.head(model.read_out(model.encode_visible(*model.patch_embed(images), kept)))
    expected = 0.1 * F.cross_entropy(logits, targets) + 0.9 * torch.stack(wrong).mean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    trained = [*model.named_parameters(), *task.named_parameters()]
    assert [name for name, p in trained if p.grad is None or not p.grad.abs().sum()] == []


@pytest.mark.parametrize("stem", STEMS, ids=["patch", "conv"])
def test_whole_images_alone_are_classified_after_the_end(stem):
    model, task, images, targets = task_of(stem)
    ((_, before),), ((share, after),) = (list(task.step_losses(model, images, targets, at)) for at in (0.49, 0.5))
    assert share == 1
    torch.testing.assert_close(after(), 0.1 * F.cross_entropy(model(images), targets))
    assert before() > after()


@pytest.mark.parametrize("stem", STEMS, ids=["patch", "conv"])
@pytest.mark.parametrize("aux", [AUX, WHOLE], ids=["visible", "whole"])
def test_no_visible_token_knows_of_a_hidden_pixel(stem, aux):
    model, task, images, targets = task_of(stem, aux=aux)
    shown = []
    task.decoder.register_forward_hook(lambda _, given, made: shown.append(given))
    before = {name: value.clone() for name, value in model.patch_embed.named_buffers()}
    for change in (0.0, 5.0):
        for name, value in model.patch_embed.named_buffers():
            value.copy_(before[name])
        other = images.clone()
        if change:
            hidden = shown[0][3]
            for n in range(len(images)):
                for patch in hidden[n].tolist():
                    y, x = divmod(patch, 4)
                    other[n, :, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4] += change
        torch.manual_seed(1)
        loss_of, seen, masked = task.loss_of(other, targets, None)
        loss_of(Passes.of(model, seen, masked), slice(None))
    assert torch.equal(shown[0][2], shown[1][2])
    assert torch.equal(shown[0][0], shown[1][0])


def test_masked_images_are_not_in_the_statistics_of_evaluation():
    model, task, images, targets = task_of(STEMS[1], aux=WHOLE)
    alone = build(model.config).train()
    alone.load_state_dict(model.state_dict())
    alone(images)
    _, seen, masked = task.loss_of(images, targets, None)
    Passes.of(model, seen, masked)
    expected = dict(alone.patch_embed.named_buffers())
    assert any("running_var" in name for name in expected)
    torch.testing.assert_close(dict(model.patch_embed.named_buffers()), expected)
    assert all(norm.track_running_stats for norm in model.modules() if isinstance(norm, torch.nn.BatchNorm2d))


@pytest.mark.parametrize("stem", STEMS, ids=["patch", "conv"])
@pytest.mark.parametrize("aux", [AUX, WHOLE], ids=["visible", "whole"])
def test_threads_compute_the_gradient_of_the_whole_batch(stem, aux):
    found = []
    for threads in (1, 2):
        model, task, images, targets = task_of(stem, drop_path=0.5, aux=aux, images=13)
        torch.manual_seed(2)
        loss_of, seen, masked = task.loss_of(images, targets, torch.tensor([0.2, 3.0, 1.0, 0.5, 2.0]))
        if threads == 1:
            loss = loss_of(Passes.of(model, seen, masked), slice(None))
            loss.backward()
        else:
            extra = tuple(task.parameters())
            loss = add_gradients(model, seen, targets, 2, loss_of=loss_of, extra=extra, masked=masked)
        found.append((loss.detach(), [p.grad for p in (*model.parameters(), *task.parameters())]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_a_killed_run_ends_in_the_same_bits_and_saves_no_decoder(runs, selected, tmp_path):
    augment = AugmentConfig(flip=0.5, pad_crop=2, mixup=0.2)
    for name in ("whole", "killed"):
        config = runs.config(tmp_path / name, aux=AUX, augment=augment, batch_size=428)  # three steps per epoch
        if name == "killed":
            runs.broken_off(config, 4)
        with pytest.raises(runs.Killed):
            runs.train(config, resume=name == "killed", said=(said := []))
    whole, resumed = (read_state(tmp_path / name / "last.ckpt") for name in ("whole", "killed"))
    for part in ("model", "auxiliary"):
        assert whole[part].keys() == resumed[part].keys()
        assert all(torch.equal(whole[part][name], resumed[part][name]) for name in whole[part])
    assert "mask_token" in whole["auxiliary"]
    assert "aux       reconstruction of 50% of the patches until 50% of the run, weight 0.9; decoder 8x1" in said[0]
    assert torch.equal(*selected)
    model, info = load_model(tmp_path / "killed" / "model.safetensors")
    assert model.state_dict().keys() == build(config.model).state_dict().keys()
    assert AuxConfig(**info.provenance["config"]["aux"]) == AUX


def test_a_plan_counts_the_second_task(runs, tmp_path):
    silent, flops = Display(Console(file=io.StringIO())), []
    for aux in (AuxConfig(), AUX, dataclasses.replace(WHOLE, mask=0.5)):
        config = runs.config(tmp_path, aux=aux)
        setup = prepare(config, (), silent)
        flops.append(_step_flops(setup))
        assert len(flops[-1]) == len(config.phases)
        assert all(p.grad is None for p in setup.model.parameters())
    (alone,), (early, late), (both,) = flops
    assert late == alone
    assert early < both - 0.5 * alone  # half of the patches are encoded once, not beside all of them
    assert 1.5 * alone < both < 3 * alone  # half of the patches again, and a decoder of half the width


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 2}, "a run with aux mae uses one process"),
        (
            {"tune": TuneConfig(source="x", mode="linear")},
            "aux mae trains all weights, but tune is linear: use tune full",
        ),
        ({"distil": DistilConfig(teacher="x")}, "aux mae and a teacher both change the loss"),
        ({"compile": True}, "omit compile"),
    ],
    ids=str,
)
def test_a_configuration_that_contradicts_the_second_task_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig(aux=AUX, **options)
    RunConfig(aux=AuxConfig(), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"devices": 2},
        {"tune": TuneConfig(source="x")},
        {"distil": DistilConfig(teacher="x")},
        {"compile": True},
        {"model": dataclasses.replace(MODEL, patch_size=16)},  # a single patch, which cannot be hidden
        {"model": MODEL.with_options({"attention": {"kind": "axial"}, "pool": {"kind": "mean"}})},
    ],
    ids=str,
)
def test_an_automatic_task_yields_to_what_does_not_go_with_it(options):
    config = RunConfig(aux=AuxConfig("auto", mask=0.6), model=MODEL)
    assert settle(config).aux == AuxConfig("mae", mask=0.6, unlabelled_ratio=0.0)
    assert settle(dataclasses.replace(config, **options)).aux.method == "none"


def test_a_decoder_fits_its_heads_whatever_the_width_of_the_encoder():
    for width, decoder in ((20, 8), (30, 16), (128, 64), (2, 4)):
        config = dataclasses.replace(MODEL, width=width)
        assert MaeDecoder(config, AuxConfig("mae").mae).width == decoder


def test_models_and_values_that_do_not_fit_are_refused():
    axial = RunConfig().model.with_options({"attention": {"kind": "axial"}, "pool": {"kind": "mean"}})
    for build_task, message in (
        (lambda: ReconstructionTask(RunConfig(model=axial, aux=AUX)), "aux mae encodes visible patches alone"),
        (lambda: task_of(PatchStem(), aux=dataclasses.replace(AUX, mask=0.01)), "hides none of 16 patches"),
        (lambda: task_of(PatchStem(), aux=dataclasses.replace(AUX, decoder_width=9)), r"aux\.decoder_width is 9"),
        (lambda: AuxConfig("mae", mask=1.0), "^aux.mask is 1.0"),
        (lambda: AuxConfig(weight=1.0), "^aux.weight is 1.0"),
        (lambda: AuxConfig(end=0.0), "end is 0.0, it is a fraction of the run"),
        (lambda: AuxConfig(classify="hole"), "Did you mean"),
        (lambda: AuxConfig("mea"), "Did you mean"),
    ):
        with pytest.raises(ConfigError, match=message):
            build_task()


def test_the_command_takes_the_task(capsys):
    assert main(["train", "digits", "--aux", "mae", "--aux.mask", "0.6", "--print-config"]) == 0
    assert (
        'aux:\n  method: "mae"\n  weight: 0.9\n  classify: "visible"\n  end: 0.5\n  pseudo_weight: 1.0\n'
        in capsys.readouterr().out
    )
    assert main(["train", "digits", "--aux.mask", "0.6"]) == 2
    assert "aux.mask has no effect here: aux.method is none: set it" in capsys.readouterr().err
