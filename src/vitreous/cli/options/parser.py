"""The argument parser of every verb.

jsonargparse converts values, nests options and reads configuration files. This module normalises the arguments before
that (options anywhere, dashes or underscores, ``a.b=value``) and rewrites parse errors into one line.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import re
import shutil
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from vitreous.cli.options.config_files import read_config
from vitreous.cli.options.file_names import takes_file_name
from vitreous.cli.options.model_parts import Parts, fold_parts
from vitreous.cli.options.types import choices_in, describe_type, is_union, placeholder
from vitreous.cli.output.wrapping import wrap
from vitreous.errors import UsageError, VitreousError, did_you_mean

__all__ = ["HelpFormatter", "Parser", "choices_of", "is_flag"]

_BOOLEANS = ("true", "false", "yes", "no", "null")
_DURATIONS, _DURATION = ("budget", "checkpoint_every"), "a time with its unit, such as 90s, 25m or 1h30m"
_VALUES = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (  # the wording of jsonargparse, Python and argparse
        r"^ *Given value: ?'?(.*?)'?$",
        r"Got value: ?'?(.*?)'?$",
        r"(?:could not convert string to float|invalid literal for int\(\) with base \d+): ?'(.*)'$",
        r"Not of type \w+: ?'?(.*?)'?(?: does not conform.*)?$",
        r"invalid choice: ?'?(.*?)'?(?: \(choose from.*)?$",
    )
)


class HelpFormatter(DefaultHelpFormatter):
    """Help with short placeholders, the default after each option, and the line breaks of hand-written text."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, 110)
        super().__init__(prog, max_help_position=28, width=width - 2)  # type: ignore[no-untyped-call,unused-ignore]

    def _get_type_str(self, action: argparse.Action) -> None:
        return None  # the placeholder shows it

    def _format_action(self, action: argparse.Action) -> str:
        if type(action).__name__ == "_ActionConfigLoad":  # `--model FILE`: only `--config` reads files
            return ""
        return str(super()._format_action(action))

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return placeholder(_type_of(action))

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").strip()
        value = action.default
        if not action.option_strings or value is None or value is False or value in (argparse.SUPPRESS, (), []):
            return text
        shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        return f"{text} [{'true' if value is True else shown}]".replace("%", "%%")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrap(text, width)


