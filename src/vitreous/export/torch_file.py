"""A package of torch.export (.pt2): graph, weights and description, which PyTorch runs without the model's code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.export.whole import FREE_BATCH

__all__ = ["EXTRA", "PACKAGES", "read", "write"]

PACKAGES: tuple[str, ...] = ()
EXTRA = ""
_WORDS = "vitreous.json"


def write(
    module: nn.Module, images: Tensor, outputs: Sequence[str], words: Mapping[str, str], file: Path
) -> list[Path]:
    """Write a module, and return the file; what it says about itself is the extra file ``vitreous.json``.

    Arguments as :func:`vitreous.export.onnx_file.write`; outputs come in order and have no names.
    """
    with torch.no_grad():
        program = torch.export.export(module, (images,), dynamic_shapes=FREE_BATCH)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where in whose code it came from, by paths of this machine
    torch.export.save(program, file, extra_files={_WORDS: json.dumps(dict(words), indent=2)})
    return [file]


def read(file: Path, batches: Sequence[Tensor]) -> tuple[str, dict[str, str], list[list[Tensor]]]:
    """Return who ran a file, what it says about itself, and its outputs for each batch, by PyTorch."""
    extra = {_WORDS: ""}
    module = torch.export.load(file, extra_files=extra).module()
    with torch.inference_mode():
        found = [list(module(batch)) for batch in batches]
    return f"torch {torch.__version__}", json.loads(extra[_WORDS]), found
