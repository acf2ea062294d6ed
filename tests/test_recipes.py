"""Every recipe is a valid configuration, its header says what it does, and published settings are as published."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import shlex
from pathlib import Path

import pytest
import torch

from vitreous.cli.verbs import finetune
from vitreous.cli.verbs.train import configure
from vitreous.data.sources.opening import ImageData
from vitreous.errors import UsageError
from vitreous.model.attention import AttentionConfig
from vitreous.model.heads import LinearHead, MlpHead
from vitreous.model.mlp import MlpConfig
from vitreous.model.part import Part
from vitreous.model.pools import Mean
from vitreous.model.positions import SinCos2d
from vitreous.model.sizes import config_of
from vitreous.model.vit import VisionTransformer
from vitreous.recipes import RECIPES, recipe, recipe_for
from vitreous.train.config import RunConfig
from vitreous.train.setup import fit_to_data

FIELDS = ("Command", "Data", "Model", "Augment", "Optimiser", "Training", "Cost", "Hardware", "Score")
CITATION = r"arXiv [\d.]+|(?:table|section|appendix) [A-Z]?[\d.]*\d|\S*\.py|CIFAR-100?|`[^`]*`"
NUMBER = r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?"


def header(name: str) -> tuple[str, dict[str, str]]:
    """The title and the fields of a recipe's header, each on one line."""
    module = importlib.import_module(f"vitreous.recipes.{name.replace('-', '_')}")
    title, _, block = inspect.cleandoc(module.__doc__).partition("\n\n")
    found = re.findall(r"^(\w+): +(.*(?:\n +.*)*)", block, flags=re.MULTILINE)
    assert len(block.splitlines()) == sum(text.count("\n") + 1 for _, text in found), "a line outside the fields"
    return title, {field: re.sub(r"\s*\n +", " ", text) for field, text in found}


def changed(config: object, *shown: str) -> list[str]:
    """`option value` for each field that differs from its default, without those shown elsewhere."""
    default, found = type(config)(), []
    for name in (field.name for field in dataclasses.fields(config) if field.name not in shown):
        value, usual = getattr(config, name), getattr(default, name)
        if isinstance(value, Part):
            found += [f"{name} {value.kind}"] * (value.kind != usual.kind)
        if dataclasses.is_dataclass(value):
            found += [f"{name}.{option}" for option in changed(value)]
        elif value != usual:
            found.append(f"{name} {written(value)}")
    return found


