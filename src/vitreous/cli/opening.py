"""How the verbs that use a model open it: any family's file, folder or hub id, at another resolution where asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from jsonargparse import Namespace

from vitreous.cli.parsing import Parser
from vitreous.errors import UsageError

if TYPE_CHECKING:
    from vitreous.predictor import Classifier

__all__ = ["MODEL_HELP", "Resample", "add_size_options", "opened", "size_in_pixels"]

MODEL_HELP = "a model.safetensors, a run folder, or any family's file, folder or hub id"

Resample = Literal["google", "timm", "huggingface", "torchvision", "dinov2"]


def add_size_options(parser: Parser) -> None:
    """Add the options of another resolution, which need no training."""
    parser.add_argument("--image-size", type=str, metavar="N", help="see pictures at 384, or 480x640, pixels")
    parser.add_argument(
        "--resample", type=Resample | None, metavar="FAMILY", help="whose function then resizes position embeddings"
    )


def opened(options: Namespace) -> Classifier:
    """Load the model that the words of a verb name.

    Raises:
        UsageError: If the image size is no size.
        CheckpointError: If it is no model, or a damaged one.
    """
    size = size_in_pixels("--image-size", options.image_size)
    from vitreous.predictor import load  # here: torch takes seconds, a wrong option should not

    return load(options.model, device=options.device, image_size=size, resample=options.resample)


def size_in_pixels(option: str, text: str | None) -> int | tuple[int, int] | None:
    """Read 384 or 224x448, height first.

    Raises:
        UsageError: If it is neither.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)(?:\s*[x,]\s*(\d+))?", text.strip().strip("[]()"))
    if found is None or not int(found[1]) or (found[2] and not int(found[2])):
        raise UsageError(f"{option} is '{text}', it must be pixels: a number such as 384, or height x width as 224x448")
    return (int(found[1]), int(found[2])) if found[2] else int(found[1])
