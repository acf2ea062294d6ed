"""`vitreous audit`: find problems in labelled images, before or after training."""

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

from vitreous.cli.options.model import (
    MODEL_HELP,
    add_cache_option,
    add_data,
    add_data_dir,
    add_inference_options,
    load_model,
)
from vitreous.cli.options.outputs import add_json_options, data_files, make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate, print_table, progress_bar
from vitreous.errors import UsageError, pluralize
from vitreous.files.text import printable, visible

if TYPE_CHECKING:
    from vitreous.audit.findings import Audit

__all__ = ["run"]

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def _parser() -> Parser:
    parser = Parser(
        "audit",
        "DATA [options]",
        "Find problems in images: unreadable files and files of another type than their name says, exact and "
        "near duplicates within a split and across splits, one image under two labels, blank images, small classes, "
        "one class under two names; with a trained model also suspicious labels. Of images without a label the files "
        "and the copies are checked. Nothing is changed or deleted.\n"
        "--write-exclude lists the images to leave out for an honest score: unreadable files; of duplicates across "
        "splits those in train; all duplicates under two labels, because the right label is unknown; all but one of "
        "other exact duplicates.\n"
        "Results for each file are cached in the user's cache folder by path, size and time, never in DATA. The exit "
        "code is 0 whatever is found; with --strict it is 1 if there is an error.",
        [
            ("vitreous audit photos/", "a table of the findings"),
            ("vitreous audit photos/ --html audit.html --json audit.json", "a page with thumbnails; all findings"),
            ("vitreous audit photos/ --write-exclude exclude.txt", "a list of images to leave out"),
            ("vitreous train photos/ --exclude exclude.txt", "train without them"),
            ("vitreous audit photos/ --model runs/photos-1 --html audit.html", "also suspected label errors, ranked"),
        ],
    )
    add_data(parser, model=False)
    add = parser.add_argument
    add("--html", type=str, metavar="FILE", help="write a self-contained page with thumbnails")
    add_json_options(parser)
    add(
        "--write-exclude",
        type=str,
        metavar="FILE",
        help="write the images to leave out, for train or pretrain",
    )
    add("--exclude", type=str, metavar="FILE", help="audit without the images of such a list")
    add("--model", type=str, metavar="MODEL", help=f"also find suspicious labels with this model: {MODEL_HELP}")
    add("--strict", type=bool, default=False, help="exit with 1 if there is an error, for continuous integration")
    add("--show", type=PositiveInt, default=3, help="findings of each kind in the table")
    add("--fresh", type=bool, default=False, help="ignore cached results and read every file again")
    add("--workers", type=PositiveInt, metavar="N", help="processes [one per core]")
    add_data_dir(parser)
    add_cache_option(parser)
    add_inference_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb; exit code 1 if there is an error and --strict was given."""
    parser = _parser()
    options = parser.parse_args(argv)
    _refuse_idle(parser, options)
    inputs = (data_files(options.data, options.data_dir, options.exclude), model_files(options.model))
    files = make_outputs(options, inputs)
    for option in ("html", "json", "write_exclude"):
        files.claim(f"--{option.replace('_', '-')}", options[option])
    from vitreous.audit.run import audit, exclusions  # slow imports, so only after the options are checked
    from vitreous.data.config import DataConfig

    folder, size = options.data_dir or DataConfig.dir, options.cache_size
    config = DataConfig(options.data, dir=folder, exclude=options.exclude, cache_gb=size)
    classifier = None
    if options.model:
        from vitreous.cli.work.evaluating.scoring import split_as_trained
        from vitreous.cli.work.suspects import find_suspects
        from vitreous.evaluate.features.confident import require_cleanlab

        require_cleanlab()
        classifier = load_model(options)
        config = split_as_trained(config, classifier.info)
    result, copies = audit(config, workers=options.workers, fresh=options.fresh, bar=progress_bar)
    if classifier is not None:
        result.add(find_suspects(result, copies, classifier, options.batch_size))
    files.reads(each=lambda: (image.path for image in result.images if image.path))
    for note in result.notes:
        narrate(note)
    if options.json != "-":
        print_table(_table(result, options.show))
        narrate(_summary(result))
    if options.json:
        write_document(files, options.json, result.to_dict())
    if options.html:
        from vitreous.report.audit_page import page

        with (
            progress_bar("page") as update,
            files.atomic_write(options.html) as path,
            open(path, "w", encoding="utf-8") as file,
        ):
            file.writelines(page(result, update))
    if options.write_exclude:
        with files.atomic_write(options.write_exclude) as path:
            path.write_text("\n".join(exclusions(result, options.exclude)) + "\n", encoding="utf-8")
    for line in _advice(result, options):
        narrate(line)
    return int(options.strict and result.counts()["error"] > 0)


def _refuse_idle(parser: Parser, options: Namespace) -> None:
    """Raise if options of a model are given without one."""
    for name in ("batch_size", "device", "image_size", "resample") if options.model is None else ():
        if options[name] != parser.get_default(name):
            raise UsageError(f"--{name.replace('_', '-')} is for a model: give --model too, or remove it")


def _advice(result: Audit, options: Namespace) -> Iterator[str]:
    """Yield what to do about the images to leave out, with commands to copy."""
    from vitreous.files.shell import shell_line

    count = len({result.images[n].name for finding in result.findings for n in finding.drop})
    written = options.write_exclude
    if written and not os.path.isfile(written):  # such as /dev/stdout
        return
    left_out = f"{pluralize(count, 'image')} to leave out" if count else "nothing to leave out"
    if written:
        yield f"{written}: {left_out}{' besides those of ' + options.exclude if options.exclude else ''}"
    if not count:
        return
    data = [options.data, *(["--data-dir", options.data_dir] if options.data_dir else [])]
    exclude = written or _unused_name("exclude.txt")
    verb = "train" if any(image.has_label for image in result.images) else "pretrain"
    if not written:
        earlier = ["--exclude", options.exclude] if options.exclude else []
        yield f"{left_out}. Write the list, and {verb} without them:"
        yield "  " + shell_line(["vitreous", "audit", *data, *earlier, "--write-exclude", exclude])
    else:
        yield f"{verb} without them:"
    yield "  " + shell_line(["vitreous", verb, *data, "--exclude", exclude])


def _unused_name(name: str) -> str:
    """Return the name, or the name with a number, of a file that does not exist in the current folder."""
    stem, suffix = os.path.splitext(name)
    numbered = (f"{stem}-{n}{suffix}" for n in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if not os.path.lexists(free))


def _table(result: Audit, max_examples: int) -> Table:
    from vitreous.audit.findings import KINDS

    table = Table("level", "problem", box=SIMPLE_HEAD)
    table.add_column("count", justify="right")
    table.add_column("examples", overflow="fold")  # wrap names, never cut them
    for name, findings in result.by_kind().items():
        kind = KINDS[name]
        examples = [_describe(result, n) for n, finding in enumerate(result.findings) if finding.kind == name]
        more = [f"and {len(findings) - max_examples:,} more"] if len(findings) > max_examples else []
        level = Text(kind.level, style=_STYLES[kind.level])
        table.add_row(level, Text(kind.title), f"{len(findings):,}", Text("\n".join(examples[:max_examples] + more)))
    return table


def _describe(result: Audit, position: int) -> str:
    finding = result.findings[position]
    images = [result.images[n] for n in finding.images]
    names = [visible(image.name) for image in images]
    if finding.kind.endswith("two-labels"):
        names = [f"{name} ({visible(image.label)})" for name, image in zip(names, images, strict=True)]
    relation = "~" if finding.kind.startswith("near") else "="
    more = f" and {len(names) - 2:,} more" if len(names) > 2 else ""
    others = f" {relation} {names[1]}{more}" if len(names) > 1 else ""
    subject = "" if finding.kind == "class-names" or not names else names[0] + others
    return ": ".join(filter(None, (subject, printable(finding.text, 2000))))


def _summary(result: Audit) -> str:
    cached = f", {result.from_cache:,} from the cache" if result.from_cache else ""
    return f"{result.describe_counts()} in {len(result.images):,} images ({result.seconds:.1f} s{cached})"
