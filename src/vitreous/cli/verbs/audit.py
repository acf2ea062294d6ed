"""`vitreous audit`: what is wrong with labelled pictures, before a model is trained on them or after."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from vitreous.cli.options.model import MODEL_HELP, add_size_options, opened
from vitreous.cli.options.outputs import (
    JSON_HELP,
    add_overwrite,
    files_of_data,
    files_of_model,
    outputs,
    write_document,
)
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import bar, narrate, print_table
from vitreous.files.text import printable, visible

if TYPE_CHECKING:
    from vitreous.audit.findings import Audit

__all__ = ["run"]

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def _parser() -> Parser:
    parser = Parser(
        "audit",
        "DATA [options]",
        "Look for what is wrong with labelled pictures: files that cannot be read or are not what they seem, exact and "
        "near copies within a split and across splits, one picture under two labels, blank images, classes that are "
        "small or are one under two names; with a trained model also labels that look wrong. Nothing is changed or "
        "deleted.\n"
        "--write-exclude lists what an honest score needs left out: files that cannot be read; of copies and near "
        "copies in several splits those in train; all copies and near copies under two labels, since nobody knows "
        "which is right; all but one of other exact copies.\n"
        "What was seen of each file is kept in the user's cache folder, by path, size and time, never in DATA. The "
        "exit code is 0 whatever is found; with --strict it is 1 where there is an error.",
        [
            ("vitreous audit photos/", "a table of what was found"),
            ("vitreous audit photos/ --html audit.html --json audit.json", "a page with thumbnails; all findings"),
            ("vitreous audit photos/ --write-exclude exclude.txt", "a list of images to leave out"),
            ("vitreous train photos/ --exclude exclude.txt", "train without them"),
            ("vitreous audit photos/ --model runs/photos-1 --html audit.html", "suspected label errors too, ranked"),
        ],
    )
    add = parser.add_argument
    add("data", type=str, metavar="DATA", help="a folder, a .csv or .parquet manifest, or a known set, as for training")
    add("--html", type=str, metavar="FILE", help="write a page with thumbnails, complete in one file")
    add("--json", type=str, metavar="FILE", help=JSON_HELP)
    add_overwrite(parser)
    add("--write-exclude", type=str, metavar="FILE", help="write the images to leave out, for train --exclude")
    add("--exclude", type=str, metavar="FILE", help="audit what is left after such a list")
    add("--model", type=str, metavar="MODEL", help=f"also look for wrong labels with it: {MODEL_HELP}")
    add("--strict", type=bool, default=False, help="exit with 1 where there is an error, as for a build server")
    add("--show", type=PositiveInt, default=3, help="findings of each kind in the table")
    add("--fresh", type=bool, default=False, help="look at every file again, whatever was seen before")
    add("--workers", type=PositiveInt, metavar="N", help="processes [one per core]")
    add("--data-dir", type=str, metavar="DIR", help="where the known sets are [~/.cache/vitreous]")
    add("--batch-size", type=PositiveInt, default=32, help="pictures per forward pass of the model")
    add("--device", type=str, default="auto", metavar="NAME", help="of the model: auto, cpu, cuda, cuda:1 or mps")
    add_size_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb; 1 if there is an error and --strict asked for that."""
    options = _parser().parse_args(argv)
    files = outputs(
        options,
        each=(files_of_data(options.data, options.data_dir, options.exclude), files_of_model(options.model)),
    )
    for option in ("html", "json", "write_exclude"):
        files.claim(f"--{option.replace('_', '-')}", options[option])
    from vitreous.audit.run import audit, exclusions  # here: a wrong option should not wait for libraries
    from vitreous.data.config import DataConfig

    config = DataConfig(options.data, dir=options.data_dir or DataConfig.dir, exclude=options.exclude)
    classifier = None
    if options.model:
        from vitreous.cli.work.scoring import split_as_trained
        from vitreous.cli.work.suspects import suspected
        from vitreous.evaluate.confident import require_cleanlab

        require_cleanlab()
        classifier = opened(options)
        config = split_as_trained(config, classifier.info)
    result, copies = audit(config, workers=options.workers, fresh=options.fresh, bar=bar)
    if classifier is not None:
        result.add(suspected(result, copies, classifier, options.batch_size))
    files.reads(each=lambda: (picture.path for picture in result.pictures if picture.path))
    for note in result.notes:
        narrate(note)
    if options.json != "-":
        print_table(_table(result, options.show))
        narrate(_last_line(result))
    if options.json:
        write_document(files, options.json, result.to_dict())
    if options.html:
        from vitreous.report.audit_page import page

        with bar("page") as at, files.replacing(options.html) as path, open(path, "w", encoding="utf-8") as file:
            file.writelines(page(result, at))
    if options.write_exclude:
        with files.replacing(options.write_exclude) as path:
            path.write_text("\n".join(exclusions(result, options.exclude)) + "\n", encoding="utf-8")
    for line in _advice(result, options):
        narrate(line)
    return int(options.strict and result.counts()["error"] > 0)


