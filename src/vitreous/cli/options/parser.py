"""How every verb reads its words: options anywhere, dashes or underscores, `a.b=value`, and errors for people.

jsonargparse does the typing, the nested options and the configuration files; this module decides what a word is before
that, and says in one line what was wrong after it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from vitreous.cli.options.config_files import read_config
from vitreous.cli.output.wrapping import wrapped
from vitreous.errors import UsageError, VitreousError, did_you_mean

__all__ = ["HelpFormatter", "Parser", "choices_of", "describe_type", "is_flag"]

_BOOLEANS = ("true", "false", "yes", "no", "null")
_DURATIONS, _DURATION = ("budget", "checkpoint_every"), "a time with its unit, such as 90s, 25m or 1h30m"
_VALUE = re.compile(
    r"(?:Got value|Given value|invalid choice|Not of type \w+): ?"  # as jsonargparse and argparse introduce it
    r"'?(.*?)'?(?: \(choose from.*| does not conform.*)?$",
    re.MULTILINE,
)


class HelpFormatter(DefaultHelpFormatter):
    """Help with short placeholders, the default after each option, and examples kept as they were written."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, 110)
        super().__init__(prog, max_help_position=28, width=width - 2)  # type: ignore[no-untyped-call,unused-ignore]

    def _get_type_str(self, action: argparse.Action) -> None:
        return None  # the placeholder says it

    def _format_action(self, action: argparse.Action) -> str:
        if (
            type(action).__name__ == "_ActionConfigLoad"
        ):  # `--model FILE` beside `--model.width N`: `--config` is enough
            return ""
        return str(super()._format_action(action))

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return _placeholder(_type_of(action))

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").strip()
        value = action.default
        if not action.option_strings or value is None or value is False or value in (argparse.SUPPRESS, (), []):
            return text
        shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        return f"{text} [{'true' if value is True else shown}]".replace("%", "%%")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrapped(text, width)


