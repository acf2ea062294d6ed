"""`vitreous export`: write a model as one verified graph, from image to calibrated probabilities."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from vitreous.cli.options.model import MODEL_HELP, Resample, parse_image_size
from vitreous.cli.options.outputs import add_json_options, make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate
from vitreous.files.text import visible

__all__ = ["run"]

_Form = Literal["onnx", "openvino", "torch"]
_SUFFIX = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2"}

_DESCRIPTION = (
    "Write a model as one graph that runs without vitreous: from 8-bit images of any size, upright, (batch, height, "
    "width, channels), to calibrated probabilities, logits and features, and after `vitreous calibrate` also unsure "
    "predictions and sets of classes. The resize of the training is in the graph. Class names, pipeline, thresholds, "
    "provenance, licence and an example program are in the file's own metadata.\n"
    "The file receives its name only once it is verified: run by its own runtime on photographs and noise, in batches "
    "of 1, 7, 32 and 64, and from image files, against PyTorch in float32. A failure names the first layer that "
    "differs, and leaves nothing behind.\n"
    "`vitreous predict`, `evaluate` and `embed` accept exported files."
)


def _parser() -> Parser:
    parser = Parser(
        "export",
        "MODEL [DST] --to FORMAT [options]",
        _DESCRIPTION,
        [
            ("vitreous export runs/photos-1 --to onnx", "photos-1.onnx, for ONNX Runtime"),
            ("vitreous export runs/photos-1 photos.xml --to openvino", "the fastest on most processors"),
            ("vitreous export runs/photos-1 photos.pt2 --to torch", "for torch.export.load"),
            ("vitreous export runs/photos-1 --to onnx --check photos/", "and compared on your own images"),
        ],
    )
    add = parser.add_argument
    add("model", type=str, metavar="MODEL", help=MODEL_HELP)
    add("destination", type=str | None, nargs="?", metavar="DST", help="a file, or a folder [the model's name, here]")
    add("--to", type=_Form, required=True, metavar="onnx|openvino|torch", help="the format")
    add(
        "--precision",
        type=Literal["float32", "fp16", "bf16"],
        default="float32",
        metavar="float32|fp16|bf16",
        help="of weights and products; the file is kept only if it agrees with float32",
    )
    add(
        "--check",
        type=str | None,
        metavar="DATA",
        help="labelled images, as for `vitreous evaluate`: compare accuracy, calibration, latency and throughput with "
        "PyTorch's, and keep the file only if it loses nothing",
    )
    add(
        "--resize",
        type=Literal["exact", "native"] | None,
        metavar="exact|native",
        help="exact: the same bytes as in training. native: the runtime's own operator, faster on large images, which "
        "changes a few pixels in ten thousand by one level [exact; openvino has native only]",
    )
    add("--image-size", type=str | None, metavar="N", help="another input size: 384, or 480x640, pixels")
    add("--resample", type=Resample | None, metavar="FAMILY", help="resample position embeddings as this family does")
    add("--ignore-thresholds", type=bool, default=False, help="leave out what `vitreous calibrate` stored")
    add_json_options(parser, content="what was compared")
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    size: Any = parse_image_size("--image-size", options.image_size)
    destination = options.destination or default_name(options.model, options.to)
    files = make_outputs(options, (model_files(options.model),))
    files.claim("--json", options.json)
    from vitreous.checkpoint.opening import OpenOptions  # imports torch
    from vitreous.export.run import Options, export

    check = None
    if options.check:
        from vitreous.cli.work.export_check import DataCheck

        check = DataCheck(options.check, narrate, quiet=options.json == "-")
    result = export(
        options.model,
        destination,
        options.to,
        OpenOptions(image_size=size, resample=options.resample),
        Options(options.precision, options.resize, options.ignore_thresholds, options.overwrite, check=check),
        tell=narrate,
    )
    narrate(f"wrote {'  '.join(visible(str(file)) for file in result.files)}, {result.size / 1e6:,.1f} MB")
    if options.json:
        write_document(files, options.json, {"model": options.model, "to": options.to, **result.to_dict()})
    return 0


def default_name(model: str, form: str) -> str:
    """Return the file, in the current folder, for a model: named like its folder if it is a ``model.*``."""
    path = Path(os.path.abspath(os.path.expanduser(model)))
    is_file = path.suffix in (".safetensors", ".npz", ".pth", ".pt", ".bin")
    stem = path.stem if is_file else path.name
    if is_file and stem in ("model", "pytorch_model"):
        stem = path.parent.name or stem
    return f"{stem}{_SUFFIX[form]}"