def _advice(result: Audit, options: Namespace) -> Iterator[str]:
    """Yield what to do about the images to leave out: commands that can be pasted as they are."""
    from vitreous.data.sources.listing import many
    from vitreous.files.shell import shell_line

    count = len({result.pictures[n].name for one in result.findings for n in one.drop})
    written = options.write_exclude
    if written and not os.path.isfile(written):  # standard output, say
        return
    left_out = f"{many(count, 'image')} to leave out" if count else "nothing to leave out"
    if written:
        yield f"{written}: {left_out}{' besides those of ' + options.exclude if options.exclude else ''}"
    if not count:
        return
    data = [options.data, *(["--data-dir", options.data_dir] if options.data_dir else [])]
    listed = written or _free("exclude.txt")
    if not written:
        earlier = ["--exclude", options.exclude] if options.exclude else []
        yield f"{left_out}. Write the list, and train without them:"
        yield "  " + shell_line(["vitreous", "audit", *data, *earlier, "--write-exclude", listed])
    else:
        yield "train without them:"
    yield "  " + shell_line(["vitreous", "train", *data, "--exclude", listed])


def _free(name: str) -> str:
    """The name of a file that is not there, in the current folder."""
    stem, suffix = os.path.splitext(name)
    numbered = (f"{stem}-{n}{suffix}" for n in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if not os.path.lexists(free))


def _table(result: Audit, shown: int) -> Table:
    """A row per kind with its first findings."""
    from vitreous.audit.findings import KINDS

    table = Table("level", "what", box=SIMPLE_HEAD)
    table.add_column("found", justify="right")
    table.add_column("such as", overflow="fold")  # a name is wrapped, never cut
    for name, findings in result.of_kind().items():
        kind = KINDS[name]
        examples = [_in_words(result, n) for n in range(len(result.findings)) if result.findings[n].kind == name]
        more = [f"and {len(findings) - shown:,} more"] if len(findings) > shown else []
        level = Text(kind.level, style=_STYLES[kind.level])
        table.add_row(level, Text(kind.title), f"{len(findings):,}", Text("\n".join(examples[:shown] + more)))
    return table


def _in_words(result: Audit, position: int) -> str:
    """A finding in a line: its pictures, and what is particular."""
    finding = result.findings[position]
    names = [visible(result.pictures[n].name) for n in finding.pictures]
    if finding.kind.endswith("two-labels"):
        names = [
            f"{name} ({visible(result.pictures[n].label)})" for name, n in zip(names, finding.pictures, strict=True)
        ]
    equals = "~" if finding.kind.startswith("near") else "="
    several = (
        f" {equals} {names[1]}" + (f" and {len(names) - 2:,} more" if len(names) > 2 else "") if len(names) > 1 else ""
    )
    first = "" if finding.kind == "class-names" or not names else names[0] + several
    text = printable(finding.text, 2000)
    return f"{first}: {text}" if first and text else first or text


def _last_line(result: Audit) -> str:
    """How many findings of each level, in how many pictures, and what it took."""
    counts = ", ".join(f"{count:,} {level}{'s' if count != 1 else ''}" for level, count in result.counts().items())
    known = f", {result.from_cache:,} seen before" if result.from_cache else ""
    return f"{counts} in {len(result.pictures):,} pictures ({result.seconds:.1f} s{known})"
