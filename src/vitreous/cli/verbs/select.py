"""`vitreous select`: propose which images to label next."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from jsonargparse.typing import PositiveInt

from vitreous.cli.options.model import MODEL_HELP, add_inference_options, describe_compute, load_model
from vitreous.cli.options.outputs import add_json_options, data_files, make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate
from vitreous.errors import UsageError
from vitreous.files.locating import is_below

__all__ = ["run"]


def _parser() -> Parser:
    parser = Parser(
        "select",
        "MODEL DATA [options]",
        "Propose which images to label next. Writes a table with an empty column label, or labels where an image may "
        "have several, which is a manifest once that is filled, and beside it a contact sheet of the first 1,000 with "
        "the numbers of their rows, FILE.png. An unreadable image is reported and skipped; the exit code is then 1.",
        [
            ("vitreous select shipped photos/ --count 200 -o round-1.csv", "the first labels: no model of yours yet"),
            (
                "vitreous select runs/round-1-1 photos/ --labelled round-1.csv --method uncertainty -o round-2.csv",
                "more: what the classifier does not know",
            ),
            ("vitreous select dinov2-s images.csv --method core-set -o next.csv", "rows of images.csv without a label"),
        ],
    )
    add = parser.add_argument
    add("model", type=str, metavar="MODEL", help=MODEL_HELP)
    add(
        "data",
        type=str,
        metavar="DATA",
        help="a folder, of which every image counts as unlabelled, or a .csv or .parquet manifest, of which rows "
        "without a label do",
    )
    add(
        "-o",
        "--output",
        type=str,
        default="select.csv",
        metavar="FILE.csv",
        help="the table: path, label, rank, score; not below DATA, which would then contain the contact sheet",
    )
    add("--count", type=PositiveInt, default=200, help="number of images to propose")
    add(
        "--method",
        type=Literal["typicality", "core-set", "uncertainty"],
        default="typicality",
        help="typicality: the densest image of each of COUNT clusters, for few labels (TypiClust). core-set: the "
        "image farthest from all labelled and chosen ones, in turn. uncertainty: the smallest margins between the two "
        "most probable classes, or between a label and its threshold, of different confusions; needs a classifier",
    )
    add(
        "--labelled",
        type=str | None,
        metavar="FILE",
        help="a manifest, or a folder with one folder per class: images with labels, which are not proposed again",
    )
    add(
        "--label-studio",
        type=str | None,
        metavar="FOLDER",
        help="also write FILE.json, tasks to import into Label Studio, which serves images of folders below FOLDER",
    )
    add_json_options(parser, content="the choice")
    add_inference_options(parser, engines=True)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb; exit code 1 if an image could not be read."""
    options = _parser().parse_args(argv)
    stem, suffix = os.path.splitext(options.output)
    if suffix.lower() != ".csv":
        raise UsageError(f"-o is '{options.output}': its extension must be .csv")
    if options.label_studio is not None and not os.path.isdir(options.label_studio):
        raise UsageError(f"--label-studio is '{options.label_studio}', which is no folder: name the one that it serves")
    for name, folder in (("DATA", options.data), ("--labelled", options.labelled)):
        if folder is not None and os.path.isdir(folder) and is_below(options.output, folder):
            raise UsageError(
                f"-o is '{options.output}', below {name} '{folder}', where {stem}.png would count as one of its "
                "images: name a file outside it"
            )
    files = make_outputs(options, (model_files(options.model), data_files(options.data, None, options.labelled)))
    files.claim("-o", options.output)
    files.claim("the contact sheet", stem + ".png")
    files.claim("--label-studio", None if options.label_studio is None else stem + ".json")
    files.claim("--json", options.json)
    from vitreous.cli.work import selecting  # imports torch

    pool = selecting.find_pool(options.data, options.labelled, options.count)
    if options.label_studio is not None:
        selecting.check_below(pool, options.label_studio)
    files.reads(each=lambda: [*pool.candidates, *pool.labelled])
    # With several labels, uncertainty is measured from the thresholds.
    classifier = load_model(options, ignore_thresholds=options.method != "uncertainty")
    engine = classifier.prepare(len(pool.candidates) + len(pool.labelled), options.batch_size)
    proposals, failures = selecting.choose(classifier, pool, options.method, options.count, options.batch_size)
    tasks = None if options.label_studio is None else selecting.label_studio_tasks(proposals, options.label_studio)
    column = "labels" if pool.several or classifier.info.multilabel is not None else "label"
    written = selecting.write_files(files, options.output, proposals, tasks, column)
    narrate(
        f"{len(proposals):,} of {len(pool.candidates):,} images to label, by {options.method}, in {', '.join(written)}"
    )
    if options.json:
        chosen = [{"path": each.path, "score": each.score, "rank": each.rank} for each in proposals]
        document = {"model": options.model, "data": options.data, "method": options.method, "chosen": chosen}
        counts = {"images": len(pool.candidates), "labelled": len(pool.labelled)}
        failed = [{"path": each.name, "error": each.reason} for each in failures]
        compute = describe_compute(classifier, engine)
        write_document(files, options.json, {**document, **counts, "failures": failed, "computed_by": compute})
    return 1 if failures else 0
