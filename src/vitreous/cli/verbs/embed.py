"""`vitreous embed`: write the feature vectors of images to a file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from vitreous.cli.options.cluster import add_cluster_options, discard_parts, refuse_idle
from vitreous.cli.options.inputs import expand, image_files
from vitreous.cli.options.model import (
    add_cache_option,
    add_images,
    add_inference_options,
    describe_compute,
    load_model,
    throughput_line,
)
from vitreous.cli.options.outputs import add_json_options, make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate, progress_bar
from vitreous.errors import UsageError
from vitreous.files.text import visible

__all__ = ["run"]

_SUFFIXES = (".parquet", ".csv", ".npz", ".npy")


def _parser() -> Parser:
    parser = Parser(
        "embed",
        "MODEL IMAGES... -o FILE [options]",
        "Compute feature vectors of images: the input of the last layer of the model's head, float32. An unreadable "
        "image is reported and skipped; the exit code is then 1.",
        [
            ("vitreous embed runs/photos-1 photos/ -o features.parquet", "columns path and embedding, a list"),
            ("vitreous embed model.safetensors 'photos/**/*.jpg' -o features.npz", "arrays path and embedding"),
        ],
    )
    add_images(parser)
    add_cache_option(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=str,
        required=True,
        metavar="FILE",
        help=".parquet: columns path (string) and embedding (list of F floats). .csv: path, f0, f1, ... .npz: arrays "
        "path (n) and embedding (n, F). .npy: the array (n, F) alone, in the order of the readable images",
    )
    add_json_options(parser, content="a summary")
    add_inference_options(parser, engines=True)
    add_cluster_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb; exit code 1 if an image could not be read."""
    options = _parser().parse_args(argv)
    refuse_idle(options)
    suffix = os.path.splitext(options.output)[1].lower()
    if suffix not in _SUFFIXES:
        raise UsageError(f"-o is '{options.output}': its extension must be one of {', '.join(_SUFFIXES)}")
    files = make_outputs(options, (model_files(options.model), image_files(options.images)))
    files.claim("-o", options.output)
    files.claim("--json", options.json)
    from vitreous.cli.output.features import WRITERS, require_packages  # imports torch
    from vitreous.predictions import Failure

    require_packages(suffix)
    classifier = load_model(options)
    paths = expand(options.images, options.cache_size)
    files.reads(each=lambda: paths)
    engine = classifier.prepare(len(paths), options.batch_size)
    written, start = 0, time.perf_counter()
    failures: list[dict[str, str]] = []
    with (
        files.atomic_write(options.output) as path,
        WRITERS[suffix](path, classifier.features) as write,
        progress_bar("embed") as update,
    ):
        for done, result in enumerate(classifier.embed_stream(paths, options.batch_size), start=1):
            update(done, len(paths))
            if isinstance(result, Failure):
                failures.append({"path": result.name, "error": result.reason})
                narrate(f"vitreous: {visible(result.name)}: {result.reason}")
            else:
                write(result)
                written += 1
    seconds = time.perf_counter() - start
    if written:
        narrate(throughput_line(written, seconds, classifier, engine))
    narrate(f"{written:,} vectors of {classifier.features} numbers in {options.output}")
    failed = len(paths) - written
    if failed:
        narrate(f"vitreous: {failed:,} of {len(paths):,} images could not be read")
    if options.json:
        document = {"model": options.model, "output": options.output, "features": classifier.features}
        counts = {"images": len(paths), "written": written, "failures": failures, "seconds": seconds}
        compute = describe_compute(classifier, engine)
        write_document(files, options.json, {**document, **counts, "computed_by": compute})
    discard_parts(options)
    return 1 if failed else 0
