"""The forms in which `predict` accepts images: paths, bytes, files, PIL images, arrays or tensors, one or several.

They are decoded by :mod:`vitreous.data.images.reading`. Shapes: B images, C channels, H x W pixels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vitreous.data.images.reading import ImageSource
from vitreous.data.images.stored import StoredImage
from vitreous.data.sources.urls import refuse_url
from vitreous.errors import DataError
from vitreous.files.text import printable

__all__ = ["ImageInput", "split_inputs", "strip_name", "to_source"]

ImageInput = (
    str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Image.Image | npt.NDArray[Any] | Tensor
)
"""What counts as an image in Python: a path, bytes, an open file, a Pillow image, an array or a tensor."""

_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
_EXPECTED = "a path, the bytes of an image file, a binary file, a PIL image, an array H x W x C or a tensor C x H x W"


def split_inputs(x: Any) -> tuple[bool, Iterable[Any]]:
    """Return whether the input is a single image, and its images as an iterable.

    Several are an array (B, H, W, C), a tensor (B, C, H, W), or an iterable of images.
    """
    if isinstance(x, Tensor | np.ndarray):
        if x.ndim != 4:
            return True, [x]
        _check_batch(x)
        return False, list(x)
    if isinstance(x, str | os.PathLike | bytes | bytearray | memoryview | Image.Image) or hasattr(x, "read"):
        return True, [x]
    if isinstance(x, Mapping) or not isinstance(x, Iterable):
        raise DataError(f"{_describe(x)} is not an image: pass {_EXPECTED}; or a list or a batch of these")
    return False, x


def to_source(item: Any) -> ImageSource:
    """Convert one image to a form that :func:`vitreous.data.images.reading.read_image` accepts."""
    if isinstance(item, str | os.PathLike) and not isinstance(item, StoredImage):
        if not os.fspath(item):
            raise DataError("an empty path: pass the path of a file")
        refuse_url(os.fspath(item))
    elif isinstance(item, bytearray | memoryview):
        return bytes(item)
    elif isinstance(item, Tensor | np.ndarray) and item.ndim == 4:
        shape = tuple(item.shape)
        raise DataError(f"shape {shape} is a batch inside a list: pass the batch alone, or its images one by one")
    elif isinstance(item, Tensor):
        return _to_array(item)
    elif not isinstance(item, bytes | Image.Image | np.ndarray | StoredImage) and not hasattr(item, "read"):
        raise DataError(f"{_describe(item)} is not an image: pass {_EXPECTED}")
    return item


def strip_name(error: DataError, name: str) -> str:
    """Return the reason why an image cannot be read, without the name that the error begins with."""
    text = str(error)
    prefixes = (f"{prefix}: " for prefix in (name, printable(name), "array", "image"))
    return next((text.removeprefix(prefix) for prefix in prefixes if text.startswith(prefix)), text)


def _describe(x: Any) -> str:
    return "None" if x is None else f"a value of type {type(x).__name__}"


def _check_batch(x: Tensor | npt.NDArray[Any]) -> None:
    """Refuse a batch whose channels are not where they belong, or may be in two places."""
    shape = tuple(x.shape)
    kind, order, axis, other = (
        ("a tensor", "(B, C, H, W)", 1, 3) if isinstance(x, Tensor) else ("an array", "(B, H, W, C)", 3, 1)
    )
    if shape[axis] not in _CHANNELS:
        raise DataError(f"shape {shape} is not a batch of images: {kind} must be {order}, with 1, 3 or 4 channels")
    if shape[other] in _CHANNELS:
        raise DataError(
            f"shape {shape} may have its channels second or last: pass the images one by one, as arrays H x W x C"
        )


def _to_array(tensor: Tensor) -> npt.NDArray[Any]:
    shape = tuple(tensor.shape)
    if tensor.ndim not in (2, 3) or (tensor.ndim == 3 and shape[0] not in _CHANNELS):
        hint = "; move the channels first" if tensor.ndim == 3 and shape[2] in _CHANNELS else ""
        expected = f"a tensor must be H x W, or C x H x W with 1, 3 or 4 channels{hint}"
        raise DataError(f"shape {shape} is not an image: {expected}")
    if tensor.ndim == 3 and shape[2] in _CHANNELS:
        raise DataError(f"shape {shape} may have its channels first or last: pass an array H x W x C")
    if tensor.is_floating_point():
        tensor = tensor.to(torch.float32)  # NumPy has no bfloat16
    try:
        array: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    except (NotImplementedError, RuntimeError, TypeError) as error:  # meta, sparse or quantised
        kind = f"{tensor.layout}, {tensor.dtype}, on {tensor.device}".replace("torch.", "")
        raise DataError(f"a tensor without plain values ({kind}): pass a dense one of uint8 or float") from error
    return array.transpose(1, 2, 0) if array.ndim == 3 else array
