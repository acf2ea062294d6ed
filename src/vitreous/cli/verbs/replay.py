"""`vitreous replay`: find the module where the values of a training step became non-finite."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vitreous.cli.options.outputs import add_json_options, make_outputs, write_document
from vitreous.cli.options.parser import Parser
from vitreous.errors import UsageError
from vitreous.files.text import printable, visible

__all__ = ["run"]

_HELP = """\
Repeat a training step whose loss or gradient was not finite, in float32 with anomaly detection, and report the first \
module whose output is not finite. A run that stops at such a step writes the file.
"""
_EXAMPLES = (("vitreous replay runs/photos-1/nonfinite.replay", "the step that ended this run"),)


def _parser() -> Parser:
    parser = Parser("replay", "FILE", _HELP, _EXAMPLES)
    parser.add_argument(
        "file", type=str, metavar="FILE", help="the nonfinite.replay of a run directory, or that folder"
    )
    add_json_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    file = Path(options.file)
    files = make_outputs(options, (lambda: [file],))
    files.claim("--json", options.json)
    from vitreous.train.resume.replay import REPLAY, replay  # imports torch

    if file.is_dir():
        file = file / REPLAY
        if not file.exists():
            raise UsageError(
                f"'{visible(options.file)}' has no {REPLAY}: only a run that stopped at a loss or gradient that was "
                "not finite has one"
            )
    result = replay(file)
    lines = [f"step      {result.step}", f"module    {result.module or 'none'}", f"found     {result.text}"]
    if options.json != "-":
        lines += [f"note      {note}" for note in result.notes]
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
    if options.json:
        document = {"file": str(file), "step": result.step, "module": result.module, "found": result.text}
        write_document(files, options.json, {**document, "notes": list(result.notes)})
    return 0
