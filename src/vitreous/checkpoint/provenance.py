"""Checks the entries of a model file's provenance that this package uses, when the file is read."""

from __future__ import annotations

import base64
import math
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoint.adapters import facebookresearch, google, huggingface, timm, torchvision
from vitreous.checkpoint.adapters.common import DECODER, OWN
from vitreous.checkpoint.adapters.huggingface.names import FIRST_KINDS
from vitreous.checkpoint.untrusted.torch_file import READABLE
from vitreous.choices import fits
from vitreous.data.config import DataConfig
from vitreous.errors import CheckpointError

__all__ = ["check_provenance", "pack_tensor", "stored_dtypes", "stored_layout", "unpack_tensors"]

_LAYOUTS: dict[str, Mapping[str, tuple[Any, ...]]] = {
    "google": google.LAYOUT,
    "facebookresearch": facebookresearch.LAYOUT,
    "timm": timm.LAYOUT,
    "huggingface": huggingface.LAYOUT,
    "torchvision": torchvision.LAYOUT,
}
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in READABLE}
_PLAIN = (str, bool, int, float, list, type(None))  # values of arguments
_KEPT = ("mask_token", "post_layernorm.weight", "post_layernorm.bias", *OWN)  # names of unused tensors


def check_provenance(file: Path, provenance: Mapping[str, Any]) -> None:
    """Check the entries that are used later; any others may be anything."""
    problems = [*_layout_problems(provenance.get("layout")), *_data_problems(provenance)]
    if problems:
        raise CheckpointError(f"'{file}': its provenance is damaged: {'; '.join(problems[:5])}")


def _layout_problems(layout: Any) -> Iterator[str]:
    """Yield what is wrong with the recorded layout of the file that the model was converted from."""
    if not layout and isinstance(layout, dict | None):
        return
    if not isinstance(layout, dict) or not isinstance(layout.get("family"), str):
        yield f"layout is {layout!r:.60}"
        return
    for name, allowed in _LAYOUTS.get(layout["family"], {}).items():
        value = layout.get(name)
        if not any(type(value) is type(choice) and value == choice for choice in allowed):
            yield f"layout.{name} is {value!r:.60}"
    if not isinstance(layout.get("architecture", ""), str):
        yield f"layout.architecture is {layout['architecture']!r:.60}"
    is_needed = layout["family"] == "huggingface" and layout.get("kind") not in FIRST_KINDS
    if not isinstance(layout.get("document", None if is_needed else {}), dict):
        yield f"layout.document is {layout.get('document')!r:.60}"
    arguments = layout.get("arguments", {})
    if not isinstance(arguments, dict) or not all(isinstance(value, _PLAIN) for value in arguments.values()):
        yield f"layout.arguments is {arguments!r:.60}"
    for name, values in (("class_names", None), ("dtypes", _DTYPES)):
        table = layout.get(name, {})
        is_valid = isinstance(table, dict) and all(isinstance(value, str) for value in table.values())
        if not is_valid or (values is not None and not set(table.values()) <= values.keys()):
            yield f"layout.{name} is {table!r:.60}"
    kept = layout.get("kept", {})
    if not isinstance(kept, dict) or not set(kept) <= set(_KEPT):
        yield f"layout.kept is {kept!r:.60}"


def _data_problems(provenance: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the recorded fingerprint and configuration of the training data."""
    data, config = provenance.get("data"), provenance.get("config")
    if isinstance(data, Mapping) and not isinstance(data.get("fingerprint"), str | None):
        yield f"data.fingerprint is {data['fingerprint']!r:.60}"
    trained = config.get("data") if isinstance(config, Mapping) else None
    if not isinstance(trained, Mapping):
        return
    for name, kind in typing.get_type_hints(DataConfig).items():
        value = trained.get(name)
        if name in trained and not fits(tuple(value) if isinstance(value, list) else value, kind):
            yield f"config.data.{name} is {value!r:.60}"


def stored_layout(layout: Mapping[str, Any], kept: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the layout as the model file stores it, with the unused tensors inside, but for those of a decoder."""
    packed = {key: pack_tensor(tensor) for key, tensor in kept.items() if not key.startswith(DECODER)}
    return {**layout, "kept": packed} if packed else dict(layout)


def stored_dtypes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the layout entry for tensors that are not float32; ``*`` stands for all of them."""
    dtypes = {name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items()}
    distinct = set(dtypes.values())
    if distinct <= {"float32"}:
        return {}
    if len(distinct) == 1:
        return {"dtypes": {"*": distinct.pop()}}
    return {"dtypes": {name: dtype for name, dtype in dtypes.items() if dtype != "float32"}}


def pack_tensor(tensor: Tensor) -> dict[str, Any]:
    """Return a small tensor as JSON values, bit for bit."""
    tensor = tensor.detach().contiguous()
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "base64": base64.b64encode(raw).decode("ascii"),
    }


def unpack_tensors(stored: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """Return tensors from entries as :func:`pack_tensor` makes them; `name` is the checkpoint's in messages."""
    state: dict[str, Tensor] = {}
    for key, entry in stored.items():
        try:
            raw = bytearray(base64.b64decode(entry["base64"], validate=True))
            shape, dtype = entry["shape"], _DTYPES[entry["dtype"]]
            is_valid = len(shape) <= 8 and all(type(n) is int and 0 < n < 1 << 31 for n in shape)
            if not is_valid or math.prod(shape) * dtype.itemsize != len(raw):
                raise ValueError("its shape does not fit its bytes")
            state[key] = torch.frombuffer(raw, dtype=dtype).reshape(shape)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(f"'{name}' is damaged: {key} in its metadata cannot be read") from error
    return state
