"""`vitreous export`: write a model as one verified graph, from image to calibrated probabilities."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeFloat

from vitreous.cli.options.model import MODEL_HELP, Resample, parse_image_size
from vitreous.cli.options.outputs import add_json_options, make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate
from vitreous.errors import UsageError
from vitreous.files.exported import EXPORTED
from vitreous.files.text import visible

__all__ = ["run"]

_Form = Literal["onnx", "openvino", "torch", "web"]

_DESCRIPTION = (
    "Write a model as one graph that runs without vitreous: from 8-bit images of any size, upright, (batch, height, "
    "width, channels), to calibrated probabilities, logits and features, and after `vitreous calibrate` also unsure "
    "predictions and sets of classes; of a model with several labels also those that an image has. The resize of the "
    "training is in the graph. Class names, pipeline, thresholds, provenance, licence and an example program are in "
    "the file's own metadata.\n"
    "The file receives its name only once it is verified: run by its own runtime on photographs and noise, in batches "
    "of 1, 7, 32 and 64, and from image files, against PyTorch in float32. A failure names the first layer that "
    "differs, and leaves nothing behind.\n"
    "`vitreous predict`, `evaluate`, `embed` and `serve` accept exported files, those of --aot with --trust-code.\n"
    "--to web writes a page that classifies images in a browser, without a network: a folder for any static host, or "
    "one file if DST ends in .html. Images never leave it."
)

_EXAMPLES = [
    ("vitreous export runs/photos-1 --to onnx", "photos-1.onnx, for ONNX Runtime"),
    ("vitreous export runs/photos-1 photos.xml --to openvino", "the fastest on most processors"),
    ("vitreous export runs/photos-1 photos.pt2 --to torch", "for torch.export.load"),
    ("vitreous export runs/photos-1 --to torch --aot", "compiled for this kind of machine"),
    ("vitreous export runs/photos-1 --to onnx --check photos/", "and compared on your own images"),
    (
        "vitreous export runs/photos-1 --to openvino --int8 --check photos/",
        "in int8, if that keeps the accuracy",
    ),
    ("vitreous export runs/photos-1 --to web --int8 --check photos/", "a page with a smaller, faster graph"),
    ("vitreous export runs/photos-1 photos.html --to web", "a classifier that opens in a browser"),
]


def _parser() -> Parser:
    parser = Parser("export", "MODEL [DST] --to FORMAT [options]", _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument
    add("model", type=str, metavar="MODEL", help=MODEL_HELP)
    add("destination", type=str | None, nargs="?", metavar="DST", help="a file, or a folder [the model's name, here]")
    add("--to", type=_Form, required=True, metavar="onnx|openvino|torch|web", help="the format")
    add(
        "--precision",
        type=Literal["float32", "fp16", "bf16"],
        default="float32",
        metavar="float32|fp16|bf16",
        help="of weights and products; the file is kept only if it agrees with float32",
    )
    add(
        "--aot",
        type=bool,
        default=False,
        help="with --to torch: compile the graph by AOTInductor, which needs a C++ compiler. The file contains machine "
        "code for this kind of processor and version of PyTorch; to run it, others need --trust-code",
    )
    add(
        "--class-map",
        type=bool,
        default=False,
        help="a further output: how much each patch speaks for the most probable class, as `vitreous.explain` says. "
        "Takes about as long as two more passes; --to web always has maps",
    )
    add(
        "--check",
        type=str | None,
        metavar="DATA",
        help="labelled images, as for `vitreous evaluate`: compare accuracy, calibration, latency and throughput with "
        "PyTorch's, and keep the file only if it loses nothing",
    )
    add("--data-dir", type=str | None, metavar="DIR", help="folder of known datasets [~/.cache/vitreous]")
    add(
        "--int8",
        type=bool,
        default=False,
        help="static int8 quantisation, not with --to torch: images of --check calibrate it, layers that cost too much "
        "accuracy go back to float, and it says if int8 is not faster here",
    )
    add(
        "--max-drop",
        type=NonNegativeFloat | None,
        metavar="POINTS",
        help="loss of top-1 accuracy, or of mAP with several labels, that int8 may cost [0.2]",
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
    _check(options)
    destination = options.destination or _default_name(options.model, options.to)
    files = make_outputs(options, (model_files(options.model),))
    files.claim("--json", options.json)
    from vitreous.checkpoint.opening import OpenOptions  # imports torch
    from vitreous.export.run import Options, export
    from vitreous.export.web_run import export_page

    opening = OpenOptions(image_size=size, resample=options.resample)
    check, int8 = _on_data(options)
    how = Options(
        precision=options.precision,
        resize=options.resize,
        ignore_thresholds=options.ignore_thresholds,
        overwrite=options.overwrite,
        quantise=int8,
        check=check,
        aot=options.aot,
        class_map=options.class_map,
    )
    if options.to == "web":
        title = Path(destination).stem
        result = export_page(options.model, destination, opening, how, title=title, tell=narrate)
    else:
        result = export(options.model, destination, options.to, opening, how, tell=narrate)
    narrate(f"wrote {'  '.join(visible(str(file)) for file in result.files)}, {result.size / 1e6:,.1f} MB")
    if options.json:
        document = {"model": options.model, "to": options.to, **result.to_dict()}
        if int8 is not None and int8.result is not None:
            document["int8"] = int8.result.to_dict()
        write_document(files, options.json, document)
    return 0


def _check(options: Namespace) -> None:
    """Refuse options that contradict each other or would have no effect."""
    if options.int8 and not options.check:
        raise UsageError("--int8 needs --check DATA: labelled images to calibrate on, and to measure the loss with")
    if options.int8 and options.to == "torch":
        raise UsageError("--int8 is not possible with --to torch: use --to openvino, onnx or web")
    if options.int8 and options.precision != "float32":
        raise UsageError(f"--int8 and --precision {options.precision} contradict each other: give one of them")
    if options.class_map and options.to == "web":
        raise UsageError("--class-map has no effect with --to web, which has maps anyway")
    if options.aot and options.to != "torch":
        raise UsageError(f"--aot is not possible with --to {options.to}: use --to torch")
    if options.max_drop is not None and not options.int8:
        raise UsageError("--max-drop has no effect without --int8")
    if options.to == "web" and options.precision != "float32":
        raise UsageError(f"--precision {options.precision} is not possible with --to web: browsers compute in float32")


def _on_data(options: Namespace) -> tuple[Any, Any]:
    """Return the check on labelled images, and the quantisation, where they were asked for."""
    if not options.check:
        return None, None
    from vitreous.cli.work.export_check import DataCheck

    check = DataCheck(options.check, narrate, folder=options.data_dir, quiet=options.json == "-")
    if not options.int8:
        return check, None
    from vitreous.cli.work.int8_step import MAX_DROP, DataInt8
    from vitreous.export.quantisation.calibration import check_installed

    check_installed()  # before the model is traced
    most = MAX_DROP if options.max_drop is None else options.max_drop
    return check, DataInt8(options.check, options.data_dir, most, narrate)


def _default_name(model: str, form: str) -> str:
    """Return the file, in the current folder, for a model: named like its folder if it is a ``model.*``."""
    path = Path(os.path.abspath(os.path.expanduser(model)))
    is_file = path.suffix in (".safetensors", ".npz", ".pth", ".pt", ".bin")
    stem = path.stem if is_file else path.name
    if is_file and stem in ("model", "pytorch_model"):
        stem = path.parent.name or stem
    return f"{stem}{EXPORTED.get(form, f'-{form}')}"
