"""`vitreous evaluate`: how good a model is on labelled pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt

from vitreous.cli.options.model import (
    MODEL_HELP,
    add_augmentation_option,
    add_engine_options,
    add_size_options,
)
from vitreous.cli.options.outputs import (
    JSON_HELP,
    add_overwrite,
    files_of_data,
    files_of_model,
    outputs,
    write_document,
)
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import print_table

__all__ = ["parsed", "run"]


def _parser() -> Parser:
    parser = Parser(
        "evaluate",
        "MODEL DATA [options]",
        "Score a model on labelled pictures: log loss, top-1, top-5, precision, recall and F1 per class and overall, "
        "and how well its probabilities are calibrated. Classes are matched by name.\n"
        "Which pictures: the data's test split; else its val split; a folder of classes without splits as a whole, "
        "unless the model was trained on it, then the val split that training held out.",
        [
            ("vitreous evaluate runs/photos-1 more-photos/", "one folder per class, named as in training"),
            ("vitreous evaluate runs/digits-1 digits --json scores.json", "a known set; all numbers to a file too"),
            ("vitreous evaluate runs/photos-1 more-photos/ --tta", "what averaging over mirror images gains there"),
        ],
    )
    parser.add_argument("model", type=str, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "data", type=str, metavar="DATA", help="a folder, a .csv or .parquet manifest, or a known set, as for training"
    )
    parser.add_argument(
        "--split",
        type=Literal["val", "test", "train", "all"] | None,
        metavar="val|test|train|all",
        help="which pictures, if not those said above",
    )
    parser.add_argument("--data-dir", type=str, metavar="DIR", help="where the known sets are [~/.cache/vitreous]")
    parser.add_argument("--json", type=str, metavar="FILE", help=JSON_HELP)
    add_overwrite(parser)
    parser.add_argument("--batch-size", type=PositiveInt, default=32, help="pictures per forward pass")
    parser.add_argument("--device", type=str, default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps")
    add_engine_options(parser)
    add_augmentation_option(
        parser,
        "test-time augmentation: average the probabilities of each image and its mirror image, and say what that gains "
        "on these images; takes three times as long, as the scores without are computed too",
    )
    add_size_options(parser)
    return parser


def parsed(argv: Sequence[str]) -> Namespace:
    """The options that the words after the verb mean.

    Raises:
        UsageError: If a word cannot be meant.
    """
    return _parser().parse_args(argv)


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = parsed(argv)
    files = outputs(options, each=(files_of_model(options.model), files_of_data(options.data, options.data_dir)))
    files.claim("--json", options.json)
    from vitreous.cli.work import scoring  # here: torch takes seconds, a wrong option should not
    from vitreous.cli.work.evaluation import evaluated

    found = evaluated(options)
    scores, how = found.scores, found.computed_by
    if options.json != "-":
        which = "all pictures" if found.split == "all" else f"{found.split} split"
        title = f"{found.data.name}, {which}: {scores.n:,} pictures"
        for table in scoring.tables(title, scores, found.calibration, found.classes):
            print_table(table, shorten=range(min(2, len(table.columns) - 2)))  # names of classes
        if how["merging"]:
            print_table(scoring.merging_table(options.merge_tokens, how["merging"]))
        if how.get("tta"):
            print_table(scoring.augmentation_table(how["tta"]))
    if options.json:
        data = found.data
        files.reads(each=lambda: (path for one in data.splits.values() for path in one.paths or []))
        write_document(files, options.json, found.to_dict())
    return 0
