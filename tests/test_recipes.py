"""Every recipe is a valid configuration, opens with its header, and has the published settings."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest
import torch

from vitreous.cli.verbs import finetune
from vitreous.cli.verbs.train import configure
from vitreous.data.sources.opening import ImageData
from vitreous.errors import UsageError
from vitreous.model.vit import VisionTransformer
from vitreous.recipes import RECIPES, header, recipe, recipe_for
from vitreous.train.setup import fit_to_data


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_opens_with_command_cost_hardware_and_score(name):
    text = header(name)
    for word in ("Command:  vitreous ", "\nCost:", "\nHardware:", "\nScore:"):
        assert word in text, word
    config = recipe(name)
    assert config.recipe == name
    verb, *command = text.split("Command:  vitreous ")[1].splitlines()[0].split()
    parsed = {"train": configure, "finetune": finetune.configure}[verb](command)[0]
    assert parsed.recipe == name
    if verb == "train":  # fine-tuning takes the model from its source
        assert parsed.model == config.model


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
        | {"dropout": 0.2, "proj_dropout": 0.0},
        "optim": {"name": "adamw", "betas": (0.9, 0.999), "weight_decay": 0.03, "schedule": "one-cycle"},
        "": {"batch_size": 256, "epochs": 180, "precision": "float32"},
    },
    "notebook-cifar100": {
        "model": {"width": 256, "depth": 24, "heads": 8, "mlp_dim": 512, "patch_size": 4}
        | {"dropout": 0.1, "proj_dropout": 0.0},
        "optim": {"name": "adamw", "betas": (0.9, 0.999), "weight_decay": 0.03, "schedule": "one-cycle"},
        "": {"batch_size": 256, "epochs": 180, "precision": "float32"},
    },
    "annotated-cifar10": {
        "model": {
            "width": 512,
            "depth": 6,
            "heads": 8,
            "mlp_dim": 2048,
            "head_hidden": 2048,
            "head_activation": "relu",
            "activation": "relu",
            "dropout": 0.1,
            "attention_dropout": 0.1,
        },
        "augment": {"flip": 0.5, "pad_crop": 4, "policy": "none"},
        "optim": {"name": "adam", "lr": 2.5e-4},
        "": {"batch_size": 64, "epochs": 32, "precision": "float32"},
    },
    "paper-imagenet": {  # arXiv 2010.11929, table 3 and B.1
        "model": {"image_size": 224, "dropout": 0.1, "head": "mlp", "head_activation": "tanh"},
        "optim": {"lr": 3e-3, "weight_decay": 0.3, "schedule": "cosine", "clip": 1.0, "betas": (0.9, 0.999)},
        "": {"batch_size": 4096, "epochs": 300},
    },
    "paper-finetune": {  # table 4 and B.1.1
        "model": {"image_size": 384, "zero_head": True},
        "optim": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0, "schedule": "cosine", "clip": 1.0},
        "": {"batch_size": 512, "steps": 10_000},
    },
    "simple-vit": {  # arXiv 2205.01580
        "model": {"width": 384, "depth": 12, "heads": 6, "position": "sincos-2d", "pool": "mean"},
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


def test_the_cpu_record_knows_nothing_of_its_set_but_the_size_of_its_pictures():
    config, given, _ = configure(["cifar100", "--recipe", "cifar10-cpu"])
    names = tuple(map(str, range(100)))
    data = ImageData("cifar100", names, {}, channels=3, native_size=(32, 32), median_size=(32, 32), fingerprint="")
    fitted, own = fit_to_data(config, data, given), recipe("cifar10-cpu")
    assert (fitted.preprocess.mean, fitted.preprocess.std) == ((), ())  # measured on the pictures
    model = dataclasses.replace(own.model, num_classes=100)
    assert fitted == dataclasses.replace(own, model=model, data=dataclasses.replace(own.data, source="cifar100"))


def test_a_gpus_runs_are_commands_that_train_takes(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    gpu_records = importlib.import_module("gpu_records")
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
        assert configs[name].model.stem == ("linear" if "linear" in name else "conv")
