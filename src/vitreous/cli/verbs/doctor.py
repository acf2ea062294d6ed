"""`vitreous doctor`: what a bug report needs, and a quick test of the installation."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from vitreous.cli.options.outputs import add_json_options, make_outputs, write_document
from vitreous.cli.options.parser import Parser
from vitreous.files.text import printable

__all__ = ["run"]

_WIDTH = 12  # columns of the labels


def _parser() -> Parser:
    parser = Parser(
        "doctor",
        "[options]",
        "Print what a bug report needs: versions, hardware, engines, folders, and the licence of the backbone that is "
        "part of the package. Then every engine embeds an image with that backbone, and must agree with PyTorch. The "
        "exit code is 1 if a test fails.",
        [
            ("vitreous doctor", "the whole examination: some seconds, longer the first time"),
            ("vitreous doctor --json -", "the same as JSON, to attach to a bug report"),
        ],
    )
    add_json_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    files = make_outputs(options)
    files.claim("--json", options.json)
    from vitreous.cli.work.diagnosis import examine_engines, facts  # imports torch

    found = facts()
    _print(options.json, found)
    tests = examine_engines()
    _print(options.json, [("ok" if test.passed else "FAILED", f"{test.name}: {test.result}") for test in tests])
    if options.json:
        document = {"facts": dict(found), "tests": [asdict(test) for test in tests]}
        write_document(files, options.json, document)
    return 0 if all(test.passed for test in tests) else 1


def _print(json: str | None, lines: Iterable[tuple[str, str]]) -> None:
    if json != "-":
        sys.stdout.writelines(f"{label:<{_WIDTH}}{printable(text)}\n" for label, text in lines)
        sys.stdout.flush()
