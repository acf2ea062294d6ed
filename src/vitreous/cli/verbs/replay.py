"""`vitreous replay`: where a step that was not finite went wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vitreous.cli.options.outputs import JSON_HELP, add_overwrite, outputs, write_document
from vitreous.cli.options.parser import Parser
from vitreous.files.text import printable

__all__ = ["run"]

_HELP = """\
Repeat a training step whose loss or gradient was not finite, in float32 with anomaly detection, and name the first \
module whose output is not finite. A run that stops for such a step writes the file.
"""
_EXAMPLES = (("vitreous replay runs/photos-1/nonfinite.replay", "the step that ended this run"),)


def _parser() -> Parser:
    parser = Parser("replay", "FILE", _HELP, _EXAMPLES)
    parser.add_argument("file", type=str, metavar="FILE", help="a nonfinite.replay of a run's folder")
    parser.add_argument("--json", type=str, metavar="FILE", help=JSON_HELP)
    add_overwrite(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    file = Path(options.file)
    files = outputs(options, each=(lambda: [file],))
    files.claim("--json", options.json)
    from vitreous.train.resume.replay import replay  # here: torch takes seconds, a typo should not

    found = replay(file)
    lines = [f"step      {found.step}", f"module    {found.module or 'none'}", f"found     {found.text}"]
    if options.json != "-":
        lines += [f"note      {note}" for note in found.notes]
        sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
    if options.json:
        about = {"file": str(file), "step": found.step, "module": found.module, "found": found.text}
        write_document(files, options.json, {**about, "notes": list(found.notes)})
    return 0