class Parser(ArgumentParser):  # type: ignore[misc,unused-ignore]
    """The parser of one verb. It reports every problem as a :class:`~vitreous.errors.UsageError`.

    Options and positional arguments may be mixed. ``--batch-size`` equals ``--batch_size``, and ``optim.lr=0.1`` equals
    ``--optim.lr=0.1``. A boolean option without a value is true. All arguments after ``--`` are positional.

    ``usage`` is such as ``MODEL IMAGES... [options]``; ``examples`` are pairs of a command and an explanation.
    """

    def __init__(self, verb: str, usage: str, description: str, examples: Sequence[tuple[str, str]] = ()) -> None:
        epilog = "".join(f"\n  {command}\n      {explanation}" for command, explanation in examples)
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
        self.parts: Parts = {}  # of add_model_options

    def parse_args(  # type: ignore[override,unused-ignore]
        self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any
    ) -> Namespace:
        """Parse the arguments after the verb; every problem is a usage error."""
        if args is None:
            raise TypeError("parse_args needs the arguments after the verb")
        words = self._inline_config_files(self._normalise(list(args)))
        return super().parse_args(fold_parts(words, self.parts), *rest, **kwargs)

    def _inline_config_files(self, words: list[str]) -> list[str]:
        """Replace the name of each configuration file by its text, and reject a group of options given a file."""
        groups = {option[2:] for option in self._options() if self._is_group(option)}
        inlined: list[str] = []
        for word in words:
            option, equals, value = word.partition("=")
            if equals and option == "--config":
                inlined.append(f"{option}=\n{read_config(value, groups)}")  # the line feed marks text, not a file name
            elif equals and self._is_group(option) and not value.lstrip().startswith("{"):
                hint = f"write {option}.NAME=VALUE, or give a file with --config"
                raise UsageError(f"{option} is '{value}', but it has settings below it: {hint}")
            else:
                inlined.append(word)
        return inlined

    def show_defaults(self, values: Mapping[str, Any]) -> None:
        """Set the defaults that the help shows, by option name; options of a configuration not in values show none."""
        for action in self._actions:
            name = action.dest
            if any(name == option[2:] for option in action.option_strings) and hasattr(action, "_typehint"):
                action.default = values.get(name)

    def build(self, namespace: Namespace) -> Namespace:
        """Instantiate the dataclasses of a namespace; configuration errors pass through."""
        instantiate = getattr(self, "instantiate", None) or self.instantiate_classes  # before jsonargparse 4.50
        built: Namespace = instantiate(namespace)
        return built

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise an error of argparse or jsonargparse as one readable line."""
        cause: BaseException | None = ex
        while cause is not None:
            if isinstance(cause, VitreousError):
                raise cause
            cause = cause.__cause__ or cause.__context__
        raise UsageError(self._explain(message)) from ex

    def _options(self) -> dict[str, argparse.Action]:
        return {name: action for action in self._actions for name in action.option_strings}

    def _is_group(self, option: str) -> bool:
        """Whether an option only groups others, as ``--model`` groups ``--model.width``; a part has a value too."""
        return option not in self.parts and any(other.startswith(f"{option}.") for other in self._options())

    def _find_option(self, name: str) -> str | None:
        """Return the option string that a name stands for in either spelling, or None."""
        options = self._options()
        plain = {option.replace("-", "_"): option for option in options if option.startswith("--")}
        return name if name in options else plain.get(name.replace("-", "_"))

    def _normalise(self, words: list[str]) -> list[str]:
        """Move options to the front and positional arguments to the end, with option names as the parser knows them."""
        options = self._options()
        ordered, positional, unknown = list[str](), list[str](), list[str]()
        while words:
            word = words.pop(0)
            if word == "--":
                positional += words
                break
            name, equals, value = self._split(word)
            option = self._find_option(name)
            if re.fullmatch(r"-[A-Za-z].+", name) and name[:2] in options:  # -oFILE
                ordered.append(word)
            elif not name:
                positional.append(word)
            elif option is None:
                unknown.append(f"unknown option '{name}'.{self._suggest(name)}")
            elif equals:
                ordered.append(f"{option}={_word_of(option, value, options[option])}")
            else:
                ordered += self._take_values(option, options[option], words)
        if unknown:
            raise UsageError(" ".join(unknown) + f" `{self.prog} --help` lists them all.")
        has_dashes = any(word.startswith("-") and word != "-" for word in positional)
        return ordered + (["--"] if has_dashes else []) + positional

    def _split(self, word: str) -> tuple[str, str, str]:
        """Return (option name, "=" or "", value); the name of a positional argument is empty."""
        if word.startswith("--"):
            return word.partition("=")
        if word.startswith("-") and word != "-" and not re.fullmatch(r"-\.?\d.*", word):
            return word, "", ""
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w.-]*", name) or Path(word).exists():
            return "", "", ""
        option = "--" + name
        in_group = "." in name and any(known.startswith(f"--{name.split('.')[0]}.") for known in self._options())
        is_option = self._find_option(option) is not None or in_group or bool(self._suggest(option))
        return (option, equals, value) if is_option else ("", "", "")

    def _take_values(self, option: str, action: argparse.Action, words: list[str]) -> list[str]:
        """Remove the values of an option from the front of the remaining words; return the option with them."""
        if action.nargs == 0:
            return [option]
        if is_flag(action) and (not words or words[0].lower() not in _BOOLEANS):
            return [f"{option}=true"]
        if not words or self._find_option(words[0].partition("=")[0]) is not None:
            raise UsageError(f"option {option} needs a value: {describe_type(_type_of(action), action.choices)}")
        if action.nargs is None:
            value = _word_of(option, words.pop(0), action)
            return [f"{option}={value}"] if option.startswith("--") else [option, value]
        count = action.nargs if isinstance(action.nargs, int) else len(words)
        taken = list(itertools.takewhile(lambda word: not word.startswith("--"), words[:count]))
        del words[: len(taken)]
        return [option, *taken]

    def _suggest(self, name: str) -> str:
        """Return a "did you mean" for an option, matched by full name or, where the group is missing, by last part."""
        known = [option for option in self._options() if option.startswith("--")]
        by_name = {option[2:]: option for option in known}
        by_last_part = {option[2:].rsplit(".", 1)[-1]: option for option in reversed(known)}
        name = name.lstrip("-").replace("-", "_")
        last_part = name.rsplit(".", 1)[-1]
        if last_part in by_last_part:
            return f" Did you mean '{by_last_part[last_part]}'?"
        for word, names in ((name, by_name), (last_part, by_last_part)):
            if near := difflib.get_close_matches(word, names, n=1, cutoff=0.7):
                return f" Did you mean '{names[near[0]]}'?"
        return ""

    def _explain(self, message: str) -> str:
        if found := re.search(r"the following arguments are required: (.+)", message):
            names = {action.dest: _display_name(action) for action in self._actions}
            missing = [names.get(name, name) for name in found[1].lower().split(", ")]
            return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. Usage: {self.usage}"
        if found := re.search(r"unrecognized arguments: (.+)", message, re.DOTALL):
            return f"unexpected: {found[1]}. Usage: {self.usage}"
        if found := re.search(
            r"Group '([^']+)' does not accept option '([^']+)'|Option '([^']+)' is not accepted", message
        ):
            setting = ".".join(filter(None, found.groups()))
            return f"unknown setting '{setting}'.{self._suggest(setting).replace('--', '')}"
        key = re.search(r'Parser key "([^"]+)"|argument ([^\s:]+):', message)
        value = next(filter(None, (pattern.search(message) for pattern in _VALUES)), None)
        dest = (key[1] or key[2].split("/")[-1].lstrip("-").replace("-", "_")) if key else ""
        action = next((a for a in self._actions if a.dest == dest), None)
        if action is None or value is None:
            return " ".join(message.split())
        expected = _DURATION if dest in _DURATIONS else describe_type(_type_of(action), action.choices)
        if kinds := self.parts.get(f"--{dest}"):
            expected = f"one of {', '.join(kinds)}, or a mapping of options"
        hint = did_you_mean(value[1], choices_of(action))
        return f"{_display_name(action)} is '{value[1]}', it must be {expected}.{hint}"


def _word_of(option: str, value: str, action: argparse.Action) -> str:
    """Return a value as the parser takes it; an empty name, as of an unset variable of a shell, is refused."""
    if not value and takes_file_name(action):
        raise UsageError(f"{option} is empty: give a name, or remove the option")
    return _bracket_list(value, action)


def _bracket_list(value: str, action: argparse.Action) -> str:
    """Write the value of an option that takes a list in brackets: ``a`` and ``a,b`` become ``[a]`` and ``[a, b]``."""
    kind = _type_of(action)
    kinds = [part for part in (kind, *typing.get_args(kind)) if typing.get_origin(part) in (tuple, list)]
    plain = value.strip()
    if not kinds or plain.startswith(("[", "(", "{")) or (not plain and is_union(kind)):
        return value
    items = [item.strip() for item in plain.split(",") if item.strip()]
    any_length = any(typing.get_origin(part) is list or Ellipsis in typing.get_args(part) for part in kinds)
    if len(items) < 2 and (not any_length or is_union(kind)):
        return value  # too few items for a fixed length, or a scalar of a union
    is_text = str in typing.get_args(kinds[0])
    return f"[{', '.join(json.dumps(item) if is_text else item for item in items)}]"


def choices_of(action: argparse.Action) -> list[str]:
    """Return the words that an option allows; empty if its values are not enumerated."""
    return choices_in(_type_of(action), action.choices)


def is_flag(action: argparse.Action) -> bool:
    """Whether an option may be given without a value."""
    return action.nargs == 0 or bool in (_type_of(action), *typing.get_args(_type_of(action)))


def _type_of(action: argparse.Action) -> Any:
    """Return the type of an option's value, which jsonargparse keeps in an attribute of its own."""
    return getattr(action, "_typehint", None) or action.type


def _display_name(action: argparse.Action) -> str:
    return max(action.option_strings, key=len) if action.option_strings else str(action.metavar or action.dest).upper()
