"""The configuration that `vitreous train` resolves, and its help."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import pytest

from vitreous.cli.main import main
from vitreous.cli.verbs.finetune import configure as configure_finetune
from vitreous.cli.verbs.train import configure
from vitreous.errors import ConfigError, UsageError
from vitreous.model.stems import ResNetStem
from vitreous.recipes import recipe
from vitreous.recipes.finetune import finetune
from vitreous.train.config import RunConfig


@pytest.mark.parametrize("name", ["digits", "cifar10", "simple-vit"])
def test_printed_configuration_reproduces_the_run(name, tmp_path, capsys):
    words = ["digits", "--recipe", name, "--optim.lr", "0.000123", "--model", "Ti/8", "--model.image_size=[16,32]"]
    assert main(["train", *words, "--print-config"]) == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    config, _, _ = configure(words)
    again, _, _ = configure(["--config", str(printed)])
    assert again == config
    assert (again.optim.lr, again.model.width, again.model.image_size) == (0.000123, 192, (16, 32))


def test_options_without_dashes_and_with_either_dash():
    config, _, _ = configure(["digits", "optim.lr=0.5", "--batch-size", "32", "--label_smoothing=0.2"])
    assert (config.optim.lr, config.batch_size, config.label_smoothing) == (0.5, 32, 0.2)


def shown_defaults(text: str) -> dict[str, str]:
    """The defaults of the options of a help text, by name."""
    options = text[text.index("positional arguments:") :]
    parts = re.findall(r"^  --([\w.]+) (.*?)(?=^  --|^\S|\Z)", options, re.MULTILINE | re.DOTALL)
    found = {name: re.search(r"\s\[([^\[\]]*)\]\s*\Z", part) for name, part in parts}
    return {name: "".join(match[1].split()) for name, match in found.items() if match}


def flattened(values: dict[str, object], group: str = "") -> Iterator[tuple[str, object]]:
    """Nested values by dotted name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", value


def fields_of(config: RunConfig) -> dict[str, str]:
    """All fields of a configuration as the help formats them, without those it omits."""
    values = {}
    for name, value in flattened(config.to_dict()):
        values[name.removesuffix(".kind")] = value
    said = {n: ",".join(map(str, v)) if isinstance(v, tuple) else str(v) for n, v in values.items()}
    return {n: "true" if v == "True" else v for n, v in said.items() if v not in ("None", "False", "")}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("train", "photos/", "--help", "all"), "start"),
        (("train", "photos/", "--start", "none", "--help", "all"), "folder"),
        (("plan", "-h", "all", "cifar10"), "cifar10"),
        (("train", "--recipe", "simple-vit", "digits", "--help=all"), "simple-vit"),
    ],
)
def test_help_shows_the_defaults_of_the_recipe_that_the_arguments_select(vitreous, words, name):
    text = vitreous(*words).stdout
    source = next(word for word in words[1:] if word in ("photos/", "cifar10", "digits"))
    config = recipe(name)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, source=source))
    expected = fields_of(config)
    for taken in ("model.num_classes", "model.in_channels"):
        del expected[taken]
    assert shown_defaults(text) == expected
    assert f"those of the recipe {name}" in " ".join(text.split())


def test_help_shows_no_defaults_if_no_data_selects_a_recipe(vitreous):
    text = vitreous("train", "--help", "all").stdout
    assert shown_defaults(text) == {}
    assert "name DATA before --help" in " ".join(text.split())


def test_help_of_finetune_shows_its_own_defaults_and_none_that_the_source_decides(vitreous):
    words = ("finetune", "photos/", "--from", "x", "--tune", "linear", "--help", "all")
    shown = shown_defaults(vitreous(*words).stdout)
    expected = fields_of(finetune("linear"))
    assert {n: v for n, v in shown.items() if n.startswith("optim.")} == {
        n: v for n, v in expected.items() if n.startswith("optim.")
    }
    assert (shown["epochs"], shown["batch_size"], shown["augment.resized_crop"]) == ("20", "64", "0.5")
    assert {n for n in shown if n.startswith(("model.", "preprocess."))} == {
        *("model.head.zero", "model.block.drop_path", "model.dropout", "model.attention.dropout", "model.patch_dropout")
    }
    assert "augment.flip" not in shown_defaults(vitreous("finetune", "--help", "all").stdout)


@pytest.mark.parametrize("text", ["tensorboard", "[tensorboard]", "tensorboard,mlflow", "[tensorboard, mlflow]"])
def test_loggers_may_be_given_as_any_list(text):
    config, _, _ = configure(["digits", "--loggers", text])
    assert config.loggers == ("tensorboard", "mlflow")[: 1 + ("mlflow" in text)]
    with pytest.raises(ConfigError, match="Did you mean 'tensorboard'"):
        configure(["digits", "--loggers", "tensorbord"])


