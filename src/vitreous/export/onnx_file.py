"""ONNX: one file with graph, weights and description, which ONNX Runtime and many others run."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.export.whole import FREE_BATCH

__all__ = ["EXTRA", "PACKAGES", "read", "write"]

PACKAGES = ("onnxruntime", "onnx", "onnxscript")
EXTRA = "onnx"
_LARGEST = 1_900_000_000  # bytes of weights: a file is one protocol buffer, which 2 GiB bound


def write(
    module: nn.Module, images: Tensor, outputs: Sequence[str], words: Mapping[str, str], file: Path
) -> list[Path]:
    """Write a module, and return the files: weights too large for one file go into a second.

    Args:
        module: In evaluation mode.
        images: Its input to trace it with.
        outputs: Names of its outputs.
        words: What the file says about itself: ONNX's ``metadata_props``.
        file: Where to.
    """
    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # it tells of graphs that it could make no smaller
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):  # the exporter tells its steps on stdout
        program = torch.onnx.export(
            module,
            (images,),
            dynamo=True,
            dynamic_shapes=FREE_BATCH,
            input_names=["images"],
            output_names=list(outputs),
            verbose=False,
        )
    assert program is not None  # the older exporter alone gives none
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # where in whose code it came from, by paths of this machine
    program.model.metadata_props.update(words)
    apart = sum(tensor.nbytes for tensor in module.state_dict().values()) > _LARGEST
    program.save(file, external_data=apart)
    return [file, file.with_name(f"{file.name}.data")] if apart else [file]


def read(file: Path, batches: Sequence[Tensor]) -> tuple[str, dict[str, str], list[list[Tensor]]]:
    """Return who ran a file, what it says about itself, and its outputs for each batch, by ONNX Runtime on the CPU."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors: warnings are about the machine, such as a missing GPU
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    found = [[torch.from_numpy(each) for each in session.run(None, {"images": batch.numpy()})] for batch in batches]
    return f"onnxruntime {onnxruntime.__version__}", dict(session.get_modelmeta().custom_metadata_map), found
