"""Refusal of web addresses given instead of a path: nothing is downloaded from a URL."""

from __future__ import annotations

import os
import re

from vitreous.errors import DataError

__all__ = ["refuse_url"]

# pathlib collapses two slashes to one. A single letter and a colon are a Windows drive.
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]+://|(?:https?|ftps?|s3|gs|hf|file):/|data:image/)", re.IGNORECASE)
_REMEDIES = {"data": "decode it and give the bytes", "file": "give the path behind file://"}


def refuse_url(word: str, as_data: bool = False) -> None:
    """Raise DataError, with the remedy, if a path is a URL; an existing file of that name is a path.

    With ``as_data``, a folder or manifest was expected, not an image; the message then begins with the path.
    """
    if _URL.match(word) and not os.path.lexists(word):
        remedy = _REMEDIES.get(word.partition(":")[0].lower(), "download it first and give the file")
        if as_data and remedy.startswith("download"):
            remedy = "download it first, unpack it if it is an archive, and give the folder"
        name = f"'{word}' is " if as_data else ""
        raise DataError(f"{name}a URL, and nothing is fetched from the web: {remedy}")
