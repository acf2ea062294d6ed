"""Options of the verbs that use a trained model, and how they load it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveInt

from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate
from vitreous.engines.names import EngineName, PrecisionName
from vitreous.errors import UsageError, pluralize

if TYPE_CHECKING:
    from vitreous.engines.base import Engine
    from vitreous.predictor import Classifier

__all__ = [
    "MODEL_HELP",
    "Resample",
    "add_cache_option",
    "add_data",
    "add_data_dir",
    "add_images",
    "add_inference_options",
    "add_threshold_option",
    "describe_compute",
    "load_model",
    "load_unmerged",
    "parse_image_size",
    "throughput_line",
]

MODEL_HELP = "a model.safetensors, a run directory, a file, folder or hub id of any family, or a short name"
"""The help of every argument that names a model."""

Resample = Literal["google", "timm", "huggingface", "torchvision", "dinov2"]
"""Whose interpolation of position embeddings is computed at another resolution; see `model.positions.resample`."""

_ENGINE_HELP = (
    "inference engine. auto: the fastest that is installed, agrees with torch in float32 on check images, and saves "
    "more time on this many images than it takes to prepare. Converted graphs are cached in ~/.cache/vitreous"
)
_PRECISION_HELP = (
    "precision of matrix products. float32: on one machine an image gets the same result from every engine and batch "
    "size, probabilities to 1e-4 and features to 1e-4 of the largest. bf16: faster where the hardware supports it; "
    "probabilities are within 0.05 of float32, features within 0.1 of the largest. auto: bf16 where the hardware "
    "supports it and the results agree, else float32"
)
_TRUST_HELP = (
    "run the machine code in a file of `vitreous export --aot`, with your rights: only if you trust who made it"
)
_MERGE_HELP = "merge R similar tokens in each block: faster, at some loss of accuracy (arXiv 2210.09461)"


def add_data(parser: Parser, model: bool = True) -> None:
    """Add the positional arguments MODEL and DATA, or DATA alone."""
    if model:
        parser.add_argument("model", type=str, metavar="MODEL", help=MODEL_HELP)
    text = "a folder of images or shards, also s3://, gs://, az://, hf://; a .csv, .parquet or .jsonl manifest; "
    text += "a known dataset"
    parser.add_argument("data", type=str, metavar="DATA", help=text)


def add_images(parser: Parser) -> None:
    """Add the positional arguments MODEL and IMAGES."""
    parser.add_argument("model", type=str, metavar="MODEL", help=MODEL_HELP)
    text = "files, folders, shards, also in s3://, gs://, az://, hf://; quoted globs; - for a list on stdin"
    parser.add_argument("images", type=str, nargs="+", metavar="IMAGES", help=text)


def add_data_dir(parser: Parser) -> None:
    """Add the folder of the known datasets."""
    parser.add_argument("--data-dir", type=str, metavar="DIR", help="folder of known datasets [~/.cache/vitreous]")


def add_cache_option(parser: Parser) -> None:
    """Add ``--cache-size``."""
    text = "GiB of shards from a store that are kept in ~/.cache/vitreous"
    parser.add_argument("--cache-size", type=NonNegativeFloat, default=10.0, metavar="GIB", help=text)


def add_threshold_option(parser: Parser) -> None:
    """Add ``--ignore-thresholds``."""
    text = "ignore the thresholds of `vitreous calibrate`: nothing is unsure, and there are no sets"
    parser.add_argument("--ignore-thresholds", type=bool, default=False, help=text)


def add_inference_options(parser: Parser, engines: bool = False, tta: str | None = None, sizes: bool = True) -> None:
    """Add batch size and device, and if requested engine and precision, ``--tta`` with its help text, image size."""
    add = parser.add_argument
    add("--batch-size", type=PositiveInt, default=32, help="images per forward pass")
    add("--device", type=str, default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps")
    if engines:
        engine_names, precision_names = "auto|torch|openvino|onnxruntime", "float32|bf16|auto"
        add("--engine", type=EngineName, default="auto", metavar=engine_names, help=_ENGINE_HELP)
        add("--precision", type=PrecisionName, default="float32", metavar=precision_names, help=_PRECISION_HELP)
        add("--merge-tokens", type=NonNegativeInt, default=0, metavar="R", help=_MERGE_HELP)
        add("--trust-code", type=bool, default=False, help=_TRUST_HELP)
    if tta is not None:
        add("--tta", type=bool, default=False, help=tta)
    if not sizes:
        return
    add("--image-size", type=str, metavar="N", help="resize images to 384, or 480x640, pixels")
    add("--resample", type=Resample | None, metavar="FAMILY", help="resample position embeddings as this family does")


def load_model(options: Namespace, source: str | None = None, **changes: Any) -> Classifier:
    """Load the model that the options name, or ``source``; ``changes`` are arguments of ``load`` that override them.

    A verb without engine options uses PyTorch in float32, and one without ``--ignore-thresholds`` ignores thresholds.
    """
    size = parse_image_size("--image-size", options.get("image_size"))
    from vitreous.machine.allocator import keep_freed_memory
    from vitreous.predictor import load  # imports torch, so only after the options are checked

    keep_freed_memory()  # each batch reuses the memory of the one before
    arguments = {
        "device": options.device,
        "image_size": size,
        "resample": options.get("resample"),
        "engine": options.get("engine", "torch"),
        "precision": options.get("precision", "float32"),
        "merge_tokens": options.get("merge_tokens", 0),
        "tta": options.get("tta", False),
        "ignore_thresholds": options.get("ignore_thresholds", True),
        "trust_code": options.get("trust_code", False),
        "tell": narrate,
    }
    if options.get("on"):
        from vitreous.cli.options.cluster import on_cluster

        return on_cluster(options, {"source": source or options.model, **(arguments | changes)})
    return load(source or options.model, **(arguments | changes))


def load_unmerged(options: Namespace, engine: Engine, images: int) -> Classifier | None:
    """Load the model again without ``--merge-tokens``, to compare with; None without the option.

    It is prepared with the same engine. That comes before any score is computed, so that a failure costs no time.
    """
    if not options.merge_tokens:
        return None
    unmerged = load_model(options, merge_tokens=0, engine=engine.name, precision=engine.precision)
    unmerged.prepare(images, options.batch_size)
    return unmerged


def describe_compute(classifier: Classifier, engine: Engine) -> dict[str, str]:
    """Return engine, precision and device, as JSON output records them."""
    augmentation = {"augmentation": "mirror"} if classifier.tta else {}
    return {"engine": engine.name, "precision": engine.precision, "device": _device(classifier, engine), **augmentation}


def throughput_line(images: int, seconds: float, classifier: Classifier, engine: Engine) -> str:
    """Return a line on the throughput, from opening the first file to the last result."""
    speed = f"{pluralize(images, 'image')} in {seconds:.1f} s, {images / max(seconds, 1e-9):,.1f} img/s"
    return f"{speed}: {engine.name}, {engine.precision}, {_device(classifier, engine)}"


def _device(classifier: Classifier, engine: Engine) -> str:
    """Return the device that computes; with ``--on`` it is in other machines than the classifier."""
    return str(getattr(engine, "device", classifier.device))


def parse_image_size(option: str, text: str | None) -> int | tuple[int, int] | None:
    """Parse 384, or 224x448 as height x width; None remains None."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)(?:\s*[x,]\s*(\d+))?", text.strip().strip("[]()"))
    if found is None or not int(found[1]) or (found[2] and not int(found[2])):
        raise UsageError(f"{option} is '{text}', it must be pixels: a number such as 384, or height x width as 224x448")
    return (int(found[1]), int(found[2])) if found[2] else int(found[1])
