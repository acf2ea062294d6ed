"""`vitreous predict`: what is on these pictures, as a table, JSON lines or CSV."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

from jsonargparse.typing import PositiveInt

from vitreous.cli.options.inputs import expand, files_of_images
from vitreous.cli.options.model import (
    MODEL_HELP,
    add_augmentation_option,
    add_engine_options,
    add_size_options,
    computed_by,
    opened,
    pace,
)
from vitreous.cli.options.outputs import JSON_HELP, add_overwrite, files_of_model, outputs, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import bar, narrate
from vitreous.errors import UsageError
from vitreous.files.text import visible

__all__ = ["run"]

_EXTENSIONS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


def _parser() -> Parser:
    parser = Parser(
        "predict",
        "MODEL IMAGES... [options]",
        "Say what is on pictures: the most probable classes of each, with probabilities, calibrated where the model "
        "file has a temperature, as after `vitreous train`. A picture that cannot be read is reported, the "
        "others are still done, and the exit code is then 1.",
        [
            ("vitreous predict runs/photos-1 cat.jpg", "one picture; a run folder stands for its model.safetensors"),
            ("vitreous predict model.safetensors photos/ --format csv -o labels.csv", "a folder, at any depth"),
            ("find . -name '*.jpg' | vitreous predict model.safetensors - --format jsonl", "a list of paths"),
        ],
    )
    parser.add_argument("model", type=str, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "images", type=str, nargs="+", metavar="IMAGES", help="files, folders, quoted globs, or - for a list on stdin"
    )
    parser.add_argument("--top-k", type=PositiveInt, default=5, help="classes to name for each picture")
    parser.add_argument(
        "--format",
        type=Literal["table", "jsonl", "csv"] | None,
        metavar="table|jsonl|csv",
        help="jsonl: one JSON object a line; csv: columns path, label, probability, label_2, ..., error, made for "
        "spreadsheets: a name with control characters shows them as escapes, and one that begins with = + - @ gets an "
        "apostrophe (JSON has every name exactly); not given: by the extension of the output, else table",
    )
    parser.add_argument("-o", "--output", type=str, metavar="FILE", help="write there; - is the terminal, as without")
    parser.add_argument("--json", type=str, metavar="FILE", help=JSON_HELP)
    add_overwrite(parser)
    parser.add_argument("--batch-size", type=PositiveInt, default=32, help="pictures per forward pass")
    parser.add_argument("--device", type=str, default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps")
    add_engine_options(parser)
    add_augmentation_option(
        parser,
        "test-time augmentation: average the probabilities of each image and its mirror image, in twice the time; "
        "`vitreous evaluate --tta` measures what that gains",
    )
    add_size_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb; 1 if any picture could not be read."""
    options = _parser().parse_args(argv)
    options.output = None if options.output == "-" else options.output
    if options.json == "-" and (options.format and not options.output):
        raise UsageError("--json - takes standard output: give --format a file with -o, or leave one away")
    files = outputs(options, each=(files_of_model(options.model), files_of_images(options.images)))
    files.claim("-o", options.output)
    files.claim("--json", options.json)
    from vitreous.cli.output.predictions import record, writer  # here: torch takes seconds, a wrong option should not
    from vitreous.predictor import Failure

    classifier = opened(options)
    classifier.require_classes()
    paths = expand(options.images)
    files.reads(each=lambda: paths)
    top_k = min(options.top_k, len(classifier.classes))
    form = options.format or _EXTENSIONS.get(os.path.splitext(options.output or "")[1].lower(), "table")
    if options.json == "-" and options.output is None:
        form = "none"
    to_terminal = options.output is None and form in ("jsonl", "csv") and sys.stdout.isatty()  # lines meet the bar
    engine = classifier.prepare(len(paths), options.batch_size)
    by = computed_by(classifier, engine)
    records: list[dict[str, Any]] = []
    failed, start = 0, time.perf_counter()
    with writer(form, options.output, top_k, by, files) as write, bar("predict", not to_terminal) as at:
        for done, result in enumerate(classifier.predict_stream(paths, top_k, options.batch_size), start=1):
            write(result)
            if options.json:
                records.append(record(result))
            at(done, len(paths))
            if isinstance(result, Failure):
                failed += 1
                narrate(f"vitreous: {visible(result.name)}: {result.reason}")
    seconds, read = time.perf_counter() - start, len(paths) - failed
    if read:
        narrate(pace(read, seconds, classifier, engine))
    if options.output:
        narrate(f"{read:,} predictions in {options.output}")
    if failed:
        narrate(f"vitreous: {failed:,} of {len(paths):,} pictures could not be read")
    if options.json:
        about = {"model": options.model, "computed_by": by, "images": len(paths), "failed": failed, "seconds": seconds}
        write_document(files, options.json, {**about, "predictions": records})
    return 1 if failed else 0
