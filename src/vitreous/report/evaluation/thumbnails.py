"""Thumbnails as data URIs, small images as they are and larger ones reduced to JPEG; and the class maps over them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitreous.errors import ConfigError, VitreousError
from vitreous.inspection.explanation import Explanation
from vitreous.report.drawing import data_uri, jpeg, png, reduced

__all__ = ["SIDE", "ClassMap", "ImageOf", "Thumbnail", "Thumbnails"]

ImageOf = Callable[[int], Image.Image | npt.NDArray[np.uint8]]
"""Returns image `n` of the data: PIL, or an array H W, H W 1 or H W 3."""

ClassMap = Callable[[int, int], Explanation]
"""Returns where in image `n` the model sees evidence for a class.

It raises ConfigError if there are no maps, or no more; the page gives the reason.
"""

SIDE = 128
"""Longest side of a thumbnail in pixels."""

_SMALL = 64  # longest side of an image that is embedded as it is


@dataclass(frozen=True)
class Thumbnail:
    """An image for a page, and its aspect ratio, width / height."""

    uri: str
    ratio: float


@dataclass
class Thumbnails:
    """The thumbnails and class maps of a page; each is computed once.

    Without `image`, or if an image can no longer be read, there is neither. `refusal` says why maps are missing.
    """

    image: ImageOf | None = None
    class_map: ClassMap | None = None
    refusal: str = ""
    _known: dict[int, Thumbnail | None] = field(default_factory=dict)
    _maps: dict[tuple[int, int], Explanation | None] = field(default_factory=dict)

    @property
    def has_maps(self) -> bool:
        """Whether any map has been computed."""
        return any(each is not None for each in self._maps.values())

    def prepare(
        self, indices: Iterable[int], mapped: Sequence[tuple[int, int]], progress: Callable[[int, int], None]
    ) -> None:
        """Decode images, and compute the maps of (image, class), with progress."""
        if self.image is None:
            return
        distinct, pairs = list(dict.fromkeys(indices)), list(dict.fromkeys(mapped))
        total = len(distinct) + (len(pairs) if self.class_map else 0)
        for done, n in enumerate(distinct, start=1):
            self.of(n)
            progress(done, total)
        for done, (n, label) in enumerate(pairs if self.class_map else (), start=len(distinct) + 1):
            self.map_of(n, label)
            progress(done, total)

    def of(self, n: int) -> Thumbnail | None:
        """Return an image."""
        if n not in self._known:
            self._known[n] = None
            if self.image is not None:
                with contextlib.suppress(VitreousError, OSError):  # it is gone since it was scored
                    self._known[n] = _thumbnail(self.image(n))
        return self._known[n]

    def map_of(self, n: int, label: int) -> Explanation | None:
        """Return the evidence for a class in an image; None without a thumbnail or without maps."""
        key = n, label
        if key not in self._maps:
            self._maps[key] = None
            if self.class_map is not None and not self.refusal and self.of(n) is not None:
                try:
                    self._maps[key] = self.class_map(n, label)
                except ConfigError as error:
                    self.refusal = str(error)
                except (VitreousError, OSError):
                    pass  # it is gone since its thumbnail was made
        return self._maps[key]


def _thumbnail(image: Image.Image | npt.NDArray[np.uint8]) -> Thumbnail:
    if not isinstance(image, Image.Image):
        image = Image.fromarray(np.asarray(image).squeeze())
    ratio = image.width / image.height
    small = max(image.size) <= _SMALL
    return Thumbnail(data_uri(png(image.convert("RGB")) if small else jpeg(reduced(image, SIDE))), ratio)
