"""Parsing of arguments: options anywhere, in any spelling, and the messages for invalid ones."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from jsonargparse import ActionConfigFile

from vitreous.cli.options.parser import Parser, describe_type
from vitreous.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Inner:
    """A part.

    Args:
        width: How wide.
        kind: Which.
        rate: How fast; None is off.
        sizes: Two of them.
        shares: Any number of them.
        names: Any number of words.
        strict_mode: Whether.
    """

    width: int = 8
    kind: Literal["cls", "mean"] = "cls"
    rate: float | None = None
    sizes: tuple[int, int] = (1, 2)
    shares: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    strict_mode: bool = False

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(f"width is {self.width}, it must be at least 1")


@dataclass(frozen=True)
class Outer:
    """A whole.

    Args:
        batch_size: How many.
        part: Of it.
    """

    batch_size: int = 4
    part: Inner = field(default_factory=Inner)


def parse(*words: str):
    parser = Parser("try", "DATA [options]", "Try.", [("vitreous try x", "tries x")])
    parser.add_argument("data", type=str, nargs="+", metavar="DATA")
    parser.add_argument("--config", action=ActionConfigFile)
    parser.add_argument("-o", "--out-file", type=str)
    parser.add_class_arguments(Outer)
    return parser.build(parser.parse_args(list(words)))


@pytest.mark.parametrize(
    "words",
    [
        ["x", "--batch_size", "2", "--part.width=3"],
        ["--batch-size=2", "x", "--part.width", "3"],
        ["batch_size=2", "part.width=3", "x"],
        ["--part.width", "3", "--batch-size", "2", "--", "x"],
    ],
)
def test_every_spelling_and_order_is_equivalent(words):
    found = parse(*words)
    assert (found.data, found.batch_size, found.part) == (["x"], 2, Inner(width=3))


def test_positional_words_may_stand_anywhere():
    found = parse("a", "-o", "f", "b", "part.strict-mode=true", "c")
    assert (found.data, found.out_file, found.part.strict_mode) == (["a", "b", "c"], "f", True)
    assert parse("-of", "a").out_file == "f"
    assert parse("a", "-o", "-1").out_file == "-1"


@pytest.mark.parametrize(
    ("words", "names", "shares"),
    [
        (["--part.names", "a", "--part.shares=0.5"], ("a",), (0.5,)),
        (["part.names=a,b", "--part.shares", "0.5,1"], ("a", "b"), (0.5, 1.0)),
        (["--part.names=[a, b]", "--part.shares=[0.5]"], ("a", "b"), (0.5,)),
        (["--part.names", "1, null", "--part.shares", "[]"], ("1", "null"), ()),
    ],
)
def test_lists_may_have_commas_or_brackets(words, names, shares):
    found = parse("x", *words).part
    assert (tuple(found.names), tuple(found.shares)) == (names, shares)
    assert tuple(parse("x", "--part.sizes", "3,4").part.sizes) == (3, 4)


def test_a_boolean_option_without_a_value_is_true():
    assert parse("--part.strict_mode", "x").part.strict_mode is True
    assert parse("--part.strict_mode", "x").data == ["x"]
    assert parse("--part.strict_mode", "false", "x").part.strict_mode is False


def test_dashes_and_equal_signs_in_file_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse("--", "-x", "--batch_size=2").data == ["-x", "--batch_size=2"]
    assert parse("-", "a=1.jpg").data == ["-", "a=1.jpg"]
    assert parse("-", "-3").data == ["-", "-3"]
    Path("batch_size=3").touch()
    assert parse("batch_size=3").data == ["batch_size=3"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x", "--part.widht", "3"], "unknown option '--part.widht'. Did you mean '--part.width'?"),
        (["x", "part.widht=3"], "unknown option '--part.widht'. Did you mean '--part.width'?"),
        (["x", "--width=3"], "unknown option '--width'. Did you mean '--part.width'?"),
        (["x", "--batchsize=3"], "unknown option '--batchsize'. Did you mean '--batch_size'?"),
        (
            ["x", "--zzz", "--batchsiz=2"],
            "unknown option '--zzz'. unknown option '--batchsiz'. Did you mean '--batch_size'?",
        ),
        (["x", "--part.width", "wide"], "--part.width is 'wide', it must be a whole number."),
        (["x", "--part.width=2.5"], "--part.width is '2.5', it must be a whole number."),
        (["x", "--part.kind=maen"], "--part.kind is 'maen', it must be one of cls, mean. Did you mean 'mean'?"),
        (["x", "--part.rate=fast"], "--part.rate is 'fast', it must be a number or null."),
        (["x", "--part.sizes=3"], "--part.sizes is '3', it must be 2 whole numbers, written a,b or [a, b]."),
        (["x", "--part.strict-mode=maybe"], "--part.strict_mode is 'maybe', it must be true or false."),
        (["x", "--part.width"], "option --part.width needs a value: a whole number"),
        (["x", "--part.width", "--batch-size", "3"], "option --part.width needs a value: a whole number"),
        (["--batch-size", "3"], "DATA is missing. Usage: vitreous try DATA [options]"),
    ],
)
def test_usage_errors_are_one_line(words, said):
    with pytest.raises(UsageError) as caught:
        parse(*words)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_errors_of_the_configuration_pass_through():
    with pytest.raises(ConfigError, match=r"^width is -1, it must be at least 1$"):
        parse("x", "--part.width=-1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("part:\n  widht: 3\n", "unknown setting 'part.widht'. Did you mean 'part.width'?"),
        ("batchsize: 3\n", "unknown setting 'batchsize'. Did you mean 'batch_size'?"),
        ("part:\n  width: wide\n", "--part.width is 'wide', it must be a whole number."),
        ("part: [3\n", "--config '{file}' is not valid YAML in line 2"),
    ],
)
def test_errors_in_files_read_like_those_in_options(tmp_path, text, said):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        parse("x", "--config", str(tmp_path / "c.yaml"))
    assert str(caught.value).startswith(said.format(file=tmp_path / "c.yaml"))
    assert "\n" not in str(caught.value)


def test_types_are_described():
    assert describe_type(int | tuple[int, int]) == "a whole number or 2 whole numbers, written a,b or [a, b]"
    assert describe_type(tuple[float, ...]) == "a list of numbers, written a,b or [a, b]"
    assert describe_type(Literal["a", "b"] | None) == "one of a, b or null"


@pytest.mark.parametrize("words", [("--data.exclude=",), ("--exclude", ""), ("--data-dir=",), ("--teacher", "")])
def test_an_empty_name_as_of_an_unset_variable_is_refused(words, vitreous):
    run = vitreous("train", "digits", *words)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].endswith(" is empty: give a name, or remove the option")
