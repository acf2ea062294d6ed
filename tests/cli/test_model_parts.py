"""Parts of the model on the command line and in --config files: kinds, their options, and what is refused."""

from __future__ import annotations

import typing

import pytest

from vitreous.cli.main import main
from vitreous.cli.verbs.finetune import configure as configure_finetune
from vitreous.cli.verbs.train import configure
from vitreous.errors import UsageError
from vitreous.model.block import BlockConfig
from vitreous.model.config import PARTS
from vitreous.model.part import option_types
from vitreous.model.positions import Learned, Rope2d, SinCos2d
from vitreous.model.stems import ConvStem, ResNetStem
from vitreous.recipes import RECIPES, recipe

FLOATS = [
    (part, kind.kind, option)
    for part, kinds in PARTS.items()
    for kind in kinds
    for option, hint in option_types(kind).items()
    if float in (hint, *typing.get_args(hint))
]


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


@pytest.mark.parametrize(("part", "kind", "option"), FLOATS)
@pytest.mark.parametrize("way", ["options", "mapping", "JSON", "file"])
def test_every_number_may_have_an_exponent(part, kind, option, way, tmp_path):
    """YAML 1.1 reads 1e-5 as text; Python, JSON and users write it as a number."""
    (tmp_path / "mine.yaml").write_text(f"model:\n  {part}:\n    kind: {kind}\n    {option}: 1e-5\n")
    words = {
        "options": [f"--model.{part}", kind, f"--model.{part}.{option}", "1e-5"],
        "mapping": [f"--model.{part}", f"{{kind: {kind}, {option}: 1e-5}}"],
        "JSON": [f"--model.{part}", f'{{"kind":"{kind}","{option}":1e-5}}'],
        "file": ["--config", str(tmp_path / "mine.yaml")],
    }[way]
    config, _, _ = configure(["digits", *words])
    assert getattr(getattr(config.model, part), option) == 1e-5


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


@pytest.mark.parametrize(("configure", "words"), [(configure, []), (configure_finetune, ["--from", "x"])])
@pytest.mark.parametrize("as_mapping", [False, True])
def test_the_explicit_fields_of_a_file_have_one_spelling(configure, words, as_mapping, tmp_path):
    """Fine-tuning compares them with the source by these names, such as `pool.kind`."""
    pool, head = ("{kind: map}", "{kind: mlp}") if as_mapping else ("map", "mlp")
    source = "".join(f"tune: {{source: {name}}}\n" for name in words[1:])
    (tmp_path / "mine.yaml").write_text(
        f"model: {{pool: {pool}, head: {head}, width: 64}}\ndata: {{source: digits}}\n{source}"
    )
    _, explicit, _ = configure(["--config", str(tmp_path / "mine.yaml")])
    assert explicit == {"pool.kind", "head.kind", "width"}


@pytest.mark.parametrize("value", ["3", "[map]", "on"])
def test_a_file_that_has_no_kind_for_a_part_is_refused_with_the_kinds(value, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"model: {{pool: {value}}}\n")
    with pytest.raises(UsageError, match=r"--model\.pool is '.*', it must be one of cls, mean, .*, or a mapping"):
        configure(["digits", "--config", str(tmp_path / "mine.yaml")])


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
        (
            "--model.position.theta 3",
            ["position sincos-2d has no option 'theta'", "position rope-2d and rope-mixed have it"],
        ),
        ("--model.position.thta 3", ["unknown option '--model.position.thta'", "'--model.position.theta'"]),
        ('--model.position {"kind":"rope-2d","thta":3}', ["no option 'thta'", "Did you mean 'theta'?"]),
        ("--model.stem resnet --model.stem.width null", ["stem.width is None", "a whole number"]),
        ("--model.stem.downsample strides", ["--model.stem.downsample is 'strides'", "Did you mean 'stride'?"]),
        ("--model.position rope-2d --model.position.theta -1", ["position.theta is -1", "above 0"]),
        ("--model.position {kind:[rope-2d}", ["--model.position is '{kind:[rope-2d}'", "{kind: rope-2d, theta: 100}"]),
        ("--model.position {1:2}", ["--model.position is '{1:2}'", "{kind: rope-2d, theta: 100}"]),
        ('--model.position {"kind":2020-01-01}', ["it must be a kind or options in braces"]),
        ("--model.position " + '{"a":' * 3000, ["it must be a kind or options in braces"]),
        ("--model.position.theta " + "[" * 3000, ["--model.position.theta is '[[[", "a number"]),
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model.stem.width 8", "fine-tuning keeps the source's stem: omit --model.stem.width"),
        ("--model.stem resnet --model.stem.width 8", "omit --model.stem and --model.stem.width"),
        ("--model.stem conv", "fine-tuning keeps the source's stem: omit --model.stem"),
        ("--model.position.theta 50", "fine-tuning keeps the source's position: omit --model.position.theta"),
        ("--model.position.jitter 0.1", "or say that it rotates with --model.position rope-2d"),
        ("--model.head.hidden 8", "head linear has no option 'hidden'. head mlp has it"),  # the head is new
    ],
)
def test_fine_tuning_says_that_the_source_decides_a_part(words, said):
    with pytest.raises(UsageError) as caught:
        configure_finetune(["photos", "--from", "x", *words.split()])
    assert said in str(caught.value)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_that_of_a_fine_tuning(name):
    config, explicit, _ = configure_finetune(["photos", "--from", "x", "--recipe", name, "--resample", "google"])
    assert config.optim == recipe(name).optim
    assert (config.model.position, explicit) == (Learned(resample="google"), {"position.resample"})
