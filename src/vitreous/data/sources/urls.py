"""Addresses on the web in the place of a path: refused with the reason, as nothing is fetched."""

from __future__ import annotations

import os
import re

from vitreous.errors import DataError

__all__ = ["refuse_url"]

# pathlib makes one slash of two. A single letter and a colon are a drive of Windows.
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]+://|(?:https?|ftps?|s3|gs|hf|file):/|data:image/)", re.IGNORECASE)
_REMEDIES = {"data": "decode it and give the bytes", "file": "give the path behind file://"}


def refuse_url(word: str, as_data: bool = False) -> None:
    """Refuse a URL; a file that is there under that very name is a path.

    Args:
        word: A path, or what was given for one.
        as_data: A folder or a manifest was asked for, not an image; the reason then begins with the word.

    Raises:
        DataError: If it is one: the reason and the remedy, to be read after its name.
    """
    if _URL.match(word) and not os.path.lexists(word):
        remedy = _REMEDIES.get(word.partition(":")[0].lower(), "download it first and give the file")
        if as_data and remedy.startswith("download"):
            remedy = "download it first, unpack it if it is an archive, and give the folder"
        name = f"'{word}' is " if as_data else ""
        raise DataError(f"{name}a URL, and nothing is fetched from the web: {remedy}")
