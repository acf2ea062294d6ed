"""How the verbs that use a model open it: any family's file, folder or hub id, at another resolution where asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt

from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate
from vitreous.data.sources.listing import many
from vitreous.engines.names import EngineName, PrecisionName
from vitreous.errors import UsageError

if TYPE_CHECKING:
    from vitreous.engines.base import Engine
    from vitreous.predictor import Classifier

__all__ = [
    "MODEL_HELP",
    "Resample",
    "add_augmentation_option",
    "add_engine_options",
    "add_size_options",
    "computed_by",
    "opened",
    "pace",
    "size_in_pixels",
]

MODEL_HELP = "a model.safetensors, a run folder, or any family's file, folder or hub id"

Resample = Literal["google", "timm", "huggingface", "torchvision", "dinov2"]


def add_size_options(parser: Parser) -> None:
    """Add the options of another resolution, which need no training."""
    parser.add_argument("--image-size", type=str, metavar="N", help="see pictures at 384, or 480x640, pixels")
    parser.add_argument(
        "--resample", type=Resample | None, metavar="FAMILY", help="whose function then resizes position embeddings"
    )


def add_engine_options(parser: Parser) -> None:
    """Add the options of what computes."""
    parser.add_argument(
        "--engine",
        type=EngineName,
        default="auto",
        metavar="auto|torch|openvino|onnxruntime",
        help="what computes; auto: the fastest that is installed, agrees with torch in float32 on check images, and "
        "pays for as many images. A graph converted for it is kept in ~/.cache/vitreous",
    )
    parser.add_argument(
        "--precision",
        type=PrecisionName,
        default="float32",
        metavar="float32|bf16|auto",
        help="what it multiplies in. float32: one image gets the same numbers from every call on one machine, "
        "probabilities to 1e-4, features to 1e-4 of the largest, whichever engine and batch size. bf16: faster where "
        "the machine computes it; probabilities are within 0.05 of float32's, features within 0.1 of the largest. "
        "auto: bf16 where the machine computes it and it agrees, else float32",
    )
    parser.add_argument(
        "--merge-tokens",
        type=NonNegativeInt,
        default=0,
        metavar="R",
        help="join R patches with others that look alike in each block: faster, at some loss (arXiv 2210.09461)",
    )


def add_augmentation_option(parser: Parser, help: str) -> None:
    """Add test-time augmentation; ``help`` says what the verb makes of it."""
    parser.add_argument("--tta", type=bool, default=False, help=help)


def opened(options: Namespace, **changes: Any) -> Classifier:
    """Load the model that the words of a verb name.

    Args:
        options: The verb's; one without engines computes with PyTorch in float32.
        changes: Arguments of :func:`vitreous.predictor.load` that are others than the words say.

    Raises:
        UsageError: If the image size is no size.
        CheckpointError: If it is no model, or a damaged one.
    """
    size = size_in_pixels("--image-size", options.image_size)
    from vitreous.machine.allocator import keep_freed_memory
    from vitreous.predictor import load  # here: torch takes seconds, a wrong option should not

    keep_freed_memory()  # each batch wants what the one before has freed
    arguments = {
        "device": options.device,
        "image_size": size,
        "resample": options.resample,
        "engine": options.get("engine", "torch"),
        "precision": options.get("precision", "float32"),
        "merge_tokens": options.get("merge_tokens", 0),
        "tta": options.get("tta", False),
        "tell": narrate,
    }
    return load(options.model, **(arguments | changes))


def computed_by(classifier: Classifier, engine: Engine) -> dict[str, str]:
    """Return what computed, as JSON output records it."""
    made = {"engine": engine.name, "precision": engine.precision, "device": str(classifier.device)}
    return made | ({"augmentation": "mirror"} if classifier.tta else {})


def pace(pictures: int, seconds: float, classifier: Classifier, engine: Engine) -> str:
    """Say how fast pictures were done, from the first file's opening to the last result, and by what."""
    speed = f"{many(pictures, 'picture')} in {seconds:.1f} s, {pictures / max(seconds, 1e-9):,.1f} img/s"
    return f"{speed}: {engine.name}, {engine.precision}, {classifier.device}"


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
