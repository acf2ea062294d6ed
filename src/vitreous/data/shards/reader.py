"""A container as a binary file object, for libraries that read files."""

from __future__ import annotations

import io
import os
from typing import Any

from vitreous.data.images.stored import Container

__all__ = ["ContainerReader"]


class ContainerReader(io.RawIOBase):
    """Reads a container of ``size`` bytes."""

    def __init__(self, container: Container, size: int) -> None:
        self.container, self.size, self.position = container, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer; return their number."""
        count = max(0, min(len(buffer), self.size - self.position))
        content = self.container.read(self.position, count) if count else b""
        buffer[: len(content)] = content
        self.position += len(content)
        return len(content)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        self.position = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}[whence] + position
        return self.position

    def tell(self) -> int:
        """Return the position."""
        return self.position
