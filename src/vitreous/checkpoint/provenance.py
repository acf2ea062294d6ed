"""What a model file's provenance says and this package reads: checked when the file is, so that no reader must."""

from __future__ import annotations

import base64
import math
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoint.adapters import google, huggingface, timm, torchvision
from vitreous.checkpoint.untrusted.documents import fits
from vitreous.checkpoint.untrusted.torch_file import READABLE
from vitreous.data.config import DataConfig
from vitreous.errors import CheckpointError

__all__ = ["check_provenance", "unpacked"]

_LAYOUTS: dict[str, Mapping[str, tuple[Any, ...]]] = {
    "google": google.LAYOUT,
    "timm": timm.LAYOUT,
    "huggingface": huggingface.LAYOUT,
    "torchvision": torchvision.LAYOUT,
}
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in READABLE}
_KEPT = ("mask_token",)  # tensors that no forward pass reads and a family has


def check_provenance(file: Path, provenance: Mapping[str, Any]) -> None:
    """Check what is read of a provenance; what is not read may be anything.

    Raises:
        CheckpointError: If a value cannot be meant: all of them in one error.
    """
    problems = [*_of_layout(provenance.get("layout")), *_of_data(provenance)]
    if problems:
        raise CheckpointError(f"'{file}': its provenance is damaged: {'; '.join(problems[:5])}")


def _of_layout(layout: Any) -> typing.Iterator[str]:
    """Yield what is wrong with the layout of the file that the model came from."""
    if not layout and isinstance(layout, dict | None):
        return
    if not isinstance(layout, dict) or not isinstance(layout.get("family"), str):
        yield f"layout is {layout!r:.60}"
        return
    for name, allowed in _LAYOUTS.get(layout["family"], {}).items():
        value = layout.get(name)
        if not any(type(value) is type(each) and value == each for each in allowed):
            yield f"layout.{name} is {value!r:.60}"
    if not isinstance(layout.get("architecture", ""), str):
        yield f"layout.architecture is {layout['architecture']!r:.60}"
    for name, values in (("class_names", None), ("dtypes", _DTYPES)):
        table = layout.get(name, {})
        whole = isinstance(table, dict) and all(isinstance(value, str) for value in table.values())
        if not whole or (values is not None and not set(table.values()) <= values.keys()):
            yield f"layout.{name} is {table!r:.60}"
    kept = layout.get("kept", {})
    if not isinstance(kept, dict) or not set(kept) <= set(_KEPT):
        yield f"layout.kept is {kept!r:.60}"


def _of_data(provenance: Mapping[str, Any]) -> typing.Iterator[str]:
    """Yield what is wrong with what it says of the data that the model was trained on."""
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


def unpacked(stored: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """Return small tensors from JSON that has their bytes as base64.

    Args:
        stored: For each its shape, dtype and bytes.
        name: The checkpoint, for messages.

    Raises:
        CheckpointError: If one cannot be read.
    """
    state: dict[str, Tensor] = {}
    for key, entry in stored.items():
        try:
            raw = bytearray(base64.b64decode(entry["base64"], validate=True))
            shape, dtype = entry["shape"], _DTYPES[entry["dtype"]]
            whole = len(shape) <= 8 and all(type(n) is int and 0 < n < 1 << 31 for n in shape)
            if not whole or math.prod(shape) * dtype.itemsize != len(raw):
                raise ValueError("its shape does not fit its bytes")
            state[key] = torch.frombuffer(raw, dtype=dtype).reshape(shape)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(f"'{name}' is damaged: {key} in its metadata cannot be read") from error
    return state
