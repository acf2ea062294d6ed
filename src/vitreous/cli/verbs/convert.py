"""`vitreous convert`: a checkpoint to files of another family, or to a file that runs by itself, with proof."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Literal

from jsonargparse.typing import PositiveInt

from vitreous.cli.options.model import Resample, size_in_pixels
from vitreous.cli.options.outputs import JSON_HELP, files_of_model, outputs, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate
from vitreous.files.text import visible

__all__ = ["run"]

_To = Literal["google", "timm", "huggingface", "torchvision", "vitreous", "onnx", "torch"]
_Activation = Literal["gelu", "gelu-tanh", "relu"]

_DESCRIPTION = (
    "Write a checkpoint in another family's format, read it again, and compare the logits of both on a photograph "
    "and on noise. No tensor is dropped, added or reshaped unless you name it; where it fails, nothing is left.\n"
    "onnx and torch take any model and run without vitreous: from 8-bit images of the model's size, B x C x H x W, "
    "to calibrated probabilities, logits and features, with class names, pipeline, temperature and provenance in "
    "the file. They are run on photographs and noise and compared with PyTorch in float32 before they are kept.\n"
    "The families take what their own code can compute. torchvision: stems patch and linear, pool cls. "
    "huggingface: stems patch and linear, pool cls; cls-mean as DINOv2. timm and google: stems patch, linear and "
    "resnet, pools cls, mean and map. None takes the stem conv of the recipes folder, digits and cifar10: train "
    "with --model.stem patch --model.pool cls for a model that timm, huggingface and torchvision take, or use onnx "
    "or torch."
)


def _parser() -> Parser:
    parser = Parser(
        "convert",
        "SRC DST --to FORM [options]",
        _DESCRIPTION,
        [
            ("vitreous convert ViT-B_16.npz b16/ --to huggingface --activation gelu", "Google's file for transformers"),
            (
                "vitreous convert timm/vit_small_patch16_224.augreg_in21k_ft_in1k s16.npz --to google "
                "--activation gelu-tanh",
                "from the hub, to Google's layout",
            ),
            ("vitreous convert in21k.npz in21k/ --to timm --drop pre_logits", "without the paper's hidden layer"),
            ("vitreous convert runs/photos-1 photos.onnx --to onnx", "your own model, whatever its stem and pooling"),
            ("vitreous convert runs/photos-1 photos.pt2 --to torch", "the same for torch.export.load"),
        ],
    )
    parser.add_argument("source", type=str, metavar="SRC", help="a file, a folder or a hub id, of any family")
    parser.add_argument(
        "destination", type=str, metavar="DST", help="a folder, or a .npz, .pth, .safetensors, .onnx or .pt2 file"
    )
    parser.add_argument("--to", type=_To, required=True, help=f"one of {', '.join(typing.get_args(_To))}")
    parser.add_argument(
        "--drop",
        type=str,
        action="append",
        default=[],
        metavar="NAME",
        help="leave out (again for another): pre_logits, head, mask_token, cls_position, or tensors by a part of their "
        "name",
    )
    parser.add_argument(
        "--add", type=str, action="append", default=[], metavar="NAME", help="add, of zeros: mask_token, cls_position"
    )
    parser.add_argument(
        "--activation",
        type=_Activation,
        default=None,
        help="compute with this one: gelu takes Google's weights timm's way",
    )
    parser.add_argument("--image-size", type=str, metavar="N", help="resample positions for pixels: 384, or 224x448")
    parser.add_argument("--patch-size", type=PositiveInt, metavar="N", help="resample the patch kernel (FlexiViT)")
    parser.add_argument(
        "--resample",
        type=Resample,
        default=None,
        help="whose function resizes positions; the source family's unless named",
    )
    parser.add_argument("--heads", type=PositiveInt, metavar="N", help="attention heads, where the source does not say")
    parser.add_argument(
        "--source-size", type=str, metavar="N", help="pixels that the source's positions are for, where it does not say"
    )
    parser.add_argument("--json", type=str, metavar="FILE", help=JSON_HELP.replace("every number", "the proof"))
    parser.add_argument("--overwrite", type=bool, default=False, help="replace what lies at DST, and FILE of --json")
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    image_size = size_in_pixels("--image-size", options.image_size)
    source_size = size_in_pixels("--source-size", options.source_size)
    from vitreous.checkpoint.conversion.convert import convert  # here: torch takes seconds, a wrong option should not
    from vitreous.checkpoint.opening import OpenOptions
    from vitreous.export.run import FORMS, export

    asked = OpenOptions(
        image_size=image_size,
        patch_size=options.patch_size,
        resample=options.resample,
        activation=options.activation,
        drop=tuple(options.drop),
        add=tuple(options.add),
        heads=options.heads,
        source_size=source_size,
    )
    files = outputs(options, each=(files_of_model(options.source),))
    files.claim("--json", options.json)
    verb = export if options.to in FORMS else convert
    done = verb(options.source, options.destination, options.to, asked, overwrite=options.overwrite, tell=narrate)
    narrate("wrote " + "  ".join(visible(str(file)) for file in done.files))
    if options.json:
        about = {"source": options.source, "destination": options.destination, "to": options.to}
        write_document(files, options.json, {**about, **done.to_dict()})
    return 0