class Parser(ArgumentParser):  # type: ignore[misc,unused-ignore]
    """A verb's parser. Every problem comes as one :class:`~vitreous.errors.UsageError`.

    Options may stand before, between and after the positional words; `--batch-size` and `--batch_size` are one;
    `optim.lr=0.1` is `--optim.lr=0.1`; an option of type bool alone means true; after `--` all words are positional.

    Args:
        verb: The word after `vitreous`.
        usage: What follows it, such as ``MODEL IMAGES... [options]``.
        description: One or two sentences.
        examples: Pairs of a command and what it does, shown at the end of the help.
    """

    def __init__(self, verb: str, usage: str, description: str, examples: Sequence[tuple[str, str]] = ()) -> None:
        epilog = "".join(f"\n  {command}\n      {what}" for command, what in examples)
        super().__init__(
            prog=f"vitreous {verb}",
            usage=f"vitreous {verb} {usage}",
            description=description,
            epilog=f"examples:{epilog}" if examples else None,
            formatter_class=HelpFormatter,
            exit_on_error=False,
            allow_abbrev=False,
            print_config=None,
        )

    def parse_args(  # type: ignore[override,unused-ignore]
        self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any
    ) -> Namespace:
        """Parse the words after the verb.

        Raises:
            UsageError: If an option is unknown, a value does not fit, or a positional word is missing.
        """
        if args is None:
            raise TypeError("parse_args needs the words after the verb")
        return super().parse_args(self._with_files(self._in_order(list(args))), *rest, **kwargs)

    def _with_files(self, words: list[str]) -> list[str]:
        """Put the text of each configuration file in the place of its name; groups of options take no files."""
        groups = {name: option for option in self._options() if (name := _group_of(option, self._options()))}
        given: list[str] = []
        for word in words:
            option, equals, value = word.partition("=")
            if equals and option == "--config":
                given.append(f"{option}=\n{read_config(value, groups)}")  # a line feed first: no file is called so
                continue
            if equals and option in groups.values() and not value.lstrip().startswith("{"):
                raise UsageError(
                    f"{option} is '{value}', but it has settings below it: write {option}.NAME=VALUE, or give a file "
                    "with --config"
                )
            given.append(word)
        return given

    def show_defaults(self, values: Mapping[str, Any]) -> None:
        """Have the help show these values as the defaults of the options of a configuration's fields.

        Args:
            values: By the option's name. An option of a group that it does not name shows none.
        """
        for action in self._actions:
            name = action.dest
            if any(name == option[2:] for option in action.option_strings) and hasattr(action, "_typehint"):
                action.default = values.get(name)

    def build(self, namespace: Namespace) -> Namespace:
        """Return the namespace with its dataclasses made; configuration errors pass through."""
        make = (
            getattr(self, "instantiate", None) or self.instantiate_classes
        )  # the older name, before jsonargparse 4.50
        built: Namespace = make(namespace)
        return built

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what argparse and jsonargparse complain about as one readable line."""
        cause: BaseException | None = ex
        while cause is not None:
            if isinstance(cause, VitreousError):
                raise cause
            cause = cause.__cause__ or cause.__context__
        raise UsageError(self._readable(message)) from ex

    def _options(self) -> dict[str, argparse.Action]:
        """Every option as it is typed, with its action."""
        return {name: action for action in self._actions for name in action.option_strings}

    def _find_option(self, name: str) -> str | None:
        """Return the option that a typed name means, or None."""
        options = self._options()
        plain = {option.replace("-", "_"): option for option in options if option.startswith("--")}
        return name if name in options else plain.get(name.replace("-", "_"))

    def _in_order(self, words: list[str]) -> list[str]:
        """Put options first and positional words last, with names as the parser knows them."""
        options = self._options()
        ordered: list[str] = []
        positional: list[str] = []
        unknown: list[str] = []
        while words:
            word = words.pop(0)
            if word == "--":
                positional += words
                break
            name, equals, value = self._split(word)
            option = self._find_option(name)
            attached = bool(re.fullmatch(r"-[A-Za-z].+", name)) and name[:2] in options  # -oFILE
            if attached:
                ordered.append(word)
            elif not name:
                positional.append(word)
            elif option is None:
                unknown.append(f"unknown option '{name}'.{self._nearest(name)}")
            elif equals:
                ordered.append(f"{option}={_as_list(value, options[option])}")
            else:
                ordered += self._with_values(option, options[option], words)
        if unknown:
            raise UsageError(" ".join(unknown) + f" `{self.prog} --help` lists them all.")
        dashed = any(word.startswith("-") and word != "-" for word in positional)
        return ordered + (["--"] if dashed else []) + positional

    def _split(self, word: str) -> tuple[str, str, str]:
        """Return (option name, "=" or "", value); the name is empty for a positional word."""
        if word.startswith("--"):
            return word.partition("=")
        if word.startswith("-") and word != "-" and not re.fullmatch(r"-\.?\d.*", word):
            return word, "", ""
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w.-]*", name) or Path(word).exists():
            return "", "", ""
        known = self._find_option("--" + name) is not None
        meant = "." in name and any(option.startswith(f"--{name.split('.')[0]}.") for option in self._options())
        return ("--" + name, equals, value) if known or meant or self._nearest("--" + name) else ("", "", "")

    def _with_values(self, option: str, action: argparse.Action, words: list[str]) -> list[str]:
        """Take an option's values off the front of the words that follow it."""
        if action.nargs == 0:
            return [option]
        is_bool = bool in (_type_of(action), *typing.get_args(_type_of(action)))
        if is_bool and (not words or words[0].lower() not in _BOOLEANS):
            return [f"{option}=true"]
        if not words or self._find_option(words[0].partition("=")[0]) is not None:
            raise UsageError(f"option {option} needs a value: {describe_type(_type_of(action), action.choices)}")
        if action.nargs is None:
            value = _as_list(words.pop(0), action)
            return [f"{option}={value}"] if option.startswith("--") else [option, value]
        count = action.nargs if isinstance(action.nargs, int) else len(words)
        taken = [option]
        while words and len(taken) <= count and not words[0].startswith("--"):
            taken.append(words.pop(0))
        return taken

    def _nearest(self, name: str) -> str:
        """Return a "did you mean" for an option, by its whole name or, where the group is missing, by its last part."""
        known = [option for option in self._options() if option.startswith("--")]
        whole = {option[2:]: option for option in known}
        last = {option[2:].rsplit(".", 1)[-1]: option for option in reversed(known)}
        name = name.lstrip("-").replace("-", "_")
        leaf = name.rsplit(".", 1)[-1]
        if leaf in last:
            return f" Did you mean '{last[leaf]}'?"
        for word, names in ((name, whole), (leaf, last)):
            if near := difflib.get_close_matches(word, names, n=1, cutoff=0.7):
                return f" Did you mean '{names[near[0]]}'?"
        return ""

    def _readable(self, message: str) -> str:
        """Rewrite a message of argparse or jsonargparse with the option, the value and what it must be."""
        if found := re.search(r"the following arguments are required: (.+)", message):
            needed = {action.dest: _called(action) for action in self._actions}
            names = [needed.get(name, name) for name in found[1].lower().split(", ")]
            return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing. Usage: {self.usage}"
        if found := re.search(r"unrecognized arguments: (.+)", message, re.DOTALL):
            return f"unexpected: {found[1]}. Usage: {self.usage}"
        if found := re.search(r"Group '([^']+)' does not accept option '([^']+)'", message):
            return (
                f"unknown setting '{found[1]}.{found[2]}'.{self._nearest(f'{found[1]}.{found[2]}').replace('--', '')}"
            )
        if found := re.search(r"Option '([^']+)' is not accepted", message):
            return f"unknown setting '{found[1]}'.{self._nearest(found[1]).replace('--', '')}"
        key = re.search(r'Parser key "([^"]+)"|argument ([^\s:]+):', message)
        value = _VALUE.search(message)
        dest = (key[1] or key[2].split("/")[-1].lstrip("-").replace("-", "_")) if key else ""
        action = next((a for a in self._actions if a.dest == dest), None)
        if action is None or value is None:
            return " ".join(message.split())
        what = _DURATION if dest in _DURATIONS else describe_type(_type_of(action), action.choices)
        choices = _choices(_type_of(action), action.choices)
        return f"{_called(action)} is '{value[1]}', it must be {what}.{did_you_mean(value[1], choices)}"


