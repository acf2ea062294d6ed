"""API keys: random, stored as SHA-256 only, compared in constant time.

A key has 256 random bits, so a plain hash of it cannot be guessed, unlike that of a password. The file has a line per
key: its name, a space and the hash. A line that begins with ``#`` is a comment; a removed line revokes its key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from vitreous.errors import OutputError, UsageError
from vitreous.files.text import visible

__all__ = ["KeyFile", "new_key"]

_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_LINE = re.compile(r"([\w.@-]{1,64}) ([0-9a-f]{64})", re.ASCII)
_MAX_BYTES = 1 << 20
_PREFIX = "vit_"


def new_key(file: Path, name: str) -> str:
    """Add a key to a file, which is created for its owner alone, and return the key; it is stored nowhere.

    Raises:
        UsageError: If the name has other characters than letters, digits and ``_ . @ -``, or is taken.
        OutputError: If the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"the name of a key is '{visible(name)}': use up to 64 letters, digits, '_', '.', '@' or '-'")
    if file.exists() and name in dict(_read(file)):
        raise UsageError(f"'{visible(str(file))}' has a key called '{name}': remove its line, or use another name")
    key = _PREFIX + secrets.token_urlsafe(32)
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "a+b") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 1))
            start = "" if stream.read(1) in (b"", b"\n") else "\n"  # a last line without an end
            stream.write(f"{start}{name} {_hashed(key)}\n".encode("ascii"))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise OutputError(
            f"cannot write '{visible(str(file))}': {error.strerror or error}; name another file with --api-keys"
        ) from error
    return key


class KeyFile:
    """The keys of a file, read again when it changes.

    Raises:
        UsageError: If the file cannot be read, or a line is not a key.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._stamp = self._look()
        self._keys = _read(file)

    @property
    def is_empty(self) -> bool:
        """Whether there was no key when the file was last read."""
        return not self._keys

    def owner(self, key: str) -> str | None:
        """Return the name of a key, or None if there is no such key. Every stored hash is compared."""
        self._refresh()
        hashed, found = _hashed(key), None
        for name, stored in self._keys:
            if hmac.compare_digest(hashed, stored):
                found = name
        return found

    def _look(self) -> tuple[int, int] | None:
        """Return what changes when the file does; None if it is gone."""
        try:
            status = os.stat(self.file)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def _refresh(self) -> None:
        """Read a changed file; one that is gone has no keys."""
        if (stamp := self._look()) != self._stamp:
            self._keys, self._stamp = [] if stamp is None else _read(self.file), stamp


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _read(file: Path) -> list[tuple[str, str]]:
    try:
        with open(file, encoding="ascii") as stream:
            lines = [line.strip() for line in stream.read(_MAX_BYTES).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file of keys"
        raise UsageError(
            f"cannot read the keys in '{visible(str(file))}': {reason}; "
            "`vitreous serve --new-key NAME --api-keys FILE` writes one"
        ) from error
    keys = []
    for number, line in enumerate(lines, start=1):
        if line and not line.startswith("#"):
            found = _LINE.fullmatch(line)
            if found is None:
                raise UsageError(
                    f"line {number} of '{visible(str(file))}' is no key: a line is a name, a space and a SHA-256"
                )
            keys.append((found[1], found[2]))
    return keys