def written(value: object) -> str:
    """A value as the command line takes it."""
    if isinstance(value, tuple):
        return ",".join(map(written, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def described(config: RunConfig, verb: str) -> dict[str, str]:
    """The header's fields that follow from the configuration: every option that differs from its default."""
    data, model, images, optim = config.data, config.model, config.preprocess, config.optim
    if config.tune.source == "shipped":
        size, pipeline = ["the source's", f"{model.image_size} px"], ["preprocessing of the source"]
        shape = tuple(field.name for field in dataclasses.fields(model) if field.name not in ("block", "head"))
    elif verb == "finetune":
        size, pipeline = ["the source's"], ["preprocessing of the source"]
        shape = ("image_size", "num_classes")
    else:
        shape = ("image_size", "patch_size", "width", "depth", "heads", "mlp_dim", "num_classes", "in_channels")
        size = [
            f"{model.width}x{model.depth}/{model.patch_size} at {model.image_size} px",
            f"{model.heads} heads",
            f"MLP {model.mlp_dim}",
        ]
        constants = "fixed mean and std" if images.mean else "mean and std of train"
        if len(set(images.mean)) == 1 == len(set(images.std)):
            constants = f"mean {images.mean[0]:g}, std {images.std[0]:g}"
        pipeline = [*changed(images, "mean", "std"), constants]
    rates = [f"lr {optim.lr:g}"] + [f"muon_lr {optim.muon_lr:g}"] * (optim.name == "muon")
    rates += [f"momentum {optim.momentum:g}"] * (optim.name in ("muon", "sgd"))
    rates += [f"weight_decay {optim.weight_decay:g}", optim.schedule, f"warm-up {percent(optim.warmup)}"]
    rates += [f"clip {optim.clip:g}" if optim.clip else "no clipping"]
    told = ("name", "lr", "muon_lr", "momentum", "weight_decay", "schedule", "warmup", "clip")
    share = f"{percent(data.val_fraction)} of train held out"
    length = f"{config.steps:,} steps" if config.steps else f"{config.epochs} epochs"
    parts = ("recipe", "data", "model", "preprocess", "augment", "optim", "tune", "epochs", "steps", "batch_size")
    return {
        "Data": ", ".join([data.source, share, *changed(data, "source", "val_fraction"), *pipeline]),
        "Model": ", ".join(size + changed(model, *shape)),
        "Augment": ", ".join([f"flip {config.augment.flip:g}", *changed(config.augment, "flip")]),
        "Optimiser": ", ".join([optim.name, *rates, *changed(optim, *told)]),
        "Training": ", ".join([length, f"batch {config.batch_size}", *changed(config, *parts)]),
    }


@pytest.mark.parametrize("name", RECIPES)
def test_a_header_says_what_the_recipe_does(name):
    _, fields = header(name)
    assert tuple(field for field in fields if field != "Variant") == FIELDS
    config, verb = recipe(name), fields["Command"].split()[1]
    assert config.recipe == name
    assert {field: fields[field] for field in FIELDS[1:6]} == described(config, verb)


@pytest.mark.parametrize("name", RECIPES)
def test_a_header_s_command_is_the_recipe(name):
    _, fields = header(name)
    program, verb, *words = shlex.split(fields["Command"])
    assert program == "vitreous"
    config, parsed = recipe(name), {"train": configure, "finetune": finetune.configure}[verb](words)[0]
    free = {"data": dataclasses.replace(parsed.data, source=config.data.source, dir=config.data.dir)}
    if verb == "finetune":  # structure and evaluation pipeline are the source's
        assert parsed.model.image_size == config.model.image_size
        free |= {"model": config.model, "preprocess": config.preprocess, "tune": config.tune}
    assert parsed.data.source.rstrip("/") == config.data.source
    assert dataclasses.replace(parsed, budget=None, **free) == config
    if parsed.budget:
        assert fields["Cost"].startswith(f"{parsed.budget.removesuffix('m')} minutes")


@pytest.mark.parametrize("name", RECIPES)
def test_prose_has_no_number_that_the_recipe_has_not(name):
    """In the title, the function's docstring and the line of `vitreous train --help`."""
    title, fields = header(name)
    config = recipe(name)
    function = getattr(importlib.import_module(f"vitreous.recipes.{name.replace('-', '_')}"), name.replace("-", "_"))
    prose = " ".join([title, inspect.getdoc(function), RECIPES[name]])
    with torch.device("meta"):
        millions = sum(p.numel() for p in VisionTransformer(config.model).parameters()) / 1e6
    for count in re.findall(rf"({NUMBER}) million parameters", prose):
        assert float(count) == round(millions, 1)
    prose = re.sub(rf"{NUMBER} million parameters|{CITATION}", "", prose)
    for pattern, value in (
        (rf"({NUMBER}) epochs", config.epochs),
        (rf"({NUMBER}) (?:layers|deep)", config.model.depth),
        (rf"[Ww]idth ({NUMBER})|({NUMBER}) wide", config.model.width),
        (rf"({NUMBER}) classes", config.model.num_classes),
    ):
        for groups in re.findall(pattern, prose):
            assert float("".join(groups).replace(",", "")) == value, pattern
    for size in re.findall(r"\b(?:ViT-)?([A-Z][a-z]?/\d+|\d+x\d+/\d+)", prose):
        small = config_of(size)
        assert (small.width, small.depth, small.patch_size) == (
            *(config.model.width, config.model.depth, config.model.patch_size),
        )
    prose = re.sub(r"\b(?:ViT-)?(?:[A-Z][a-z]?/\d+|\d+x\d+/\d+)", "", prose)
    known = set(re.findall(NUMBER, " ".join([*fields.values(), str(config.model.num_classes)]).replace("x", " ")))
    assert set(re.findall(NUMBER, prose)) <= known | set(re.findall(r"\d+", name))


@pytest.mark.parametrize("name", ["paper-imagenet", "simple-vit"])
def test_imagenet_is_trained_on_99_percent_with_10_000_steps_of_warm_up(name):
    config, held_out = recipe(name), 12_812  # of 1,281,167, as big_vision's minival
    assert config.data.val_fraction == 0.01
    steps = config.epochs * ((1_281_167 - held_out) / config.batch_size)
    assert config.optim.warmup * steps == pytest.approx(10_000, abs=1)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_a_model_that_computes(name):
    model = recipe(name).model
    with torch.device("meta"):
        images = torch.empty(2, model.in_channels, model.image_size, model.image_size)
        logits = VisionTransformer(model).eval()(images)
    assert logits.shape == (2, model.num_classes)


def test_an_unknown_recipe_is_named_with_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'simple-vit'"):
        recipe("simpel-vit")


def test_the_recipe_follows_the_data_where_none_is_named():
    assert [recipe_for(source) for source in ("digits", "cifar10", "photos/", "mnist")] == [
        *("digits", "cifar10", "folder", "folder")
    ]


PUBLISHED = {
    "notebook-cifar10": {
        "model": {"width": 256, "depth": 6, "heads": 8, "mlp_dim": 512, "patch_size": 4}
        | {"dropout": 0.2, "attention": AttentionConfig(proj_dropout=0.0)},
        "optim": {"name": "adamw", "betas": (0.9, 0.999), "weight_decay": 0.03, "schedule": "one-cycle"},
        "": {"batch_size": 256, "epochs": 180, "precision": "float32"},
    },
    "notebook-cifar100": {
        "model": {"width": 256, "depth": 24, "heads": 8, "mlp_dim": 512, "patch_size": 4}
        | {"dropout": 0.1, "attention": AttentionConfig(proj_dropout=0.0)},
        "optim": {"name": "adamw", "betas": (0.9, 0.999), "weight_decay": 0.03, "schedule": "one-cycle"},
        "": {"batch_size": 256, "epochs": 180, "precision": "float32"},
    },
    "annotated-cifar10": {
        "model": {
            "width": 512,
            "depth": 6,
            "heads": 8,
            "mlp_dim": 2048,
            "head": MlpHead(hidden=2048, activation="relu"),
            "mlp": MlpConfig(activation="relu"),
            "dropout": 0.1,
            "attention": AttentionConfig(dropout=0.1),
        },
        "augment": {"flip": 0.5, "pad_crop": 4, "policy": "none"},
        "optim": {"name": "adam", "lr": 2.5e-4},
        "": {"batch_size": 64, "epochs": 32, "precision": "float32"},
    },
    "paper-imagenet": {  # arXiv 2010.11929, table 3 and B.1
        "model": {"image_size": 224, "dropout": 0.1, "head": MlpHead(activation="tanh", zero=True)},
        "optim": {"lr": 3e-3, "weight_decay": 0.3, "schedule": "cosine", "clip": 1.0, "betas": (0.9, 0.999)},
        "": {"batch_size": 4096, "epochs": 300},
    },
    "paper-finetune": {  # table 4 and B.1.1
        "model": {"image_size": 384, "head": LinearHead(zero=True)},
        "optim": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0, "schedule": "cosine", "clip": 1.0},
        "": {"batch_size": 512, "steps": 10_000},
    },
    "simple-vit": {  # arXiv 2205.01580
        "model": {"width": 384, "depth": 12, "heads": 6, "position": SinCos2d(), "pool": Mean()},
        "optim": {"lr": 1e-3, "clip": 1.0},
        "augment": {"policy": "rand", "policy_ops": 2, "policy_magnitude": 10, "mixup": 0.2},
        "": {"batch_size": 1024, "epochs": 90},
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings(name):
    config = recipe(name)
    for group, expected in PUBLISHED[name].items():
        part = getattr(config, group) if group else config
        assert {field: getattr(part, field) for field in expected} == expected


@pytest.mark.parametrize(
    ("name", "count"), [("notebook-cifar100", 12_862_820), ("notebook-cifar10", 3_374_948 - 90 * 513)]
)
def test_the_notebooks_models_have_their_size(name, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in VisionTransformer(recipe(name).model).parameters()) == count


def test_the_command_line_overrides_a_recipe_field_by_field():
    config, given, _ = configure(["cifar10", "--model", "S/8", "--optim.lr=0.5", "--epochs", "2", "--data-dir", "d"])
    original = recipe("cifar10")
    assert (config.model.width, config.model.depth, config.model.patch_size) == (384, 12, 8)
    assert (config.model.stem, config.model.pool) == (original.model.stem, original.model.pool)
    assert config.optim == dataclasses.replace(original.optim, lr=0.5)
    assert (config.epochs, config.data.dir, config.data.source) == (2, "d", "cifar10")
    assert given == frozenset()


def test_the_command_line_wins_over_a_file_and_a_file_over_the_recipe(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("recipe: digits\nepochs: 3\noptim:\n  lr: 0.25\nmodel:\n  num_classes: 10\n  width: 32\n")
    config, given, _ = configure(["--epochs", "4", "--config", str(file), "--model.depth=2"])
    assert (config.epochs, config.optim.lr, config.model.width, config.model.depth) == (4, 0.25, 32, 2)
    assert config.recipe == "digits"
    assert given == {"num_classes", "width", "depth"}
    _, given, _ = configure(["elsewhere/", "--config", str(file)])
    assert given == frozenset()  # the file's number of classes was for other data


def test_the_cpu_recipe_fixes_nothing_about_its_data_but_the_image_size():
    config, given, _ = configure(["cifar100", "--recipe", "cifar10-cpu"])
    names = tuple(map(str, range(100)))
    data = ImageData("cifar100", names, {}, channels=3, native_size=(32, 32), median_size=(32, 32), fingerprint="")
    fitted, own = fit_to_data(config, data, given), recipe("cifar10-cpu")
    assert (fitted.preprocess.mean, fitted.preprocess.std) == ((), ())  # measured on the training images
    model = dataclasses.replace(own.model, num_classes=100)
    assert fitted == dataclasses.replace(own, model=model, data=dataclasses.replace(own.data, source="cifar100"))


def test_a_gpus_runs_are_commands_that_train_takes(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    gpu_records = importlib.import_module("training.gpu_records")
    configs = {name: configure(words.split())[0] for name, (words, _) in gpu_records.commands().items()}
    assert len(configs) == 10
    for name in gpu_records.TUTORIALS:
        published, ours = configs[f"tutorial, {name}"], configs[f"tutorial, {name}, our training"]
        assert published == recipe(name)
        assert (ours.data.source, ours.epochs) == (published.data.source, published.epochs)
        for field in ("width", "depth", "heads", "mlp_dim", "patch_size"):
            assert getattr(ours.model, field) == getattr(published.model, field)
    for name in gpu_records.RECORDS:
        assert configs[name].budget
        assert configs[name].model.stem.kind == ("linear" if "linear" in name else "conv")
