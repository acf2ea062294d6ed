"""Exports a model: open, draw the graph, write to a temporary folder, verify the written file there, install."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import torch

from vitreous.accelerate.model import FastVisionTransformer
from vitreous.checkpoint.conversion.destination import Destination
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.checkpoint.opening import OpenedCheckpoint, OpenOptions, open_with_details
from vitreous.errors import ConfigError, OutputError, VitreousError, first_line
from vitreous.export.aot_file import check_compiler
from vitreous.export.description import describe
from vitreous.export.formats import AOT, FORMS, require
from vitreous.export.graph.core import Core, output_names, tap_names
from vitreous.export.graph.mapped import Mapped
from vitreous.export.graph.tracing import quiet
from vitreous.export.verification.reference import Reference
from vitreous.export.verification.verify import Verified, verify

__all__ = ["Check", "Export", "Options", "Quantiser", "WritePrecision", "check_options", "export", "export_opened"]

WritePrecision = Literal["float32", "fp16", "bf16"]
"""The precision of the weights in a file."""
Resizing = Literal["exact", "native"]
_DTYPES = {"float32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Quantiser(Protocol):
    """A step between writing and verification that changes the written file, such as to int8."""

    precision: str  # a key of `verification.bounds.BOUNDS`

    def __call__(self, form: str, files: list[Path], opened: OpenedCheckpoint) -> list[Path]:
        """Change the files of a format in place; return them, the main one first."""


class Check(Protocol):
    """A further comparison of a verified file with PyTorch, such as on labelled images."""

    def __call__(self, form: str, file: Path, opened: OpenedCheckpoint) -> Mapping[str, Any]:
        """Return what was measured; raise CheckpointError to refuse the file."""


@dataclass(frozen=True)
class Options:
    """How a model is exported."""

    precision: WritePrecision = "float32"
    resize: Resizing | None = None  # None: the format's usual one
    ignore_thresholds: bool = False
    overwrite: bool = False
    quantise: Quantiser | None = None
    check: Check | None = None
    aot: bool = False  # compile a torch file by AOTInductor
    class_map: bool = False  # a further output


@dataclass(frozen=True)
class Export:
    """The result of an export."""

    files: list[Path]
    precision: str
    size: int  # bytes of all files together
    verified: Verified
    checked: Mapping[str, Any]  # what `Options.check` measured

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "files": [str(file) for file in self.files],
            "precision": self.precision,
            "bytes": self.size,
            "verified": asdict(self.verified),
            "checked": dict(self.checked),
        }


def export(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    form: str,
    opening: OpenOptions | None = None,
    options: Options | None = None,
    *,
    tell: Callable[[str], None] = lambda line: None,
) -> Export:
    """Export a model (file, folder or hub id) to a file that runs without this package, and verify it.

    The destination is a file, or a folder for a file with the format's own name. An error leaves it untouched. `tell`
    gets each line for the user as soon as it is known.

    Raises:
        CheckpointError: If the model cannot be opened, or the written file differs from it.
        ConfigError: If the graph cannot express the model's thresholds, or the precision is unknown.
        MissingExtraError: If a package or compiler that the format needs is not installed.
        OutputError: If the format cannot express the model, or the file cannot be written.
    """
    options = options or Options()
    check_options(form, options)
    target = Destination(form, destination, source, options.overwrite)
    opened = open_with_details(source, opening or OpenOptions())
    for reason in opened.reasons:
        tell(reason)
    return export_opened(opened, target, form, options, tell=tell)


def export_opened(
    opened: OpenedCheckpoint,
    target: Destination,
    form: str,
    options: Options,
    *,
    tell: Callable[[str], None] = lambda line: None,
) -> Export:
    """Export a model that is open already, as :func:`export` does."""
    info = opened.info.without_thresholds() if options.ignore_thresholds else opened.info
    if options.class_map and not info.classes:
        raise ConfigError("a model without classes has no class map: export it without --class-map")
    reference = Reference(opened.model, info, options.class_map)
    kind = AOT if options.aot else form
    precision = options.quantise.precision if options.quantise else options.precision
    resize = _resize(kind, info, options.resize)
    words = describe(info, kind, target.name, precision=precision, resize=resize, with_map=options.class_map)
    with target.temporary() as file:
        files = _write(opened.model, info, kind, words, file=file, options=options)
        if options.quantise is not None:
            files = options.quantise(form, files, opened)
        verified = verify(FORMS[kind].Runner, files[0], reference, words, precision)
        tell(_summary(verified))
        checked = options.check(form, files[0], opened) if options.check is not None else {}
        size = sum(each.stat().st_size for each in files)
        return Export(target.install(files), precision, size, verified, checked)


def check_options(form: str, options: Options) -> None:
    """Check, before a model is opened, that the options exist and that what the format needs is installed."""
    if options.precision not in _DTYPES:
        raise ConfigError(f"precision is '{options.precision}', it must be {', '.join(get_args(WritePrecision))}")
    require(form, f"--to {form}")
    if options.class_map and (options.precision != "float32" or options.quantise is not None):
        raise ConfigError("--class-map is possible in float32 only: leave out --precision and --int8")
    if options.aot:
        if form != "torch":
            raise ConfigError(f"--aot is not possible with --to {form}: use --to torch")
        check_compiler()


def _resize(form: str, info: ModelInfo, wanted: str | None) -> str:
    """Return the kind of resize, once it is known that the format has it with the model's filter."""
    kinds: tuple[str, ...] = FORMS[form].RESIZES
    kind = wanted or kinds[0]
    if kind not in kinds:
        raise ConfigError(f"resize is '{kind}', --to {form} has only {' and '.join(kinds)}")
    if kind == "native" and info.pipeline.config.interpolation not in FORMS[form].NATIVE_FILTERS:
        raise ConfigError(
            f"--to {form} has no operator for the {info.pipeline.config.interpolation} filter of this model's resize: "
            "use --to onnx --resize exact, or --to torch"
        )
    return kind


def _write(
    model: FastVisionTransformer, info: ModelInfo, form: str, words: Mapping[str, str], *, file: Path, options: Options
) -> list[Path]:
    """Write the graph; of a model in another precision than float32 a copy is traced."""
    dtype, writer = _DTYPES[options.precision], FORMS[form]
    if dtype != torch.float32:
        model = copy.deepcopy(model).to(dtype)
    core: Any = Core(model, info, dtype).eval()
    example = torch.zeros(1, info.pipeline.channels, *info.pipeline.size)
    try:
        with torch.inference_mode():  # builds the tables of positions, whose computation is not to be traced
            core(example)
        if options.class_map:
            with quiet():
                core = Mapped(core, example, plain_norms=getattr(writer, "PLAIN_NORMS", False)).eval()
        outputs = output_names(info, options.class_map)
        files: list[Path] = writer.write(
            core, info.pipeline, outputs=outputs, taps=tap_names(model), words=words, file=file
        )
    except (OSError, VitreousError):
        raise
    except Exception as error:  # exporters raise errors of any class
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise OutputError(f"{form} cannot express this model: {reason}; nothing was kept") from error
    return files


def _summary(verified: Verified) -> str:
    differences = ", ".join(f"{name} {value:.1e}" for name, value in verified.differences.items())
    pixels = f"{verified.pixels:.2%} of the resized pixels by a level or two" if verified.pixels else "resize exact"
    return (
        f"verified by {verified.by} on {verified.images} images, in batches of 1 to 64, square and not, from arrays "
        f"and files: largest difference from PyTorch {differences}; {pixels}"
    )
