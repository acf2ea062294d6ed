"""The bytes of one file on their way to a decoder, and no longer: a large one is not held beside its image."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Content"]


class Content:
    """The bytes of a file, until they are let go.

    Args:
        data: The bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def release(self) -> None:
        """Let them go."""
        self.data = b""

    def handed_over(self) -> Iterator[bytes]:
        """Give them away, in one part."""
        data, self.data = self.data, b""
        yield data
