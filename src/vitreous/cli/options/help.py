"""Help by topic, for verbs with hundreds of options: ``--help`` prints one screen, ``--help TOPIC`` a group of options.

The first screen is text alone. Only a topic needs the parser of all options, which imports torch.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vitreous.cli.output.wrapping import wrap
from vitreous.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from vitreous.cli.options.parser import Parser

__all__ = ["TOPICS", "VerbHelp", "print_help", "split_help"]

TOPICS = {
    "run": "epochs, batch size, seed, precision, checkpoints, and what the command writes",
    "data": "where images come from and how they are split",
    "model": "the Vision Transformer: size, patches, positions, attention, head",
    "preprocess": "resizing, cropping and normalisation in evaluation",
    "augment": "random variation of the training images",
    "optim": "optimiser and learning-rate schedule",
    "tune": "fine-tuning: the model to start from and the weights to train",
    "distil": "a teacher: a larger trained model to learn from",
    "aux": "few labels: a second task, or labels that a model predicts",
    "labels": "images with several labels: the loss",
    "all": "every option",
}
"""Each topic and what it covers. The options of a topic begin with its name and a dot; `run` has all others, also those
of a method of pretraining."""


class VerbHelp(NamedTuple):
    """What the help of a verb says before its options: the arguments of :class:`Parser`."""

    verb: str
    usage: str
    text: str


def split_help(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split the arguments of a verb into the topic of a request for help and the other arguments.

    The topic is None without ``--help`` or ``-h``, and empty for the first screen.
    """
    end = words.index("--") if "--" in words else len(words)
    topic: str | None = None
    options, others = list(words[:end]), list[str]()
    while options:
        name, equals, value = options.pop(0).partition("=")
        if name not in ("-h", "--help"):
            others.append(name + equals + value)
        elif equals:
            topic = _check_topic(value)
        elif options and (options[0] in TOPICS or not _may_be_argument(options[0])):
            topic = _check_topic(options.pop(0))
        else:
            topic = topic or ""
    return topic, [*others, *words[end:]]


def _may_be_argument(word: str) -> bool:
    """Whether a word that is not a topic can be an option, a value or data; else it is a misspelt topic."""
    if not re.fullmatch(r"[A-Za-z][\w-]*", word) or os.path.lexists(word):
        return True
    from vitreous.data.sources.known import KNOWN

    return word in KNOWN


def _check_topic(topic: str) -> str:
    if topic in TOPICS:
        return topic
    raise UsageError(f"unknown help topic '{topic}'.{did_you_mean(topic, TOPICS)} The topics are {', '.join(TOPICS)}")


def print_help(topic: str, verb: VerbHelp, make_parser: Callable[[], tuple[Parser, str]]) -> int:
    """Print the first screen of a verb, or its options on a topic; return exit code 0.

    ``make_parser`` returns the parser of all options and a sentence on their defaults; it is called for a topic only.
    """
    sys.stdout.write(_topic_screen(topic, verb, *make_parser()) if topic else _first_screen(verb))
    return 0


def _first_screen(verb: VerbHelp) -> str:
    topics = "\n".join(f"  --help {topic:<12}{subject}" for topic, subject in TOPICS.items())
    more = f"more options, with their defaults for the data if DATA comes before --help:\n{topics}\n"
    width = min(shutil.get_terminal_size().columns, 110) - 2
    return wrap(f"usage: vitreous {verb.verb} {verb.usage}\n\n{verb.text}\n\n{more}", width)


def _topic_screen(topic: str, verb: VerbHelp, parser: Parser, defaults: str) -> str:
    parser.description = f"{verb.text}\n\n{defaults}" if topic == "all" else defaults
    for action in parser._actions if topic != "all" else ():
        group, dot, _ = max(action.option_strings, key=len, default="").removeprefix("--").partition(".")
        if topic != (group if dot and group in TOPICS else "run"):
            action.help = argparse.SUPPRESS
    return parser.format_help()
