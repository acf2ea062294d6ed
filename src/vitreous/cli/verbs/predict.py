"""`vitreous predict`: classify images, with output as a table, JSON lines or CSV."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt

from vitreous.cli.options.cluster import add_cluster_options, discard_parts, refuse_idle
from vitreous.cli.options.inputs import expand, image_files
from vitreous.cli.options.model import (
    add_cache_option,
    add_images,
    add_inference_options,
    add_threshold_option,
    describe_compute,
    load_model,
    throughput_line,
)
from vitreous.cli.options.outputs import add_json_options, make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate, progress_bar
from vitreous.errors import UsageError
from vitreous.files.text import visible

if TYPE_CHECKING:
    from vitreous.predictor import Classifier

__all__ = ["run"]

_FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}

_OTHER_FORMATS = (".xlsx", ".xls", ".ods", ".parquet", ".pq", ".feather", ".npz", ".npy", ".html", ".tsv", ".pdf")


def _parser() -> Parser:
    parser = Parser(
        "predict",
        "MODEL IMAGES... [options]",
        "Classify images: the most probable classes of each, with probabilities, calibrated if the model file has "
        "a temperature, as after `vitreous train`. After `vitreous calibrate`, a prediction below the threshold is "
        "marked as unsure, and sets of classes are shown. With several labels, `labels` has those at or above their "
        "threshold, and `label` the most probable one, also below it. An unreadable image is reported and skipped; the "
        "exit code is then 1.",
        [
            ("vitreous predict runs/photos-1 cat.jpg", "one image; a run directory stands for its model.safetensors"),
            ("vitreous predict model.safetensors photos/ --format csv -o labels.csv", "a folder, at any depth"),
            ("find . -name '*.jpg' | vitreous predict model.safetensors - --format jsonl", "a list of paths"),
        ],
    )
    add_images(parser)
    add_cache_option(parser)
    parser.add_argument("--top-k", type=PositiveInt, default=5, help="classes per image")
    parser.add_argument(
        "--format",
        type=Literal["table", "jsonl", "csv"] | None,
        metavar="table|jsonl|csv",
        help="jsonl: one JSON object per line. csv: columns path, label, probability, label_2, ..., unsure, set "
        "and labels if the model has them, error, safe for "
        "spreadsheets: control characters in names are escaped, and a name that begins with = + - @ gets an apostrophe "
        "(JSON has every name exactly). By default the extension of the output decides, else table",
    )
    parser.add_argument("-o", "--output", type=str, metavar="FILE", help="output file; - is standard output [-]")
    add_json_options(parser)
    add_threshold_option(parser)
    add_inference_options(
        parser,
        engines=True,
        tta="test-time augmentation: average the probabilities of each image and its mirror image, in twice the time; "
        "`vitreous evaluate --tta` measures the gain",
    )
    add_cluster_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb; exit code 1 if an image could not be read."""
    options = _parser().parse_args(argv)
    refuse_idle(options)
    options.output = None if options.output == "-" else options.output
    if options.json == "-" and (options.format and not options.output):
        raise UsageError("--json - takes standard output: give --format a file with -o, or remove one of them")
    output_format = _output_format(options)
    files = make_outputs(options, (model_files(options.model), image_files(options.images)))
    files.claim("-o", options.output)
    files.claim("--json", options.json)
    from vitreous.cli.output.predictions import to_record, writer  # imports torch
    from vitreous.predictions import Failure

    classifier = load_model(options)
    classifier.require_classes()
    paths = expand(options.images, options.cache_size)
    files.reads(each=lambda: paths)
    top_k = min(options.top_k, len(classifier.classes))
    prints_lines = options.output is None and output_format in ("jsonl", "csv") and sys.stdout.isatty()
    engine = classifier.prepare(len(paths), options.batch_size)
    compute = describe_compute(classifier, engine)
    records: list[dict[str, Any]] = []
    failed, num_unsure, start = 0, 0, time.perf_counter()
    with (
        writer(
            output_format, options.output, top_k, compute, files, thresholds=_threshold_columns(classifier)
        ) as write,
        progress_bar("predict", shown=not prints_lines) as update,
    ):
        for done, result in enumerate(classifier.predict_stream(paths, top_k, options.batch_size), start=1):
            write(result)
            if options.json:
                records.append(to_record(result))
            update(done, len(paths))
            if isinstance(result, Failure):
                failed += 1
                narrate(f"vitreous: {visible(result.name)}: {result.reason}")
            else:
                num_unsure += bool(result.unsure)
    seconds, predicted = time.perf_counter() - start, len(paths) - failed
    if num_unsure:
        narrate(f"{num_unsure:,} of {predicted:,} predictions are unsure")
    if predicted:
        narrate(throughput_line(predicted, seconds, classifier, engine))
    if options.output:
        narrate(f"{predicted:,} predictions in {options.output}")
    if failed:
        narrate(f"vitreous: {failed:,} of {len(paths):,} images could not be read")
    if options.json:
        document = {"model": options.model, "computed_by": compute, "images": len(paths), "failed": failed}
        write_document(files, options.json, {**document, "seconds": seconds, "predictions": records})
    discard_parts(options)
    return 1 if failed else 0


def _output_format(options: Namespace) -> str:
    """Return what is written: the format asked for, or else that of the extension; `none` beside --json -."""
    extension = os.path.splitext(options.output or "")[1].lower()
    if extension in _OTHER_FORMATS and options.format is None:
        raise UsageError(
            f"-o '{options.output}': predict writes .csv, .jsonl or a table as text. Use one of these, or give --format"
        )
    if options.json == "-" and options.output is None:
        return "none"
    return str(options.format or _FORMATS.get(extension, "table"))


def _threshold_columns(classifier: Classifier) -> list[str]:
    """Return the fields of a prediction that the model's thresholds add."""
    info = classifier.info
    rules = {"unsure": info.abstention, "set": info.conformal, "labels": info.multilabel}
    return [name for name, rule in rules.items() if rule is not None]
