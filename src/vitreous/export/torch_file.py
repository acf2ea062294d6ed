"""torch.export (.pt2): graph, weights and description, which PyTorch runs without the model's code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.export.whole import DYNAMIC_BATCH

__all__ = ["EXTRA", "PACKAGES", "read", "write"]

PACKAGES: tuple[str, ...] = ()
EXTRA = ""
_DESCRIPTION = "vitreous.json"


def write(
    module: nn.Module, images: Tensor, outputs: Sequence[str], description: Mapping[str, str], file: Path
) -> list[Path]:
    """Export a module like :func:`vitreous.export.onnx_file.write`; the description becomes the file ``vitreous.json``.

    The outputs keep their order but not their names.
    """
    with torch.no_grad():
        program = torch.export.export(module, (images,), dynamic_shapes=DYNAMIC_BATCH)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # has paths of this machine
    torch.export.save(program, file, extra_files={_DESCRIPTION: json.dumps(dict(description), indent=2)})
    return [file]


def read(file: Path, batches: Sequence[Tensor]) -> tuple[str, dict[str, str], list[list[Tensor]]]:
    """Run a file and return PyTorch's name and version, the description, and each batch's outputs."""
    extra = {_DESCRIPTION: ""}
    module = torch.export.load(file, extra_files=extra).module()
    with torch.inference_mode():
        outputs = [list(module(batch)) for batch in batches]
    return f"torch {torch.__version__}", json.loads(extra[_DESCRIPTION]), outputs
