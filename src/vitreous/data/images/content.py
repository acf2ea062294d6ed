"""The bytes of an image file: their hash, and a holder from which a decoder can drop them before it takes memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

__all__ = ["Content", "content_hash"]


def content_hash(content: bytes | memoryview) -> str:
    """Return the 16-byte BLAKE2b of some bytes, in hex."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class Content:
    """The bytes of a file, until they are released."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def release(self) -> None:
        """Drop the bytes."""
        self.data = b""

    def drain(self) -> Iterator[bytes]:
        """Yield the bytes in one piece, and drop them."""
        data, self.data = self.data, b""
        yield data
