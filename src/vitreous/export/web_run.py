"""From a model to the page that runs it: an ONNX file, verified like any export, then the page around it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vitreous.checkpoint.conversion.destination import Destination
from vitreous.checkpoint.opening import OpenOptions, open_with_details
from vitreous.export.onnx_file import NATIVE_FILTERS
from vitreous.export.run import Export, Options, check_options, export_opened
from vitreous.export.web import check_destination, export_web

__all__ = ["export_page"]


def export_page(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    opening: OpenOptions | None = None,
    options: Options | None = None,
    *,
    title: str = "Image classifier",
    tell: Callable[[str], None] = lambda line: None,
) -> Export:
    """Export a model (file, folder or hub id) as a page: a folder, or one file that ends in ``.html``.

    The resize is the runtime's own, unless `options` says otherwise or it lacks the model's filter: whole-number
    products take WebAssembly seconds for a photograph of many megapixels.

    Raises:
        VitreousError: As :func:`.run.export` and :func:`.web.export_web`.
    """
    options = options or Options()
    check_options("onnx", options)
    check_destination(destination, source, options.overwrite)
    opened = open_with_details(source, opening or OpenOptions())
    for reason in opened.reasons:
        tell(reason)
    info = opened.info.without_thresholds() if options.ignore_thresholds else opened.info
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "model.onnx"
        has_operator = opened.info.pipeline.config.interpolation in NATIVE_FILTERS
        inner = replace(options, resize=options.resize or ("native" if has_operator else "exact"))
        found = export_opened(opened, Destination("onnx", graph, source, False), "onnx", inner, tell=tell)
        if options.quantise is not None:
            tell("int8: speed and accuracy are those of ONNX Runtime on this machine; a browser has another speed")
        page = export_web(graph, destination, opened.model, info, title=title, overwrite=options.overwrite, tell=tell)
    return replace(found, files=page.files, size=page.bytes)
