"""ONNX: graph, weights and description in one file, for ONNX Runtime and other programs."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.export.whole import DYNAMIC_BATCH

__all__ = ["EXTRA", "PACKAGES", "read", "write"]

PACKAGES = ("onnxruntime", "onnx", "onnxscript")
EXTRA = "onnx"
_MAX_BYTES = 1_900_000_000  # of weights in one file; a protocol buffer ends at 2 GiB


def write(
    module: nn.Module, images: Tensor, outputs: Sequence[str], description: Mapping[str, str], file: Path
) -> list[Path]:
    """Export a module, traced with example images, and return the written files.

    The description is stored as ONNX's ``metadata_props``. Weights too large for one file go into a second.
    """
    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # it logs which optimisations do not apply
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):  # the exporter prints its progress
        program = torch.onnx.export(
            module,
            (images,),
            dynamo=True,
            dynamic_shapes=DYNAMIC_BATCH,
            input_names=["images"],
            output_names=list(outputs),
            verbose=False,
        )
    assert program is not None  # None only with dynamo=False
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces with paths of this machine
    program.model.metadata_props.update(description)
    external = sum(tensor.nbytes for tensor in module.state_dict().values()) > _MAX_BYTES
    program.save(file, external_data=external)
    return [file, file.with_name(f"{file.name}.data")] if external else [file]


def read(file: Path, batches: Sequence[Tensor]) -> tuple[str, dict[str, str], list[list[Tensor]]]:
    """Run a file on the CPU and return the runtime's name and version, the description, and each batch's outputs."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only; warnings concern the machine, such as a missing GPU
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    outputs = [[torch.from_numpy(out) for out in session.run(None, {"images": batch.numpy()})] for batch in batches]
    return f"onnxruntime {onnxruntime.__version__}", dict(session.get_modelmeta().custom_metadata_map), outputs
