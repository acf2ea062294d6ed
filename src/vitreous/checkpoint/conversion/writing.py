"""Writes a model as files of another family: the tensors, and the documents that the family expects beside them."""

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

from vitreous.checkpoint.adapters.common import ForeignCheckpoint, OutgoingModel, State
from vitreous.checkpoint.opening import FAMILIES, OpenedCheckpoint, build_model
from vitreous.errors import OutputError, UsageError, first_line
from vitreous.files.exported import EXPORTED

__all__ = ["FILES", "adopted", "export", "resolve_destination", "write_files"]

FILES = {
    "google": ("model.npz", (".npz",)),
    "timm": ("model.safetensors", ()),
    "huggingface": ("model.safetensors", ()),
    "torchvision": ("model.pth", (".pth", ".pt", ".safetensors")),
    "facebookresearch": ("model.pth", (".pth",)),
    "vitreous": ("model.safetensors", (".safetensors",)),
    **{form: (f"model{suffix}", (suffix,)) for form, suffix in EXPORTED.items()},
}
"""By family or export format: the file name of the weights in a folder, and the endings of a single file."""


def resolve_destination(family: str, destination: Path) -> tuple[Path, bool]:
    """Return the path of the weights, and whether the destination is a folder."""
    name, endings = FILES[family]
    if destination.suffix in endings:
        return destination, False
    if destination.suffix in {ending for _, ends in FILES.values() for ending in ends}:
        accepted = f"a folder or a file ending in {' or '.join(endings)}" if endings else "a folder"
        raise UsageError(f"the destination '{destination}' does not fit --to {family}: give {accepted}")
    return destination / name, True


def adopted(opened: OpenedCheckpoint, family: str) -> tuple[OpenedCheckpoint, list[str]]:
    """Return the model with the constants that the family fixes, and one line for the user on each.

    The weights are unchanged. Only epsilons change, and so the logits slightly.
    """
    changes, notes = FAMILIES[family].fixed_constants(opened.model.config) if family in FAMILIES else ({}, [])
    if not changes:
        return opened, []
    config = replace(opened.model.config, **changes)
    return replace(opened, model=build_model(config, opened.model.state_dict(), family)), notes


def export(opened: OpenedCheckpoint, family: str) -> ForeignCheckpoint:
    """Convert a model to a family's names and documents; one error lists everything that the family cannot express."""
    info = opened.info
    layout = opened.layout if opened.layout.get("family") == family else {}
    dtypes = layout.get("dtypes")
    if family == "facebookresearch" and opened.layout.get("family") == "timm":  # which reads some of its files
        dtypes = opened.layout.get("dtypes")
    names = layout.get("class_names") or opened.layout.get("class_names") or {}
    classes = tuple(str(names.get(str(i), name)) for i, name in enumerate(info.classes))
    state = dict(opened.model.state_dict())
    several = info.multilabel is not None
    outgoing = OutgoingModel(opened.model.config, state, layout, opened.kept, classes, info.pipeline, several)
    written: ForeignCheckpoint = FAMILIES[family].write(outgoing)
    return replace(written, tensors=_restore_dtypes(written.tensors, dtypes or {}))


def _restore_dtypes(tensors: State, dtypes: Mapping[str, str]) -> State:
    """Cast tensors to the dtypes that they were read in, unless that would round them."""
    restored: State = {}
    for name, tensor in tensors.items():
        dtype = getattr(torch, str(dtypes.get(name, dtypes.get("*", "float32"))), torch.float32)
        cast = tensor.to(dtype)
        restored[name] = (cast if torch.equal(cast.to(tensor.dtype), tensor) else tensor).contiguous()
    return restored


def write_files(written: ForeignCheckpoint, weights: Path) -> list[Path]:
    """Write tensors and documents into an existing folder and return the files."""
    try:
        if weights.suffix == ".npz":
            np.savez(weights, **{name: _array(t) for name, t in written.tensors.items()})
        elif weights.suffix == ".safetensors":
            save_file({name: t.clone() for name, t in written.tensors.items()}, weights, metadata={"format": "pt"})
        else:
            tensors = {name: t.clone() for name, t in written.tensors.items()}
            torch.save({written.inside: tensors} if written.inside else tensors, weights)
        files = [weights]
        for name, document in written.documents.items():
            file = weights.with_suffix(".json") if name == "sidecar" else weights.parent / name
            text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
            file.write_text(text, encoding="utf-8", errors="backslashreplace")  # lone surrogates become JSON escapes
            files.append(file)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise OutputError(f"cannot write '{weights}': {reason}") from error
    return files


def _array(tensor: Tensor) -> Any:
    """Return a numpy array; bfloat16, which numpy lacks, becomes raw 2-byte items as JAX writes them."""
    return tensor.view(torch.uint16).numpy().view("V2") if tensor.dtype == torch.bfloat16 else tensor.numpy()
