"""The memory that all threads reading images may hold together; a thread waits until its share is free."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

__all__ = ["BUDGET", "Budget"]


class Budget:
    """Limits the bytes held by file contents and by the images decoded from them.

    A thread reserves its content first, then its image. To rule out deadlock, an image is admitted whenever no other
    image is being decoded, even if it exceeds the budget.

    Args:
        contents: Bytes of file contents held at a time; a larger file is read while nothing else is held.
        total: Bytes of contents and images together.
        uncounted: Sizes up to this are not counted: most images are small, and counting takes longer than opening one.
    """

    def __init__(self, contents: int, total: int, uncounted: int = 0) -> None:
        self.contents, self.total, self.uncounted = contents, total, uncounted
        self.held = self.decoding = 0
        self.changed = threading.Condition()

    def content(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Reserve ``size`` bytes for a file's content; waits until they are free."""
        return self._reserve(size, 0) if size > self.uncounted else contextlib.nullcontext()

    def image(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Reserve ``size`` bytes for decoding an image; waits until they are free."""
        return self._reserve(0, size) if size > self.uncounted else contextlib.nullcontext()

    @contextlib.contextmanager
    def _reserve(self, content: int, image: int) -> Iterator[None]:
        def has_room() -> bool:
            if content:
                return self.held + content <= self.contents or self.held == self.decoding == 0
            return self.decoding == 0 or self.held + self.decoding + image <= self.total

        with self.changed:
            self.changed.wait_for(has_room)
            self.held += content
            self.decoding += image
        try:
            yield
        finally:
            with self.changed:
                self.held -= content
                self.decoding -= image
                self.changed.notify_all()


BUDGET = Budget(contents=112 << 20, total=512 << 20, uncounted=1 << 18)
"""The budget of this process. A forked process starts with an empty one: it does not have its parent's threads."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: BUDGET.__init__(BUDGET.contents, BUDGET.total, BUDGET.uncounted))  # type: ignore[misc]
