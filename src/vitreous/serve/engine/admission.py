"""When a model's queue takes another request: bursts are taken, a load that the engine cannot follow is not.

Two limits. The hard one is a number of images. The soft one holds while the service is overloaded: once the queue was
too long at every arrival of a quarter of a second, or every answer late, until it has been empty. Then only as many
images may wait as the engine computes in a few times the time of one, so that what is accepted is answered soon, and
the rest is told at once to come back.
(The idea is that of CoDel, RFC 8289: a queue that never empties only delays.)
"""

from __future__ import annotations

import math
import time

from vitreous.serve.engine.engine_process import Pace

__all__ = ["Admission"]

_LATE = 8.0  # times of a single image after which an answer is late
_SHORTEST = 0.005  # seconds that a single image counts at least, as in the batcher
_STANDING = 0.25  # seconds of late answers that make an overload
_FEWEST = 4  # images that may wait in any case


class Admission:
    """The decision for one model.

    Args:
        limit: Images that may be in the queue and in the engine, at most.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.images = 0  # accepted, and not answered
        self._long_since: float | None = None  # since when the queue has been too long at every arrival
        self._late_since: float | None = None  # since when every answer has been late
        self._overloaded = False

    @property
    def is_overloaded(self) -> bool:
        """Whether the soft limit holds."""
        return self._overloaded

    def allowed(self, pace: Pace) -> int:
        """Return how many images may be there now."""
        return min(self.limit, max(_FEWEST, 2 * pace.largest)) if self._overloaded else self.limit

    def takes(self, images: int, pace: Pace) -> bool:
        """Return whether so many more images are taken. An idle model takes any request."""
        now, expected = time.monotonic(), self.images * pace.per_image  # seconds
        if expected <= _LATE * max(pace.one, _SHORTEST):
            self._long_since = None
        elif self._long_since is None:
            self._long_since = now
        elif now - self._long_since > _STANDING:
            self._overloaded = True
        return self.images == 0 or self.images + images <= self.allowed(pace)

    def enter(self, images: int) -> None:
        """Count images that are accepted."""
        self.images += images

    def leave(self, images: int) -> None:
        """Count images that are answered or given up."""
        self.images -= images
        if self.images <= 0:
            self._long_since = self._late_since = None
            self._overloaded = False

    def answered(self, seconds: float, pace: Pace) -> None:
        """Learn from the time that an answer took."""
        now = time.monotonic()
        if seconds <= _LATE * max(pace.one, _SHORTEST):
            self._late_since = None
        elif self._late_since is None:
            self._late_since = now
        elif now - self._late_since > _STANDING:
            self._overloaded = True

    def retry_after(self, pace: Pace) -> int:
        """Return the seconds until the images that are here now are answered, at least 1."""
        return max(1, min(60, math.ceil(self.images * pace.per_image)))