@pytest.mark.parametrize("option", ["budget", "checkpoint-every"])
@pytest.mark.parametrize("text", ["3", "2.5", ".5", "0"])
def test_a_duration_needs_a_unit(option, text):
    with pytest.raises(ConfigError) as caught:
        configure(["digits", f"--{option}", text])
    assert all(f"{text}{unit}" in str(caught.value) for unit in "smh")
    config, _, _ = configure(["digits", f"--{option}", "3m"])
    assert "3m" in (config.budget, config.checkpoint_every)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--budget 5m --epochs 3", ("--budget 5m", "--epochs 3")),
        ("--steps 9 --budget=5m", ("--budget 5m", "--steps 9")),
        ("--epochs 3 --steps 9", ("--epochs 3", "--steps 9")),
        ("--model S/16 --model.width 64", ("--model S/16", "--model.width 64")),
        ("--model Ti/8 --model.patch_size 16", ("--model Ti/8", "--model.patch_size 16")),
        ("--model S/16 --size B/16", ("--model", "--size")),
        ("--data-dir a --data.dir b", ("--data-dir", "--data.dir")),
        ("--data.source cifar10", ("'digits'", "--data.source cifar10")),
        ("--augment.policy_ops 3", ("augment.policy_ops has no effect", "augment.policy is none")),
        ("--augment.mix_chance 0.3", ("augment.mix_chance has no effect", "cutmix")),
        ("--augment.mixup 0 --augment.mix_after 3", ("augment.mix_after has no effect", "mixup")),
        ("--augment.off_last 0.3", ("augment.off_last has no effect",)),
        ("--augment.small_until 0.3", ("augment.small_until has no effect", "small_first")),
        ("--augment.resized_crop_ratio 0.5,2", ("augment.resized_crop_ratio has no effect", "resized_crop is 1")),
        ("--patches_last 0.5", ("patches_last has no effect", "patch_dropout is 0")),
        ("--preprocess.fit pad --preprocess.crop_ratio 0.8", ("preprocess.crop_ratio has no effect", "pad")),
        ("--optim.name adamw --optim.muon_lr 1", ("optim.muon_lr has no effect", "optim.name is adamw")),
        ("--optim.name sgd --optim.betas 0.5,0.9", ("optim.betas has no effect", "sgd")),
        ("--optim.schedule constant --optim.final_lr 0.5", ("optim.final_lr has no effect", "constant")),
        (
            "--model.stem patch --model.stem.width 8",
            ("stem patch has no option 'width'", "conv and resnet have it"),
        ),
        ("--tune.lora_rank 4", ("tune.lora_rank has no effect",)),
    ],
)
def test_contradictory_and_idle_options_are_rejected(words, parts):
    with pytest.raises(UsageError) as caught:
        configure(["digits", *words.split()])
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--tune linear --optim.layer_decay 0.5", ("optim.layer_decay has no effect", "linear")),
        ("--tune linear --model.block.drop_path 0.3", ("model.block.drop_path has no effect", "linear")),
        ("--tune last-1 --tune.lora_rank 4", ("tune.lora_rank has no effect", "last-1")),
        ("--tune.source y", ("--from", "--tune.source")),
        ("--image-size 32 --model.image_size 64", ("--image-size", "--model.image_size")),
        ("--protocol paper --recipe finetune", ("--protocol", "--recipe")),
        ("--epochs 3 --steps 9", ("--epochs 3", "--steps 9")),
    ],
)
def test_contradictory_options_of_finetune_are_rejected(words, parts):
    with pytest.raises(UsageError) as caught:
        configure_finetune(["photos", "--from", "x", *words.split()])
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize("looks", [("--resume", "--show-batch"), ("--print-config", "--show-batch", "--resume")])
def test_previews_cannot_be_resumed(looks, capsys):
    assert main(["train", "digits", *looks]) == 2
    said = capsys.readouterr().err
    assert all(look in said for look in looks)


def test_compatible_options_are_accepted(tmp_path):
    configure(["digits", "--model", "S/4", "--model.width", "384", "--model.image_size", "32"])
    configure(["digits", "--augment.mix_chance", "1", "--optim.name", "adamw", "--optim.muon_lr", "0.02"])
    recorded = tmp_path / "recipe.yaml"
    recorded.write_text("recipe: digits\nepochs: 50\nbudget: 5m\ndata:\n  source: digits\n")
    config, _, _ = configure(["--config", str(recorded)])
    assert (config.epochs, config.budget) == (50, "5m")
    config, _, _ = configure(["--config", str(recorded), "--epochs", "3"])  # what is typed wins over the file
    assert (config.epochs, config.budget) == (3, None)
    config, _, _ = configure_finetune(["photos", "--from", "x", "--protocol", "paper", "--epochs", "3"])
    assert (config.epochs, config.steps) == (3, None)


def test_a_named_hybrid_has_its_stem():
    config, _, _ = configure(["digits", "--model", "R50+B/16", "--model.image_size", "32"])
    assert (config.model.stem, config.model.patch_size) == (ResNetStem(layers=(3, 4, 9)), 16)
