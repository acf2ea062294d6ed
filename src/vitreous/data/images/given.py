"""What a caller may give for images: one or several, as paths, bytes, files, PIL images, arrays or tensors.

Decoding is :mod:`vitreous.data.images.reading`.

Shapes: B images, C channels, H x W pixels.
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

from vitreous.data.images.reading import PictureSource
from vitreous.data.sources.urls import refuse_url
from vitreous.errors import DataError
from vitreous.files.text import printable

__all__ = ["Given", "as_source", "name_of", "reason_of", "separate"]

Given = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Image.Image | npt.NDArray[Any] | Tensor

_CHANNELS = (1, 3, 4)  # grey, colour, colour with alpha
_ONE = "a path, the bytes of an image file, a binary file, a PIL image, an array H x W x C or a tensor C x H x W"


def separate(x: Any) -> tuple[bool, Iterable[Any]]:
    """Return whether something is one image, and the image or images as an iterable.

    Args:
        x: One image as :data:`Given` lists them; an array B x H x W x C or a tensor B x C x H x W, which are several;
            or an iterable of images.

    Raises:
        DataError: If it is none of these, or its shape may mean two things.
    """
    if isinstance(x, Tensor | np.ndarray):
        _check_whole(x)
        return (False, list(x)) if x.ndim == 4 else (True, [x])
    if isinstance(x, str | os.PathLike | bytes | bytearray | memoryview | Image.Image) or hasattr(x, "read"):
        return True, [x]
    if isinstance(x, Mapping) or not isinstance(x, Iterable):
        kind = "None" if x is None else f"a value of type {type(x).__name__}"
        raise DataError(f"{kind} is no image: give {_ONE}; or a list of these, or a batch with one more dimension")
    return False, x


def as_source(item: Any) -> PictureSource:
    """Return one image in a form that :func:`vitreous.data.images.reading.read_picture` takes.

    Raises:
        DataError: If it is a URL, or a tensor of another shape or type than an image's: the reason.
    """
    if isinstance(item, str | os.PathLike):
        if not os.fspath(item):
            raise DataError("an empty path: name a file")
        refuse_url(os.fspath(item))
    elif isinstance(item, bytearray | memoryview):
        return bytes(item)
    elif isinstance(item, Tensor):
        return _array_of(item)
    elif isinstance(item, np.ndarray) and item.ndim == 4:
        raise DataError(f"shape {item.shape} is a batch inside a list: give the batch alone, or its images one by one")
    elif not isinstance(item, bytes | Image.Image | np.ndarray) and not hasattr(item, "read"):
        kind = "None" if item is None else f"a value of type {type(item).__name__}"
        raise DataError(f"{kind} is no image: give {_ONE}")
    return item


def name_of(item: Any, position: int) -> str:
    """An image's path, or its position such as ``#0`` where it has none."""
    if isinstance(item, str | os.PathLike):
        return os.fspath(item) or f"#{position}"
    name = getattr(item, "filename", None) or (getattr(item, "name", None) if hasattr(item, "read") else None)
    return name if isinstance(name, str) else f"#{position}"


def reason_of(error: DataError, name: str) -> str:
    """Return why an image cannot be read, without the name that the error calls it by: it has another here."""
    text = str(error)
    known = (f"{own}: " for own in (name, printable(name), "array", "picture", "image"))
    return next((text.removeprefix(front) for front in known if text.startswith(front)), text)


def _check_whole(x: Tensor | npt.NDArray[Any]) -> None:
    """Refuse batches that are none, and batches and tensors that may be meant in two ways."""
    shape, is_tensor = tuple(x.shape), isinstance(x, Tensor)
    if x.ndim == 4:
        own, other = (1, 3) if is_tensor else (3, 1)
        order = "B x C x H x W" if is_tensor else "B x H x W x C"
        if shape[own] not in _CHANNELS:
            raise DataError(
                f"shape {shape} is no batch of images: {_kind(x)} is {order}, with {_said(_CHANNELS)} channels"
            )
        if shape[other] in _CHANNELS:
            raise DataError(
                f"shape {shape} may have its channels second or last: give the images one by one, as arrays H x W x C"
            )


def _array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor H x W or C x H x W as an array H x W or H x W x C."""
    shape = tuple(tensor.shape)
    if tensor.ndim == 4:
        raise DataError(f"shape {shape} is a batch inside a list: give the batch alone, or its images one by one")
    if tensor.ndim not in (2, 3) or (tensor.ndim == 3 and shape[0] not in _CHANNELS):
        hint = ", move the channels first" if tensor.ndim == 3 and shape[2] in _CHANNELS else ""
        raise DataError(
            f"shape {shape} is no image: a tensor is H x W, or C x H x W with {_said(_CHANNELS)} channels{hint}"
        )
    if tensor.ndim == 3 and shape[2] in _CHANNELS:
        raise DataError(f"shape {shape} may have its channels first or last: give an array, which is H x W x C")
    if tensor.is_floating_point():
        tensor = tensor.to(torch.float32)  # NumPy has no bfloat16
    try:
        array: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    except (NotImplementedError, RuntimeError, TypeError) as error:  # without data, sparse, quantised
        kind = f"{tensor.layout}, {tensor.dtype}, on {tensor.device}".replace("torch.", "")
        raise DataError(f"a tensor without plain numbers ({kind}): give a dense one of uint8 or float") from error
    return array.transpose(1, 2, 0) if array.ndim == 3 else array


def _kind(x: Tensor | npt.NDArray[Any]) -> str:
    return "a tensor" if isinstance(x, Tensor) else "an array"


def _said(numbers: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
