"""ONNX: graph, weights and description in one file, for ONNX Runtime and other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vitreous.data.preprocess import EvalPipeline
from vitreous.export.graph.core import PIXELS, Core
from vitreous.export.graph.onnx_resize import NATIVE_MODES, resize_model
from vitreous.export.graph.tracing import EXAMPLES, to_onnx, trace

__all__ = ["ENGINE", "EXTRA", "NATIVE_FILTERS", "PACKAGES", "RESIZES", "Runner", "open_session", "write"]

PACKAGES = ("onnxruntime", "onnx", "onnxscript")
"""The packages that writing needs beside PyTorch."""
EXTRA = "onnx"
"""The extra that brings them."""
ENGINE = "onnxruntime"
"""The runtime, by the name that `--engine` has for it."""
RESIZES = ("exact", "native")
"""The kinds of resize that the format has, the usual one first."""
NATIVE_FILTERS = tuple(NATIVE_MODES)
"""The filters of a native resize."""
_MAX_BYTES = 1_900_000_000  # of weights in one file; a protocol buffer ends at 2 GiB


def write(
    core: Core,
    pipeline: EvalPipeline,
    *,
    outputs: Sequence[str],
    taps: Sequence[str],
    words: Mapping[str, str],
    file: Path,
) -> list[Path]:
    """Write the graph of images, (B, h, w, C) of any size, and return the files.

    Args:
        core: The graph after the resize, with taps.
        pipeline: The resize.
        outputs: Names of the core's first results, which become the outputs.
        taps: Names of its other results, which become names of tensors inside the graph.
        words: The description, stored as ONNX's ``metadata_props``; its ``resize`` is one of `RESIZES`.
        file: A path that ends in ``.onnx``. Weights too large for one file go into a second beside it.
    """
    import onnx

    example = torch.zeros(EXAMPLES, pipeline.channels, *pipeline.size)
    after = to_onnx(trace(core, example), [PIXELS], [*outputs, *taps]).model_proto
    resize = resize_model(pipeline, native=words["resize"] == "native")
    model = onnx.compose.merge_models(resize, after, [(PIXELS, PIXELS)], name="vitreous")
    del model.graph.output[len(outputs) :], model.graph.value_info[:]
    onnx.helper.set_model_props(model, dict(words))
    model.producer_name, model.producer_version = "vitreous", words["producer"].rpartition(" ")[2]
    if sum(tensor.nbytes for tensor in core.state_dict().values()) <= _MAX_BYTES:
        onnx.save_model(model, file)
        return [file]
    beside = file.with_name(f"{file.name}.data")
    onnx.save_model(model, file, save_as_external_data=True, location=beside.name)
    return [file, beside]


def open_session(source: Path | bytes) -> Any:
    """Return an ``onnxruntime.InferenceSession`` of a model on the CPU."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only; warnings concern the machine, such as a missing GPU
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other programs may need the cores
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


class Runner:
    """A written file in ONNX Runtime, on the CPU."""

    def __init__(self, file: Path, taps: Sequence[str] = ()) -> None:
        import onnxruntime

        self.name = f"onnxruntime {onnxruntime.__version__}"
        self._session = open_session(_with_taps(file, taps) if taps else file)
        self.outputs = [each.name for each in self._session.get_outputs()]

    @property
    def words(self) -> dict[str, str]:
        """The description in the file."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def __call__(self, images: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
        """Return all outputs for images (B, h, w, C)."""
        return list(self._session.run(None, {"images": np.ascontiguousarray(images)}))


def _with_taps(file: Path, taps: Sequence[str]) -> bytes:
    """Return a written model whose only outputs are those of its tensors that are among `taps`."""
    import onnx

    model = onnx.load(file)
    names = {name for node in model.graph.node for name in node.output}
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=tap) for tap in taps if tap in names)
    return bytes(model.SerializeToString())
