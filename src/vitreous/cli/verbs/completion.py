"""`vitreous completion`: a script by which a shell completes verbs, options, their values and file names.

The script holds all of them: completing runs no Python. shtab writes it (https://github.com/iterative/shtab).
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vitreous.cli.main import VERBS
from vitreous.cli.options.parser import Parser, choices_of, is_flag
from vitreous.errors import UsageError, did_you_mean
from vitreous.recipes import RECIPES

__all__ = ["run"]

_SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "FILE.png", "DIR", "FOLDER", "MODEL", "IMAGES", "DATA", "SRC", "DST", "[FILE.png]")
_FILE_OPTIONS = (
    "--out",
    "--data.dir",
    "--data.exclude",
    "--data-dir",
    "--exclude",
    "--from",
    "--tune.source",
    "--config",
)
_ALL_VERBS = ("--help", "--traceback")


def _parser() -> Parser:
    parser = Parser(
        "completion",
        "bash|zsh|fish",
        "Print a script by which a shell completes verbs, options, values and file names. It has to be read once by "
        "each new shell; it is made anew after an update.",
        [
            ('eval "$(vitreous completion bash)"', "for this shell; in ~/.bashrc for every one"),
            ("vitreous completion bash > ~/.local/share/bash-completion/completions/vitreous", "faster to start"),
            ('vitreous completion zsh > "${fpath[1]}/_vitreous"', "zsh, after which it needs `compinit`"),
            ("vitreous completion fish > ~/.config/fish/completions/vitreous.fish", "fish"),
        ],
    )
    parser.add_argument("shell", type=str, metavar="SHELL", help=f"one of {', '.join(_SHELLS)}")
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    shell = _parser().parse_args(argv).shell
    if shell not in _SHELLS:
        raise UsageError(f"SHELL is '{shell}', it must be one of {', '.join(_SHELLS)}.{did_you_mean(shell, _SHELLS)}")
    import shtab

    sys.stdout.write(shtab.complete(_whole_command(shtab.FILE), shell=shell))
    return 0


def _whole_command(file: Mapping[str, Any]) -> argparse.ArgumentParser:
    """All verbs as one parser of argparse, which is what shtab reads; ``file`` marks what is completed by files."""
    whole = argparse.ArgumentParser(prog="vitreous", add_help=False)
    whole.add_argument("--help", action="store_true", help="what there is")
    whole.add_argument("--version", action="store_true", help="the version")
    verbs = whole.add_subparsers()
    for verb in VERBS:
        own = verbs.add_parser(verb, help=verb, add_help=False)
        parser, short = _parser_of(verb)
        known = {name: action for action in parser._actions for name in action.option_strings}
        for action in parser._actions:
            _add(own, action.option_strings, action, file)
        for name, meant in short.items():
            _add(own, [name], known.get(meant.partition("=")[0]), file)
        for name in _ALL_VERBS:
            if name not in own._option_string_actions:
                own.add_argument(name, action="store_true")
    return whole


def _parser_of(verb: str) -> tuple[Parser, Mapping[str, str]]:
    """The parser of a verb, and its further options with those that they stand for; the latter may be no option."""
    module: Any = importlib.import_module(VERBS[verb])
    short = {name: meant for name, meant in getattr(module, "_SHORT", {}).items() if "_" not in name}
    if verb in ("train", "plan"):
        from vitreous.cli.verbs.train import _SHORT, train_parser

        return train_parser(verb, "", ""), {**{n: m for n, m in _SHORT.items() if "_" not in n}, "--resume": ""}
    make: Callable[[], Parser] = module._parser
    return make(), {**short, "--resume": ""} if verb == "finetune" else short


def _named(names: Sequence[str], action: argparse.Action) -> list[str]:
    """The words of an option that takes the name of something there is a list of."""
    if "--recipe" in names:
        return list(RECIPES)
    if action.metavar == "SHELL":
        return list(_SHELLS)
    if "--size" in names or ("--model" in names and action.metavar != "MODEL"):
        from vitreous.model.sizes import SIZES  # here: only the script needs them

        return list(SIZES)
    return []


def _add(
    own: argparse.ArgumentParser, names: Sequence[str], action: argparse.Action | None, file: Mapping[str, Any]
) -> None:
    """Add an option, or a positional word, that completes as an action of a verb's parser does."""
    if any(name in own._option_string_actions for name in names):
        return
    text = re.sub(r"[^\w ,.()/-]", "", (action.help if action else "") or "")[:60].strip()
    if action is None or (names and is_flag(action)):
        own.add_argument(*names, action="store_true", help=text)
        return
    choices = _named(names, action) or choices_of(action)
    if names:
        added = own.add_argument(*names, choices=choices or None, help=text)
    else:
        several: dict[str, Any] = {"nargs": action.nargs} if action.nargs in ("*", "+", "?") else {}
        added = own.add_argument(action.dest, choices=choices or None, help=text, **several)
    if str(action.metavar) in _FILES or any(name in _FILE_OPTIONS for name in names):
        added.complete = file  # type: ignore[attr-defined]
