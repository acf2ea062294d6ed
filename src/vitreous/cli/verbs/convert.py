"""`vitreous convert`: write a checkpoint in the format of another family."""

from __future__ import annotations

import itertools
import os
import typing
from collections.abc import Sequence
from typing import Any, Literal

from jsonargparse.typing import PositiveInt

from vitreous.cli.options.model import Resample, parse_image_size
from vitreous.cli.options.outputs import make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate
from vitreous.errors import UsageError
from vitreous.files.exported import EXPORTED
from vitreous.files.text import visible

__all__ = ["run"]

_Format = Literal["google", "timm", "huggingface", "torchvision", "facebookresearch", "vitreous"]
_Activation = Literal["gelu", "gelu-tanh", "relu", "quick-gelu", "silu"]
_Kept = Literal["decoder"]
_FORMAT_OF_SUFFIX = {".npz": "google", ".pth": "torchvision", ".pt": "torchvision"}

_DESCRIPTION = (
    "Write a checkpoint in another family's format, read it back, and compare the logits of both on a photograph and "
    "on noise. Tensors are dropped, added or reshaped only as you ask; after a failure nothing is left behind.\n"
    "The families take what their own code supports. torchvision: stems patch and linear, pool cls. huggingface: stems "
    "patch and linear, pool cls; cls-mean as DINOv2. timm and google: stems patch, linear and resnet, pools cls, mean "
    "and map. facebookresearch: DINOv2 and DINOv3 without a head, and MAE. None takes the stem conv of the recipes "
    "folder, digits and cifar10: train with --model.stem patch "
    "--model.pool cls for a model that timm, huggingface and torchvision take. `vitreous export` takes any model."
)


def _parser() -> Parser:
    parser = Parser(
        "convert",
        "SRC DST [--to FORMAT] [options]",
        _DESCRIPTION,
        [
            ("vitreous convert ViT-B_16.npz b16/ --to huggingface --activation gelu", "Google's file for transformers"),
            (
                "vitreous convert timm/vit_small_patch16_224.augreg_in21k_ft_in1k s16.npz --activation gelu-tanh",
                "from the hub to Google's format",
            ),
            ("vitreous convert in21k.npz in21k/ --to timm --drop pre_logits", "without the paper's hidden layer"),
        ],
    )
    add = parser.add_argument
    add("source", type=str, metavar="SRC", help="a file, a folder or a hub id, of any family")
    add("destination", type=str, metavar="DST", help="a folder, or a .npz, .pth or .safetensors file")
    add(
        "--to",
        type=_Format | None,
        metavar="FORMAT",
        help=f"one of {', '.join(typing.get_args(_Format))}; not needed for a .npz, nor a .pth or .pt of torchvision",
    )
    add(
        "--drop",
        type=str,
        action="append",
        default=[],
        metavar="NAME",
        help="leave out tensors (repeatable): pre_logits, head, mask_token, cls_position, or a part of their name",
    )
    add("--add", type=str, action="append", default=[], metavar="NAME", help="add zeros: mask_token, cls_position")
    add(
        "--keep",
        type=_Kept | None,
        help="keep the decoder of a masked autoencoder, which is otherwise dropped",
    )
    add("--activation", type=_Activation | None, help="set the activation: gelu takes Google's weights as timm does")
    add("--image-size", type=str, metavar="N", help="resample position embeddings for pixels: 384, or 224x448")
    add("--patch-size", type=PositiveInt, metavar="N", help="resample the patch kernel (FlexiViT)")
    add("--resample", type=Resample | None, help="resample position embeddings as this family does [the source]")
    add("--heads", type=PositiveInt, metavar="N", help="attention heads, if the source does not say")
    add("--source-size", type=str, metavar="N", help="image size of the source, if it does not say")
    add(
        "--json",
        type=str,
        metavar="FILE",
        help="write one JSON document with the comparison; - is standard output, which then has nothing else",
    )
    add("--overwrite", type=bool, default=False, help="replace an existing DST, and the FILE of --json")
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    words = [*argv, ""]
    given = [value for word, value in itertools.pairwise(words) if word == "--to"]
    _refuse_exports([*given, *(word.removeprefix("--to=") for word in argv if word.startswith("--to="))])
    options = _parser().parse_args(argv)
    if options.to is None:
        suffix = os.path.splitext(options.destination)[1]
        _refuse_exports([form for form, ending in EXPORTED.items() if ending == suffix])
    target: Any = options.to or _FORMAT_OF_SUFFIX.get(os.path.splitext(options.destination)[1])
    if target is None:
        formats = ", ".join(typing.get_args(_Format))
        raise UsageError(f"--to is missing, and the name of DST does not imply a format: give one of {formats}")
    sizes: dict[str, Any] = {
        "image_size": parse_image_size("--image-size", options.image_size),
        "source_size": parse_image_size("--source-size", options.source_size),
    }
    from vitreous.checkpoint.conversion.convert import convert  # imports torch
    from vitreous.checkpoint.opening import OpenOptions

    kept = (options.keep,) if options.keep is not None else ()
    others = {name: options[name] for name in ("patch_size", "resample", "activation", "heads")}
    open_options = OpenOptions(drop=tuple(options.drop), add=tuple(options.add), keep=kept, **sizes, **others)
    files = make_outputs(options, (model_files(options.source),))
    files.claim("--json", options.json)
    result = convert(
        options.source, options.destination, target, open_options, overwrite=options.overwrite, tell=narrate
    )
    narrate("wrote " + "  ".join(visible(str(file)) for file in result.files))
    if options.json:
        document = {"source": options.source, "destination": options.destination, "to": target}
        write_document(files, options.json, {**document, **result.to_dict()})
    return 0


def _refuse_exports(formats: Sequence[str]) -> None:
    """Refuse a format that moved to `vitreous export`."""
    if moved := next((form for form in formats if form in EXPORTED), None):
        raise UsageError(f"`vitreous convert` does not write {moved}: use `vitreous export MODEL DST --to {moved}`")
