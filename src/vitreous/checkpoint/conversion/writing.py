"""A model to files of another family: tensors, and the documents that the family expects beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitreous.checkpoint.adapters.common import Outgoing, State, Written
from vitreous.checkpoint.opening import FAMILIES, Opened, build
from vitreous.errors import OutputError, UsageError

__all__ = ["FILES", "adopted", "export", "layout_of_files", "write_files"]

FILES = {
    "google": ("model.npz", (".npz",)),
    "timm": ("model.safetensors", ()),
    "huggingface": ("model.safetensors", ()),
    "torchvision": ("model.pth", (".pth", ".pt", ".safetensors")),
    "vitreous": ("model.safetensors", (".safetensors",)),
    "onnx": ("model.onnx", (".onnx",)),
    "torch": ("model.pt2", (".pt2",)),
}
"""Of each family, and of each form that runs by itself: the name of the weights in a folder, and the endings by which
the destination is itself the file."""


def layout_of_files(family: str, destination: Path) -> tuple[Path, bool]:
    """Return where the weights go, and whether the destination is a folder.

    Raises:
        UsageError: If the destination ends like a file of another kind.
    """
    name, endings = FILES[family]
    if destination.suffix in endings:
        return destination, False
    if destination.suffix in {ending for _, ends in FILES.values() for ending in ends}:
        takes = f"a folder, or a file that ends in {' or '.join(endings)}" if endings else "a folder"
        raise UsageError(f"the destination '{destination}' does not fit --to {family}: give {takes}")
    return destination / name, True


def adopted(opened: Opened, family: str) -> tuple[Opened, list[str]]:
    """Return the model with the constants that a family cannot be told, and lines that say which.

    The weights stay; only epsilons change, and the logits by as much as a comparison then shows.
    """
    if family == "vitreous":
        return opened, []
    changes, notes = FAMILIES[family].adopt(opened.model.config)
    if not changes:
        return opened, []
    config = replace(opened.model.config, **changes)
    return replace(opened, model=build(config, opened.model.state_dict(), family)), notes


def export(opened: Opened, family: str) -> Written:
    """Map a model to the names of a family.

    Raises:
        CheckpointError: If the family has no such model: everything that it cannot express, in one error.
    """
    info = opened.info
    layout = opened.layout if opened.layout.get("family") == family else {}
    names = layout.get("class_names") or opened.layout.get("class_names") or {}
    classes = tuple(str(names.get(str(i), name)) for i, name in enumerate(info.classes))
    state = dict(opened.model.state_dict())
    outgoing = Outgoing(opened.model.config, state, layout, opened.kept, classes, info.pipeline)
    written: Written = FAMILIES[family].write(outgoing)
    return Written(_as_stored(written.tensors, layout.get("dtypes") or {}), written.documents)


def _as_stored(tensors: State, dtypes: Mapping[str, str]) -> State:
    """Give tensors the number format that they came in, where that loses nothing."""
    stored: State = {}
    for name, tensor in tensors.items():
        wanted = getattr(torch, str(dtypes.get(name, dtypes.get("*", "float32"))), torch.float32)
        cast = tensor.to(wanted)
        stored[name] = (cast if torch.equal(cast.to(tensor.dtype), tensor) else tensor).contiguous()
    return stored


def write_files(written: Written, family: str, weights: Path) -> list[Path]:
    """Write tensors and documents; the folder exists. Return the files.

    Raises:
        OutputError: If they cannot be written.
    """
    try:
        if weights.suffix == ".npz":
            np.savez(weights, **{name: _array(t) for name, t in written.tensors.items()})
        elif weights.suffix == ".safetensors":
            tensors = {name: t.clone() for name, t in written.tensors.items()}
            save_file(tensors, weights, metadata={"format": "pt"})
        else:
            torch.save({name: t.clone() for name, t in written.tensors.items()}, weights)
        files = [weights]
        for name, document in written.documents.items():
            file = weights.with_suffix(".json") if name == "sidecar" else weights.parent / name
            _write_json(file, document)
            files.append(file)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise OutputError(f"cannot write '{weights}': {reason}") from error
    return files


def _write_json(file: Path, document: Any) -> None:
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    file.write_text(text, encoding="utf-8", errors="backslashreplace")  # names that are no text, as JSON's escapes


def _array(tensor: Tensor) -> Any:
    """A tensor for numpy, which has no bfloat16: JAX writes it as raw pairs of bytes, and so does this."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view("V2")
    return tensor.numpy()
