"""The files of an inspection: the page, JSON, and PNG files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from vitreous.files.text import json_text
from vitreous.files.writing import Outputs
from vitreous.inspection.filters import Filters
from vitreous.inspection.maps import MAPS
from vitreous.report.drawing import magnitude_colours, overlaid, png
from vitreous.report.inspection.model import filter_montage, montage
from vitreous.report.inspection.page import page
from vitreous.report.inspection.results import ImageResult, Inspection

__all__ = ["JSON", "PAGE", "write"]

PAGE = "inspection.html"
"""The file name of the page."""
JSON = "inspection.json"
"""The file name of the numbers."""

_PARTS = ("heads", "patch-features")  # PNG files of an image beside those of map methods
_MAX_JSON_BYTES = 2**29
_ENLARGED = 8  # pixels of a patch in PNG files that have one value per patch


def write(result: Inspection, folder: Path, outputs: Outputs) -> list[Path]:
    """Write the page, the JSON document and the PNG files of an inspection to an existing folder; return their paths.

    With ``outputs.overwrite``, PNG files of an earlier inspection that the new one does not have are deleted: the
    folder's ``inspection.json`` says which they are. Other files stay.

    Raises:
        UsageError: If a file exists and ``outputs`` may not overwrite it.
        OutputError: If a file cannot be written.
    """
    images = dict(_png_files(result))
    stale = sorted(_earlier_files(folder) - set(images)) if outputs.overwrite else []
    for name in (*images, *stale):  # nothing is written or deleted if one of them may not be
        outputs.claim("--out", folder / name)
    for name, content in images.items():
        with outputs.atomic_write(folder / name) as path:
            path.write_bytes(content)
    with outputs.atomic_write(folder / JSON) as path:
        path.write_text(json_text(result.to_dict(), ascii_only=True) + "\n", encoding="utf-8")
    with outputs.atomic_write(folder / PAGE) as path, open(path, "w", encoding="utf-8") as file:
        file.writelines(page(result))
    for name in stale:
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in (PAGE, JSON, *images)]


def _earlier_files(folder: Path) -> set[str]:
    """Return the names of the PNG files of the inspection whose JSON document is in a folder, as far as they exist.

    Without such a document, or with one that is not an inspection's, there are none.
    """
    source = folder / JSON
    try:
        if source.stat().st_size > _MAX_JSON_BYTES:
            return set()
        document = json.loads(source.read_bytes())
        names = {"filters.png"} if "filters" in document["measures"] else set()
        for number, image in enumerate(document["images"], start=1):
            stem = _stem(number, str(image["path"]))
            methods = {str(each["method"]) for each in image["maps"]} & {method.kind for method in MAPS}
            names |= {f"{stem}-{part}.png" for part in (*methods, *_PARTS)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()
    return {name for name in names if (folder / name).is_file()}


def _stem(number: int, name: str) -> str:
    """Return how the names of the files of an image begin; images are counted from 1."""
    return f"{number:02}-{_plain(name)}"


def _png_files(result: Inspection) -> Iterator[tuple[str, bytes]]:
    for number, image in enumerate(result.images, start=1):
        stem = _stem(number, image.name)
        for one in image.maps:  # in the image's own pixels
            yield f"{stem}-{one.method}.png", png(overlaid(image.pixels, one.image_map()))
        yield f"{stem}-heads.png", _heads(image)
        if image.colours is not None:
            tile = (255 * image.colours.clip(0, 1)).round().astype("uint8")
            yield f"{stem}-patch-features.png", png(tile.repeat(_ENLARGED, 0).repeat(_ENLARGED, 1))
    for measure in result.measures.values():
        if isinstance(measure, Filters):
            yield "filters.png", png(filter_montage(measure).repeat(4, 0).repeat(4, 1))


def _heads(image: ImageResult) -> bytes:
    """Return attention by block (down) and head (across)."""
    L, H, h, w = image.heads.shape
    tiles = magnitude_colours(image.heads.reshape(L * H, -1), 0).reshape(L * H, h, w, 3)
    tiles = tiles.repeat(_ENLARGED, 1).repeat(_ENLARGED, 2)
    return png(montage(tiles, H, gap=_ENLARGED))


def _plain(name: str) -> str:
    """Return the end of a path with only letters, digits, `-` and `_`, for file names on every system."""
    stem = Path(name).stem if "/" in name or "." in name else name
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[:60] or "image"
