"""`vitreous embed`: pictures as feature vectors, in a file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from jsonargparse.typing import PositiveInt

from vitreous.cli.options.inputs import expand, files_of_images
from vitreous.cli.options.model import MODEL_HELP, add_engine_options, add_size_options, computed_by, opened, pace
from vitreous.cli.options.outputs import JSON_HELP, add_overwrite, files_of_model, outputs, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import bar, narrate
from vitreous.errors import UsageError
from vitreous.files.text import visible

__all__ = ["run"]

_FORMATS = (".parquet", ".csv", ".npz", ".npy")


def _parser() -> Parser:
    parser = Parser(
        "embed",
        "MODEL IMAGES... -o FILE [options]",
        "Turn pictures into feature vectors: what the last layer of the model's head reads, float32. "
        "A picture that cannot be read is reported and left out, and the exit code is then 1.",
        [
            ("vitreous embed runs/photos-1 photos/ -o features.parquet", "columns path and embedding, a list"),
            ("vitreous embed model.safetensors 'photos/**/*.jpg' -o features.npz", "arrays path and embedding"),
        ],
    )
    parser.add_argument("model", type=str, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "images", type=str, nargs="+", metavar="IMAGES", help="files, folders, quoted globs, or - for a list on stdin"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=str,
        required=True,
        metavar="FILE",
        help=".parquet: columns path (string) and embedding (list of F floats). .csv: path, f0, f1, ... .npz: arrays "
        "path (n) and embedding (n, F). .npy: the array (n, F) alone, in the order of the pictures that can be read",
    )
    parser.add_argument("--json", type=str, metavar="FILE", help=JSON_HELP.replace("every number", "a summary"))
    add_overwrite(parser)
    parser.add_argument("--batch-size", type=PositiveInt, default=32, help="pictures per forward pass")
    parser.add_argument("--device", type=str, default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps")
    add_engine_options(parser)
    add_size_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb; 1 if any picture could not be read."""
    options = _parser().parse_args(argv)
    suffix = os.path.splitext(options.output)[1].lower()
    if suffix not in _FORMATS:
        raise UsageError(f"-o is '{options.output}': its extension must be one of {', '.join(_FORMATS)}")
    files = outputs(options, each=(files_of_model(options.model), files_of_images(options.images)))
    files.claim("-o", options.output)
    files.claim("--json", options.json)
    from vitreous.cli.output.features import WRITERS, require  # here: torch takes seconds, a wrong option should not
    from vitreous.predictor import Failure

    require(suffix)
    classifier = opened(options)
    paths = expand(options.images)
    files.reads(each=lambda: paths)
    engine = classifier.prepare(len(paths), options.batch_size)
    written, start = 0, time.perf_counter()
    failures: list[dict[str, str]] = []
    with (
        files.replacing(options.output) as path,
        WRITERS[suffix](path, classifier.features) as write,
        bar("embed") as at,
    ):
        for done, result in enumerate(classifier.embed_stream(paths, options.batch_size), start=1):
            at(done, len(paths))
            if isinstance(result, Failure):
                failures.append({"path": result.name, "error": result.reason})
                narrate(f"vitreous: {visible(result.name)}: {result.reason}")
            else:
                write(result)
                written += 1
    seconds = time.perf_counter() - start
    if written:
        narrate(pace(written, seconds, classifier, engine))
    narrate(f"{written:,} vectors of {classifier.features} numbers in {options.output}")
    failed = len(paths) - written
    if failed:
        narrate(f"vitreous: {failed:,} of {len(paths):,} pictures could not be read")
    if options.json:
        about = {
            "model": options.model,
            "output": options.output,
            "features": classifier.features,
            "images": len(paths),
        }
        how = {"written": written, "failures": failures, "seconds": seconds}
        write_document(files, options.json, {**about, **how, "computed_by": computed_by(classifier, engine)})
    return 1 if failed else 0
