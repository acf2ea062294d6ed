"""The bytes of an image file, held so that a decoder can drop them before the decoded image takes memory."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Content"]


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
