"""`vitreous evaluate`: score a model on labelled images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt

from vitreous.cli.options.cluster import add_cluster_options, discard_parts, refuse_idle
from vitreous.cli.options.model import (
    add_cache_option,
    add_data,
    add_data_dir,
    add_inference_options,
    add_threshold_option,
)
from vitreous.cli.options.outputs import add_json_options, data_files, make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import print_table

__all__ = ["parsed", "run"]


def _parser() -> Parser:
    parser = Parser(
        "evaluate",
        "MODEL DATA [options]",
        "Score a model on labelled images: log loss, top-1, top-5, precision, recall and F1 per class and overall, and "
        "the calibration of its probabilities. After `vitreous calibrate` also what its thresholds do. "
        "Of a model with several labels: mAP, macro and micro F1, and each label with its threshold. "
        "Classes are matched by name.\n"
        "Images: the test split of the data, else its val split. A folder of classes without splits is used as a "
        "whole, unless the model was trained on it; then the validation set of that training is used.",
        [
            ("vitreous evaluate runs/photos-1 more-photos/", "one folder per class, named as in training"),
            ("vitreous evaluate runs/digits-1 digits --json scores.json", "a known dataset; every number in a file"),
            ("vitreous evaluate runs/photos-1 more-photos/ --tta", "with mirror images, and the gain"),
            ("vitreous evaluate runs/photos-1 test.csv --report report", "a page with intervals, mistakes and slices"),
            (
                "vitreous evaluate runs/photos-2 test.csv --report new --against runs/photos-1",
                "is it better, and where",
            ),
        ],
    )
    add_data(parser)
    parser.add_argument(
        "--split",
        type=Literal["val", "test", "train", "all"] | None,
        metavar="val|test|train|all",
        help="images to score, instead of the split chosen as above",
    )
    add_data_dir(parser)
    add_cache_option(parser)
    add_json_options(parser)
    add_threshold_option(parser)
    _add_report_options(parser)
    add_inference_options(
        parser,
        engines=True,
        tta="test-time augmentation: average the probabilities of each image and its mirror image, and report the gain "
        "on these images; takes three times as long, because the scores without it are computed too",
    )
    add_cluster_options(parser)
    return parser


def _add_report_options(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--report",
        type=str | None,
        metavar="DIR",
        help="write a folder: report.html, one self-contained page with scores and their intervals, confusion, "
        "calibration, abstention, prediction sets, and mistakes with their class maps; evaluation.json with every "
        "number; per_class.csv and predictions.csv",
    )
    add(
        "--against",
        type=str | None,
        metavar="OTHER",
        help="in the report, test whether MODEL is better than this model of the same classes on the same images",
    )
    add(
        "--slice",
        type=str,
        action="append",
        default=[],
        metavar="COLUMN",
        help="in the report, score the images of each value of this column of the manifest; may be repeated "
        "[all further columns with 2 to 50 values]",
    )
    add(
        "--robustness",
        type=bool | PositiveInt,
        default=False,
        metavar="N",
        help="in the report, the accuracy on corrupted and shifted images: 100 images, or =N, each classified about "
        "110 times",
    )
    add(
        "--no-images",
        type=bool,
        default=False,
        help="a report without thumbnails and class maps, to pass on where images must not",
    )


def parsed(argv: Sequence[str]) -> Namespace:
    """Parse the arguments after the verb."""
    return _parser().parse_args(argv)


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = parsed(argv)
    refuse_idle(options)
    files = make_outputs(options, (model_files(options.model), data_files(options.data, options.data_dir)))
    files.claim("--json", options.json)
    from vitreous.cli.work.evaluating.evaluation import Evaluation, class_tables, evaluated  # imports torch

    result = evaluated(options)
    if options.json != "-" and isinstance(result, Evaluation):
        for table, names in class_tables(options, result):
            print_table(table, shorten=range(names))
    elif options.json != "-" and not isinstance(result, Evaluation):
        for table in result.tables():
            print_table(table)
    if options.json:
        splits = result.data.splits.values()
        files.reads(each=lambda: (path for split in splits for path in split.paths or []))
        write_document(files, options.json, result.to_dict())
    discard_parts(options)
    return 0
