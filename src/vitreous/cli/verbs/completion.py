"""`vitreous completion`: print a script that completes verbs, options, values and file names in a shell.

The script contains all of them, so completion starts no Python. shtab generates it (https://github.com/iterative/shtab).
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.cli.main import VERBS
from vitreous.cli.options.file_names import takes_file_name
from vitreous.cli.options.help import TOPICS
from vitreous.cli.options.parser import Parser, choices_of, is_flag
from vitreous.errors import UsageError, did_you_mean
from vitreous.recipes import RECIPES

__all__ = ["parser_of", "run"]

_SHELLS = ("bash", "zsh", "fish")
_TRAINING_VERBS = ("train", "plan", "finetune", "pretrain")


def _parser() -> Parser:
    parser = Parser(
        "completion",
        "bash|zsh|fish",
        "Print a script that completes verbs, options, values and file names. Each new shell has to read it once. "
        "Print it again after an update.",
        [
            ('eval "$(vitreous completion bash)"', "for this shell; in ~/.bashrc for every shell"),
            ("vitreous completion bash > ~/.local/share/bash-completion/completions/vitreous", "starts faster"),
            ('vitreous completion zsh > "${fpath[1]}/_vitreous"', "zsh; run `compinit` afterwards"),
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

    sys.stdout.write(shtab.complete(_combined_parser(shtab.FILE), shell=shell))
    return 0


def _combined_parser(file: Mapping[str, Any]) -> argparse.ArgumentParser:
    """Return all verbs as one parser of argparse, which shtab reads; ``file`` marks arguments completed by files."""
    combined = argparse.ArgumentParser(prog="vitreous", add_help=False)
    combined.add_argument("--help", action="store_true", help="the verbs")
    combined.add_argument("--version", action="store_true", help="the version")
    verbs = combined.add_subparsers()
    for verb in VERBS:
        target = verbs.add_parser(verb, help=verb, add_help=False)
        if verb in _TRAINING_VERBS:
            target.add_argument("-h", "--help", choices=list(TOPICS), help="options by topic")
        parser, short = parser_of(verb)
        options = {name: action for action in parser._actions for name in action.option_strings}
        for action in parser._actions:
            _add(target, action.option_strings, action, file)
        for name, expansion in short.items():
            _add(target, [name], options.get(expansion.partition("=")[0]), file)
        for name in ("--help", "--traceback"):
            if name not in target._option_string_actions:
                target.add_argument(name, action="store_true")
    return combined


def parser_of(verb: str) -> tuple[Parser, Mapping[str, str]]:
    """Return the parser of a verb and its short options with their expansions; --resume and --on have none."""
    module: Any = importlib.import_module(VERBS[verb])
    if verb not in _TRAINING_VERBS:
        return module._parser(), {}
    from vitreous.cli.verbs.train import _HELP, _SHORT, make_parser

    parser = module._parser() if verb in ("finetune", "pretrain") else make_parser(_HELP)
    short = {name: option for name, option in getattr(module, "_SHORT", _SHORT).items() if "_" not in name}
    return parser, {**short, "--resume": "", **({} if verb == "pretrain" else {"--on": ""})}


def _names_for(names: Sequence[str], action: argparse.Action) -> list[str]:
    if "--recipe" in names:
        return list(RECIPES)
    if action.metavar == "SHELL":
        return list(_SHELLS)
    if "--size" in names or ("--model" in names and action.metavar != "MODEL"):
        from vitreous.model.sizes import SIZES

        return list(SIZES)
    return []


def _add(
    target: argparse.ArgumentParser, names: Sequence[str], action: argparse.Action | None, file: Mapping[str, Any]
) -> None:
    """Add an option, or a positional argument, that is completed like an action of a verb's parser."""
    if any(name in target._option_string_actions for name in names):
        return
    text = re.sub(r"[^\w ,.()/-]", "", (action.help if action else "") or "")[:60].strip()
    if action is None or (names and is_flag(action)):
        target.add_argument(*names, action="store_true", help=text)
        return
    choices = _names_for(names, action) or choices_of(action)
    arity: dict[str, Any] = {"nargs": action.nargs} if not names and action.nargs in ("*", "+", "?") else {}
    added = target.add_argument(*(names or [action.dest]), choices=choices or None, help=text, **arity)
    if takes_file_name(action, names):
        added.complete = file  # type: ignore[attr-defined]
