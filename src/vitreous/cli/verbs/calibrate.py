"""`vitreous calibrate`: fit the temperature of a model, and thresholds with a promise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from jsonargparse import Namespace

from vitreous.cli.options.model import add_data, add_data_dir, add_inference_options
from vitreous.cli.options.outputs import add_json_options, data_files, make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate, print_table
from vitreous.errors import UsageError
from vitreous.files.text import visible
from vitreous.files.writing import Outputs

__all__ = ["parsed", "run"]


def _parser() -> Parser:
    parser = Parser(
        "calibrate",
        "MODEL DATA [--precision P] [--coverage C] [options]",
        "Fit the temperature of a model on labelled images that it was not trained on, and thresholds: below that for "
        "--precision a prediction is unsure, and --coverage gives sets of classes. They are stored in the model file, "
        "in place of earlier ones; `predict` applies them and `evaluate` measures them. Of a model with several "
        "labels, calibration and threshold of each label are fitted, without --precision and --coverage.\n"
        "The promises hold for new images like these. If no threshold is shown to reach the precision, the best that "
        "is reachable is printed, the file stays as it is, and the exit code is 1.\n"
        "Images: the val split of the data, or what training held out; a folder of other images is used as a whole.",
        [
            ("vitreous calibrate runs/photos-1 more-photos/ --precision 0.95", "95 % of the answers correct"),
            ("vitreous calibrate runs/photos-1 more-photos/ --coverage 0.9", "sets that hold the class 9 times in 10"),
            ("vitreous calibrate runs/photos-1 more-photos/", "only the temperature"),
        ],
    )
    add_data(parser)
    add = parser.add_argument
    add("--precision", type=float | None, metavar="P", help="share of correct predictions among those not unsure")
    add("--coverage", type=float | None, metavar="C", help="share of the sets of classes that hold the true one")
    add(
        "--method",
        type=Literal["lac", "raps"] | None,
        metavar="lac|raps",
        help="of the sets. lac: the smallest on average; raps: larger for difficult images only [lac]",
    )
    add(
        "--class-conditional",
        type=bool,
        default=False,
        help="reach the coverage in each class with at least 20 images, by thresholds of its own",
    )
    add(
        "--split",
        type=Literal["val", "test", "train", "all"] | None,
        metavar="val|test|train|all",
        help="images to use, instead of the split chosen as above",
    )
    add("--out", type=str | None, metavar="FILE", help="write this .safetensors file instead of changing MODEL")
    add_data_dir(parser)
    add_json_options(parser)
    add_inference_options(parser, sizes=False)
    return parser


def parsed(argv: Sequence[str]) -> tuple[Namespace, Outputs]:
    """Parse the arguments after the verb, and check every value and output file."""
    options = _parser().parse_args(argv)
    for name in ("precision", "coverage"):
        value = options[name]
        if value is not None and not 0 < value < 1:
            raise UsageError(f"--{name} is {value:g}, it must be above 0 and below 1, such as 0.95")
    if options.coverage is None and (options.method or options.class_conditional):
        option = "--method" if options.method else "--class-conditional"
        raise UsageError(f"{option} describes sets of classes: give --coverage too, or leave it out")
    if options.out is not None and os.path.splitext(options.out)[1] != ".safetensors":
        raise UsageError(f"--out is '{visible(options.out)}', it must end in .safetensors")
    files = make_outputs(options, (model_files(options.model), data_files(options.data, options.data_dir)))
    files.claim("--out", options.out)
    files.claim("--json", options.json)
    return options, files


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options, files = parsed(argv)
    from vitreous.cli.work.evaluating.calibrating import calibrated, fit_table  # imports torch

    result = calibrated(options, files)
    if options.json != "-":
        print_table(fit_table(result))
    narrate(f"wrote {visible(str(result.model))}")
    if options.json:
        write_document(files, options.json, result.to_dict())
    return 0
