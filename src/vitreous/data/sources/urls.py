"""Addresses instead of paths: those of stores such as s3://, which are read, and all others, which are refused."""

from __future__ import annotations

import os
import re

from vitreous.errors import DataError, UsageError

__all__ = ["check_address", "is_store", "refuse_url"]

# pathlib collapses two slashes to one. A single letter and a colon are a Windows drive.
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]+://|(?:https?|ftps?|s3|gs|hf|file):/|data:image/)", re.IGNORECASE)
_STORE = re.compile(r"(s3|gs|az|hf)://(.*)", re.DOTALL | re.IGNORECASE)
_REMEDIES = {"data": "decode it and give the bytes", "file": "give the path behind file://"}


def is_store(word: str) -> bool:
    """Return whether a word is an address in a store; raise UsageError if it has a credential in it."""
    check_address(word)
    return _STORE.match(word) is not None


def check_address(word: str) -> None:
    """Raise UsageError if the address of a store has user information or a query, without repeating either.

    Addresses are written to `recipe.yaml`, reports and model files, where no credential may be.
    """
    found = _STORE.match(word)
    if found is None:
        return
    scheme, place = found.groups()
    bucket = place.partition("/")[0]
    if "?" in place or "@" in bucket or ":" in bucket:
        raise UsageError(
            f"an address {scheme}://... must not have a user name, password or query: write {scheme}://BUCKET/FOLDER; "
            "credentials come from the environment, as for the store's own tools"
        )
    if not bucket or not scheme.islower():
        raise UsageError(f"{scheme}:// needs a bucket: write {scheme.lower()}://BUCKET/FOLDER")


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
