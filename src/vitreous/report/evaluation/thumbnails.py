"""Thumbnails as data URIs: small images as they are, larger ones reduced to JPEG."""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitreous.errors import VitreousError

__all__ = ["SIDE", "ClassMap", "ImageOf", "Thumbnails"]

ImageOf = Callable[[int], Image.Image | npt.NDArray[np.uint8]]
"""Returns image `n` of the data: PIL, or an array H W, H W 1 or H W 3."""

ClassMap = Callable[[int, int], Image.Image]
"""Returns image `n`, overlaid with where the model sees evidence for a class."""

SIDE = 128
"""Longest side of a thumbnail in pixels."""

_SMALL = 64  # longest side of an image that is embedded as it is


@dataclass
class Thumbnails:
    """The thumbnails of a page; each image is decoded once.

    Without `image`, or if an image can no longer be read, there is no thumbnail.
    """

    image: ImageOf | None = None
    class_map: ClassMap | None = None
    _known: dict[int, str | None] = field(default_factory=dict)

    def prepare(self, indices: Iterable[int], progress: Callable[[int, int], None]) -> None:
        """Decode images, with progress."""
        distinct = list(dict.fromkeys(indices)) if self.image else []
        for done, n in enumerate(distinct, start=1):
            self.of(n)
            progress(done, len(distinct))

    def of(self, n: int) -> str | None:
        """Return the data URI of an image."""
        if n not in self._known:
            self._known[n] = None
            if self.image is not None:
                with contextlib.suppress(VitreousError, OSError):  # it is gone since it was scored
                    self._known[n] = _uri(self.image(n))
        return self._known[n]

    def map_of(self, n: int, label: int) -> str | None:
        """Return the data URI of an image with the evidence for a class."""
        return _uri(self.class_map(n, label)) if self.class_map is not None else None


def _uri(image: Image.Image | npt.NDArray[np.uint8]) -> str:
    if not isinstance(image, Image.Image):
        image = Image.fromarray(np.asarray(image).squeeze())
    small = max(image.size) <= _SMALL
    image = image.convert("RGB")
    buffer = io.BytesIO()
    if small:
        image.save(buffer, "PNG", optimize=True)
    else:
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        image.save(buffer, "JPEG", quality=80)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
