"""How much memory all threads that read images may take together: others wait until there is room."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

__all__ = ["BUDGET", "Budget"]

_AT_ONCE = contextlib.nullcontext()


class Budget:
    """Bytes that are held by files' contents and by the images that are being made of them.

    A thread holds a content first, and then asks for the image's space. It gets that in any case where no other has
    some: two that waited for each other would wait for ever.

    Args:
        contents: Bytes of files that are held at a time; one alone may be larger.
        total: Bytes in all.
        uncounted: Bytes up to which a content or an image is not counted: most images are small, and counting takes
            longer than opening one.
    """

    def __init__(self, contents: int, total: int, uncounted: int = 0) -> None:
        self.contents, self.total, self.uncounted = contents, total, uncounted
        self.held = self.decoding = 0
        self.changed = threading.Condition()

    def content(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Hold the content of a file of so many bytes, when there is room."""
        return self._content(size) if size > self.uncounted else _AT_ONCE

    def image(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Hold what decoding an image takes, when there is room."""
        return self._image(size) if size > self.uncounted else _AT_ONCE

    @contextlib.contextmanager
    def _content(self, size: int) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: self.held + size <= self.contents or (self.held == 0 and self.decoding == 0))
            self.held += size
        try:
            yield
        finally:
            with self.changed:
                self.held -= size
                self.changed.notify_all()

    @contextlib.contextmanager
    def _image(self, size: int) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: self.decoding == 0 or self.held + self.decoding + size <= self.total)
            self.decoding += size
        try:
            yield
        finally:
            with self.changed:
                self.decoding -= size
                self.changed.notify_all()


BUDGET = Budget(contents=112 << 20, total=512 << 20, uncounted=1 << 18)
"""Of this process. What other threads hold is not held in a fork, where they are not."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: BUDGET.__init__(BUDGET.contents, BUDGET.total, BUDGET.uncounted))  # type: ignore[misc]
