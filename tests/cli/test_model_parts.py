"""Parts of the model on the command line and in --config files: kinds, their options, and what is refused."""

from __future__ import annotations

import pytest

from vitreous.cli.main import main
from vitreous.cli.verbs.train import configure
from vitreous.errors import UsageError
from vitreous.model.block import BlockConfig
from vitreous.model.positions import Learned, Rope2d, SinCos2d
from vitreous.model.stems import ConvStem, ResNetStem
from vitreous.recipes import recipe


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        ("--model.position rope-2d --model.position.theta 1000", "position", Rope2d(theta=1000)),
        ("--model.position.theta=1e-5 --model.position=rope-2d", "position", Rope2d(theta=1e-5)),
        ("model.position=rope-2d", "position", Rope2d()),
        ("--model.position learned --model.position.resample google", "position", Learned(resample="google")),
        ("--model.stem.downsample max-pool", "stem", ConvStem(downsample="max-pool")),  # the kind is the recipe's
        ("--model.stem resnet --model.stem.layers 1,1 --model.patch_size 8", "stem", ResNetStem(layers=(1, 1))),
        ("--model.block.drop_path 0.2 --model.block.checkpoint", "block", BlockConfig(drop_path=0.2, checkpoint=True)),
        ("--model.stem conv --model.stem.width null", "stem", ConvStem(downsample="stride")),
        ('--model.position {"kind":"rope-2d","theta":5}', "position", Rope2d(theta=5)),
    ],
)
def test_a_part_is_its_kind_and_its_options(words, field, expected):
    config, _, _ = configure(["digits", *words.split()])
    assert getattr(config.model, field) == expected


def test_other_options_of_a_part_stay_as_the_recipe_has_them():
    config, _, _ = configure(["cifar10", "--model.block.checkpoint", "true"])
    assert config.model.block == BlockConfig(drop_path=recipe("cifar10").model.block.drop_path, checkpoint=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model:\n  position: rope-2d\n", Rope2d()),
        ("model:\n  position: {kind: rope-2d, theta: 7}\n", Rope2d(theta=7)),
        ("model:\n  position:\n    kind: learned\n    resample: google\n", Learned(resample="google")),
        ("epochs: 2\n", SinCos2d()),
    ],
)
def test_a_file_writes_a_part_as_a_word_or_a_mapping(tmp_path, text, expected):
    (tmp_path / "mine.yaml").write_text(text)
    config, _, _ = configure(["digits", "--config", str(tmp_path / "mine.yaml")])
    assert config.model.position == expected


def test_a_typed_option_changes_the_part_of_a_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("model:\n  position: {kind: rope-2d, theta: 7}\n")
    config, given, _ = configure(["digits", "--config", str(tmp_path / "mine.yaml"), "--model.position.theta", "9"])
    assert config.model.position == Rope2d(theta=9)
    assert given == {"position.theta"}  # the file was for other data


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model.position rop-2d", ["--model.position is 'rop-2d'", "Did you mean 'rope-2d'?"]),
        ("--model.position.theta abc", ["--model.position.theta is 'abc'", "a number"]),
        ("--model.position.theta 3", ["position sincos-2d has no option 'theta'", "position rope-2d has it"]),
        ("--model.position.thta 3", ["unknown option '--model.position.thta'", "'--model.position.theta'"]),
        ('--model.position {"kind":"rope-2d","thta":3}', ["no option 'thta'", "Did you mean 'theta'?"]),
        ("--model.stem resnet --model.stem.width null", ["resnet width is None", "a whole number"]),
        ("--model.stem.downsample strides", ["--model.stem.downsample is 'strides'", "Did you mean 'stride'?"]),
        ("--model.position rope-2d --model.position.theta -1", ["position.theta is -1", "above 0"]),
        ("--model.qk_norm true", ["unknown option '--model.qk_norm'", "'--model.attention.qk_norm'"]),
        ("--model.position", ["--model.position needs a value"]),
    ],
)
def test_what_is_no_part_is_one_line_with_exit_code_2(words, said, capsys):
    with pytest.raises(UsageError) as caught:
        configure(["digits", *words.split()])
    assert all(word in str(caught.value) for word in said), str(caught.value)
    assert main(["train", "digits", *words.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1
