"""A page for each verb: every option, its values, its default in each recipe and what it does, as the parser says."""

from __future__ import annotations

import argparse
import importlib
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from vitreous.cli.main import VERBS
from vitreous.cli.options.help import TOPICS, VerbHelp
from vitreous.cli.options.map_methods import add_method_options
from vitreous.cli.options.parser import Parser, is_flag
from vitreous.cli.options.types import describe_type
from vitreous.cli.output.wrapping import wrap
from vitreous.cli.verbs.completion import parser_of
from vitreous.cli.verbs.train import effective_defaults
from vitreous.recipes import RECIPES, recipe

__all__ = ["Option", "option_pages", "options_of"]

_PLAIN = {  # options that stand for no other and are no setting of a run: their values, and what they do
    "--resume": ("a flag", "resume the run that the same command started, or start it"),
    "--on": ("ray://ADDRESS", "run on a Ray cluster"),
}


class Option(NamedTuple):
    """An option or argument of a verb."""

    names: tuple[str, ...]
    """As typed, such as `--out` and `-o`; the placeholder of an argument that has no name."""
    values: str
    text: str
    defaults: dict[str, str]
    """The default by recipe, protocol or method; of other verbs by the empty name."""

    @property
    def topic(self) -> str:
        """The topic of the help that shows it."""
        group, dot, _ = max(self.names, key=len).removeprefix("--").partition(".")
        return group if dot and group in TOPICS else "run"


def options_of(verb: str) -> list[Option]:
    """Return every option of a verb, those that stand for another one and its arguments included."""
    parser, short = parser_of(verb)
    if verb == "inspect":
        add_method_options(parser)
    shown = _defaults_of(verb)
    found = []
    for action in parser._actions:
        if type(action).__name__ == "_ActionConfigLoad" or action.dest == "help":
            continue
        names = tuple(action.option_strings) or (str(action.metavar or action.dest),)
        own = {} if hasattr(action, "_typehint") and shown else {"": _show(action.default)}
        defaults = own or {name: _show(values.get(action.dest)) for name, values in shown.items()}
        found.append(Option(names, _values(action, parser), _text(action), defaults))
    known = {name for option in found for name in option.names}
    for name, target in short.items():
        if name not in known:
            values, text = ("as there", f"short for `{target}`") if target else _PLAIN[name]
            found.append(Option((name,), values, text, {}))
    return found


def option_pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    pages = {f"options/{verb}": _page(verb) for verb in VERBS}
    names = "\n".join(VERBS)
    text = (
        "Every option of every verb, with its values, its default, and what it does, as the parser has it. Every verb\n"
    )
    text += "takes `--help` too, and `--traceback`, which shows the traceback of an error for reporting a bug.\n"
    text += "`--batch-size` equals `--batch_size`, and `optim.lr=0.1` equals `--optim.lr=0.1`."
    pages["options/index"] = f"# Command line\n\n{text}\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"
    return pages


def _defaults_of(verb: str) -> dict[str, Mapping[str, Any]]:
    """Return what applies if nothing else is typed, by recipe, protocol or method, for the verbs that train."""
    module: Any = importlib.import_module(VERBS[verb])
    if verb in ("train", "plan"):
        return {name: effective_defaults(recipe(name)) for name in RECIPES}
    option, names = {
        "finetune": ("--protocol", ["modern", "paper"]),
        "pretrain": ("--method", list(getattr(module, "PRETRAINING", ()))),
    }.get(verb, ("", []))
    return {
        name: {action.dest: action.default for action in module._parser_with_defaults([option, name])[0]._actions}
        for name in names
    }


def _show(value: Any) -> str:
    if value is None or value is argparse.SUPPRESS or (isinstance(value, str | tuple | list) and not value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _values(action: argparse.Action, parser: Parser) -> str:
    name = max(action.option_strings, key=len, default="")
    if kinds := parser.parts.get(name):
        return "one of " + ", ".join(kinds)
    if action.nargs == 0:
        return "a flag"
    kind = getattr(action, "_typehint", None) or action.type
    text = describe_type(kind, action.choices).removesuffix(" or null")
    return f"{text}; true if none is given" if is_flag(action) else text


def _text(action: argparse.Action) -> str:
    return " ".join((action.help or "").replace("%%", "%").split())


def _page(verb: str) -> str:
    options = options_of(verb)
    topics = dict.fromkeys(option.topic for option in options)
    lines = [f"# `vitreous {verb}`", "", "```text", *_introduction(verb), "```", ""]
    for topic in sorted(topics, key=list(TOPICS).index):
        if len(topics) > 1:
            lines += [f"## {topic}", "", f"{TOPICS[topic][0].upper()}{TOPICS[topic][1:]}.", ""]
        for option in (option for option in options if option.topic == topic):
            lines += [" ".join(f"`{name}`" for name in option.names), f": {_definition(option)}", ""]
    return "\n".join(lines)


def _introduction(verb: str) -> list[str]:
    """Return what the help of a verb says before its options."""
    module: Any = importlib.import_module(VERBS[verb])
    screen = getattr(module, "_HELP", None)
    if isinstance(screen, VerbHelp):
        return [f"usage: vitreous {verb} {screen.usage}", "", *wrap(screen.text, 90).splitlines()]
    parser = parser_of(verb)[0]
    parts = [f"usage: {parser.usage}", textwrap.fill(str(parser.description), 100)]
    return "\n\n".join([*parts, str(parser.epilog)] if parser.epilog else parts).splitlines()


def _definition(option: Option) -> str:
    text = option.text.replace("<", "&lt;").replace("*", "\\*").replace("$", "\\$").rstrip(".")
    values = "" if option.values == "text" else f" Values: {option.values}."
    return f"{text}.{values}{_default_sentence(option.defaults)}"


def _default_sentence(defaults: Mapping[str, str]) -> str:
    """Say the most common default, and the names of those that have another one."""
    by_value: dict[str, list[str]] = {}
    for name, value in defaults.items():
        by_value.setdefault(value, []).append(name)
    if set(by_value) <= {""}:
        return ""
    (common, _), *others = sorted(by_value.items(), key=lambda item: -len(item[1]))
    said = [f"`{common}`" if common else "not set"]
    said += [f"{f'`{value}`' if value else 'not set'} in {', '.join(names)}" for value, names in others]
    return f" Default: {'; '.join(said)}."