def _as_list(value: str, action: argparse.Action) -> str:
    """Bracket the value of an option that takes a list: `a` and `a,b` mean `[a]` and `[a, b]`."""
    kind = _type_of(action)
    kinds = [part for part in (kind, *typing.get_args(kind)) if typing.get_origin(part) in (tuple, list)]
    plain = value.strip()
    if not kinds or plain.startswith(("[", "(", "{")) or (not plain and _is_union(kind)):
        return value
    items = [item.strip() for item in plain.split(",") if item.strip()]
    any_number = any(typing.get_origin(part) is list or Ellipsis in typing.get_args(part) for part in kinds)
    if len(items) < 2 and (not any_number or _is_union(kind)):
        return value  # one of two numbers is missing, or the value may be no list at all
    text = str in typing.get_args(kinds[0])
    return f"[{', '.join(json.dumps(item) if text else item for item in items)}]"


def describe_type(kind: Any, choices: Iterable[Any] | None = None) -> str:
    """Say for people what values a type takes, such as "a whole number" or "one of cls, mean"."""
    named = _choices(kind, choices)
    if named and not _is_union(kind):
        return f"one of {', '.join(named)}"
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    named_types = {"PositiveInt": "a whole number of at least 1", "NonNegativeInt": "a whole number of at least 0"}
    arguments = typing.get_args(kind)
    if _is_union(kind):
        return " or ".join(describe_type(part) for part in arguments)
    if typing.get_origin(kind) in (tuple, list) and arguments:
        each = {"int": "whole numbers", "float": "numbers"}.get(getattr(arguments[0], "__name__", ""), "values")
        count = "a list of" if Ellipsis in arguments or len(arguments) == 1 else f"{len(arguments)}"
        return f"{count} {each}, written a,b or [a, b]"
    return simple.get(kind) or named_types.get(getattr(kind, "__name__", ""), "a value")


def _group_of(option: str, known: Iterable[str]) -> str | None:
    """The name of an option that has others below it, such as `model` for `--model`; else None."""
    below = option.startswith("--") and any(other.startswith(f"{option}.") for other in known)
    return option[2:] if below else None


def _choices(kind: Any, choices: Iterable[Any] | None) -> list[str]:
    """The words that a type or an option's choices allow; empty where there are no such words."""
    if choices is not None:
        return [str(choice) for choice in choices]
    if typing.get_origin(kind) is Literal:
        return [str(choice) for choice in typing.get_args(kind)]
    return [word for part in typing.get_args(kind) for word in _choices(part, None)] if _is_union(kind) else []


def choices_of(action: argparse.Action) -> list[str]:
    """The words that an option allows; empty where there are no such words."""
    return _choices(_type_of(action), action.choices)


def is_flag(action: argparse.Action) -> bool:
    """Whether an option may stand alone."""
    return action.nargs == 0 or bool in (_type_of(action), *typing.get_args(_type_of(action)))


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _type_of(action: argparse.Action) -> Any:
    """The type of an option's value: jsonargparse keeps it apart from argparse's."""
    return getattr(action, "_typehint", None) or action.type


def _called(action: argparse.Action) -> str:
    """What a person calls an argument: its longest option, or its placeholder."""
    return max(action.option_strings, key=len) if action.option_strings else str(action.metavar or action.dest).upper()


def _placeholder(kind: Any) -> str:
    """The word that stands for a value in the help."""
    kinds = {kind, *typing.get_args(kind)} if _is_union(kind) else {kind}
    names = {getattr(part, "__name__", "") for part in kinds}
    if names & {"int", "PositiveInt", "NonNegativeInt"}:
        return "N"
    return "X" if "float" in names else "TEXT"
