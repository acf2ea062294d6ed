"""The web export: a verified ONNX graph as a page that classifies images in a browser, offline.

A folder has the page, ONNX Runtime for WebAssembly, the graph that predicts, the graph of the class map, and one file
of weights for both. A single file has all of it inside the page, and opens without a server.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.checkpoint.stored_thresholds import thresholds_to_dict
from vitreous.errors import CheckpointError, OutputError, UsageError, first_line
from vitreous.export.class_map import INPUTS, class_map, compare
from vitreous.export.description import parse
from vitreous.export.shared_weights import halve, is_quantised, share
from vitreous.files.locating import expand_home
from vitreous.files.text import visible
from vitreous.files.writing import Outputs
from vitreous.model.config import pair
from vitreous.model.vit import VisionTransformer
from vitreous.web.page import local_page
from vitreous.web.runtime import SCRIPT, WASM, license_text, manifest, runtime_file

__all__ = ["FILES", "WebExport", "check_destination", "export_web"]

FILES = {
    "script": f"runtime/{SCRIPT}",
    "wasm": f"runtime/{WASM}.gz",
    "predict": "model.onnx",
    "explain": "class_map.onnx",
    "weights": "weights.bin",
}
"""Paths of the files of a folder, by role; besides them it has ``index.html`` and the licence of the runtime."""

_PAGE = "index.html"
_LICENSE = "runtime/LICENSE"
_LARGEST_PAGE = 64_000_000  # bytes; browsers read larger ones slowly, or not at all
_HALVED_BOUND = 1e-2  # difference from PyTorch of a map whose weights are stored in float16

Tell = Callable[[str], None]


@dataclass(frozen=True)
class WebExport:
    """The result of a web export: the written files, their size in bytes, and whether the page has class maps."""

    files: list[Path]
    bytes: int
    maps: bool


def export_web(
    graph: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    model: VisionTransformer | None = None,
    info: ModelInfo | None = None,
    *,
    title: str = "Image classifier",
    overwrite: bool = False,
    tell: Tell = lambda line: None,
) -> WebExport:
    """Write the page.

    Args:
        graph: An exported and verified ``.onnx`` file, in float32 or quantised, with its description.
        destination: A folder, or a file that ends in ``.html`` for a single one.
        model: The plain model behind the graph, for class maps. None: the page has none.
        info: Of the model.
        title: Heading of the page; untrusted text.
        overwrite: Whether to replace what an earlier web export wrote.
        tell: Receives notices.

    Raises:
        UsageError: If the destination exists, or is not one that an earlier export wrote.
        OutputError: If it cannot be written, or is too large for one file.
        CheckpointError: If the graph has no classes or no description, or gives other numbers once it is rewritten.
    """
    target = expand_home(destination)
    with _destination(target, overwrite, graph) as install:
        contents, known = _contents(Path(graph), model, info, tell)
        page = _single(title, known, contents) if _is_single(target) else local_page(title, known)
        files = {_PAGE: page} if _is_single(target) else {_PAGE: page, **_beside(contents)}
        written = install(files)
    return WebExport(written, sum(map(len, files.values())), known["maps"])


def _is_single(target: Path) -> bool:
    return target.suffix.lower() in (".html", ".htm")


def _contents(
    graph: Path, model: VisionTransformer | None, info: ModelInfo | None, tell: Tell
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the content of each file by role, and what the page knows of the model."""
    import onnx

    try:
        predict = onnx.load(graph)
    except Exception as error:  # the parser raises errors of several libraries
        raise CheckpointError(f"'{visible(str(graph))}' cannot be read as ONNX: {first_line(error)}") from error
    known = _described(predict, graph)
    explain = None
    before = predict.SerializeToString()
    if model is not None and info is not None:
        explain = _explaining(predict, model, info, tell)
    if model is not None and explain is not None:
        predict.graph.output.append(onnx.ValueInfoProto(name=INPUTS[0]))
        patch = pair(model.config.patch_size)
        grid = [side // each for side, each in zip(known["pipeline"]["size"], patch, strict=True)]
        known |= {"grid": grid, "blocks": model.config.depth}
    graphs = [each for each in (predict, explain) if each is not None]
    weights = share(graphs, FILES["weights"])
    contents = {"predict": predict.SerializeToString(), "weights": weights}
    if explain is not None:
        contents["explain"] = explain.SerializeToString()
    _verify(before, contents, known["pipeline"]["channels"])
    contents |= {"script": gzip.decompress(runtime_file(SCRIPT)), "wasm": runtime_file(WASM)}
    return contents, known | {"maps": explain is not None, "files": _listed(contents)}


def _described(graph: Any, file: Path) -> dict[str, Any]:
    """Return what the page shows of a model, from the description in its graph."""
    words = {each.key: each.value for each in graph.metadata_props}
    info = parse(words, file).info
    if not info.classes:
        raise CheckpointError(
            f"'{visible(str(file))}' has no classes, so a page has nothing to show: export one with a head"
        )
    name = "top1" if info.multilabel is None else "mean_ap"
    pipeline, rules = info.pipeline.to_dict(), thresholds_to_dict(info)
    return {
        "classes": info.classes,
        "pipeline": {name: pipeline[name] for name in ("size", "channels", "fit", "crop_ratio")},
        "scores": {split: {name: scores.get(name)} for split, scores in info.scores.items()},
        "license": words.get("license") or None,
        **{name: {key: rule[key] for key in _SHOWN[name]} for name, rule in rules.items()},
    }


_SHOWN = {"abstention": ("required_precision", "confidence"), "conformal": ("coverage",), "multilabel": ("thresholds",)}


def _explaining(predict: Any, model: VisionTransformer, info: ModelInfo, tell: Tell) -> Any:
    """Return the graph of the class map, or None with a notice."""
    if not any(INPUTS[0] in node.output for node in predict.graph.node):
        tell(f"the page has no class maps: the graph has no tensor '{INPUTS[0]}'")
        return None
    try:
        explain = class_map(model, info)
        if is_quantised(predict):  # its weights are others, so that none can be shared
            halve(explain)
            compare(explain, model, info, _HALVED_BOUND)
            tell("the class maps are those of the model before quantisation, with weights in float16")
    except OutputError as error:
        tell(f"the page has no class maps: {error}")
        return None
    return explain


def _verify(before: bytes, contents: Mapping[str, bytes], channels: int) -> None:
    """Check that the graph with its weights outside gives the same numbers as before, bit by bit."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    options.intra_op_num_threads = 1  # the same order of sums both times
    images = np.random.default_rng(0).integers(0, 256, (1, 60, 80, channels), dtype=np.uint8)
    first = onnxruntime.InferenceSession(before, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in first.get_outputs()]
    weights = contents["weights"]
    options.add_external_initializers_from_files_in_memory([FILES["weights"]], [weights], [len(weights)])
    second = onnxruntime.InferenceSession(contents["predict"], options, providers=["CPUExecutionProvider"])
    feeds: dict[str, npt.NDArray[np.uint8]] = {"images": images}
    for name, one, other in zip(names, first.run(names, feeds), second.run(names, feeds), strict=True):
        if not np.allclose(one, other, rtol=0, atol=1e-6):
            raise CheckpointError(
                f"the graph gives other {name} with its weights in a file of their own; nothing was kept"
            )


def _listed(contents: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Return path, checksum and stored size of each file, for the page's script."""
    published = {"script": SCRIPT, "wasm": WASM}
    return {
        role: {
            "path": FILES[role],
            "sha256": manifest()["files"][published[role]]["sha256"]
            if role in published
            else hashlib.sha256(content).hexdigest(),
            "stored": len(content),
            "gzip": FILES[role].endswith(".gz"),
        }
        for role, content in contents.items()
    }


def _single(title: str, known: Mapping[str, Any], contents: Mapping[str, bytes]) -> bytes:
    page = local_page(title, known, contents)
    if len(page) > _LARGEST_PAGE:
        raise OutputError(
            f"a single file would have {len(page) / 1e6:.0f} MB, the limit is {_LARGEST_PAGE / 1e6:.0f} MB: "
            "export to a folder"
        )
    return page


def _beside(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    return {**{FILES[role]: content for role, content in contents.items()}, _LICENSE: license_text()}


def check_destination(
    destination: str | os.PathLike[str], source: str | os.PathLike[str], overwrite: bool = False
) -> None:
    """Check that a page may be written there, before anything is computed.

    Raises:
        UsageError: If the destination exists, or is not one that an earlier export wrote.
        OutputError: If its folder does not exist.
    """
    with _destination(expand_home(destination), overwrite, source):
        pass


@contextlib.contextmanager
def _destination(
    target: Path, overwrite: bool, source: str | os.PathLike[str]
) -> Iterator[Callable[[Mapping[str, bytes]], list[Path]]]:
    """Check the destination before the work, and yield what writes files there; an error leaves nothing behind."""
    if _is_single(target):
        outputs = Outputs(overwrite)
        outputs.reads(lambda: [source])
        outputs.claim("the page", target)

        def write(files: Mapping[str, bytes]) -> list[Path]:
            with outputs.atomic_write(target) as temporary:
                temporary.write_bytes(files[_PAGE])
            return [target]

        yield write
        return
    _claim_folder(target, overwrite)
    temporary = target.parent / f".{target.name[:100]}.{secrets.token_hex(4)}.tmp"

    def install(files: Mapping[str, bytes]) -> list[Path]:
        try:
            _replace_folder(target, temporary, files)
        except OSError as error:
            raise OutputError(f"cannot write '{visible(str(target))}': {error.strerror or error}") from error
        return [target / path for path in files]

    try:
        yield install
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace_folder(target: Path, temporary: Path, files: Mapping[str, bytes]) -> None:
    """Write files to a temporary folder, and rename it to the target."""
    for path, content in files.items():
        file = temporary / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    resolved, old = target.resolve(), temporary.with_suffix(".old")  # keeps a symbolic link to a folder
    if resolved.exists():
        os.replace(resolved, old)
    os.replace(temporary, resolved)
    shutil.rmtree(old, ignore_errors=True)


def _claim_folder(target: Path, overwrite: bool) -> None:
    """Check that a folder may be written. Only what an earlier web export wrote is ever replaced."""
    shown = visible(str(target))
    if not target.parent.is_dir():
        raise OutputError(f"cannot write '{shown}': the folder '{visible(str(target.parent))}' does not exist")
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise UsageError(f"'{shown}' is a file: name a folder, or a file that ends in .html")
    own = {_PAGE, _LICENSE, *FILES.values()}
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()}
    if others := sorted(found - own):
        raise UsageError(
            f"'{shown}' holds other files ({visible(others[0])}), which would be deleted: name another destination"
        )
    if found and not overwrite:
        raise UsageError(f"'{shown}' exists already: --overwrite replaces it, or name another destination")
