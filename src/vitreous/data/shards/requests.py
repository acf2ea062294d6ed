"""Many ranges of a store at once: what fails is asked for again, and what is slow is asked for twice.

One slow answer of a hundred is what a batch waits for. So a request that takes much longer than the others is made a
second time, and the first answer counts: the hedged requests of Dean and Barroso, "The tail at scale", 2013.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vitreous.data.shards.filesystem import is_absent, is_denied, read_range

__all__ = ["TRIES", "Range", "Tail", "is_final", "pause", "read_ranges"]

TRIES = 8
"""How often a range is asked for before its error is reported."""

_PAUSE = 0.02  # seconds before the second try; tripled before each further one, and varied by half: 22 in all
_AT_ONCE = 64  # requests
_SMALL = 1 << 20  # bytes; the time of a longer range is that of its bytes, and a second request would add to it


class Range(NamedTuple):
    """Bytes of an object."""

    key: str
    offset: int
    length: int


class Tail:
    """When a request counts as slow: after three times the median of the last hundred, and no less than 0.1 s."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=100)

    def add(self, seconds: float) -> None:
        """Record how long a request took."""
        self._seconds.append(seconds)

    def limit(self) -> float:
        """Return the seconds after which a request is made again; 0.3 until eight are known."""
        return max(0.1, 3 * statistics.median(self._seconds)) if len(self._seconds) >= 8 else 0.3


async def read_ranges(system: Any, root: str, ranges: Sequence[Range], tail: Tail) -> list[Any]:
    """Return for each range its bytes, or what came in the last of all tries: an error, or fewer bytes."""
    spare = iter(range(max(1, len(ranges) // 4)))  # requests that may be made twice, so a slow store is not asked more
    gate = asyncio.Semaphore(_AT_ONCE)

    async def read(each: Range) -> Any:
        answer: Any = None
        for attempt in range(TRIES):
            await asyncio.sleep(pause(attempt))
            async with gate:
                answer = await _read_once(system, f"{root}/{each.key}", each, tail, spare)
            if (isinstance(answer, bytes) and len(answer) == each.length) or is_final(answer):
                break
        return answer

    return await asyncio.gather(*(read(each) for each in ranges))


def pause(attempt: int) -> float:
    """Return the seconds to wait before a try, counted from 0."""
    return _PAUSE * 3 ** (attempt - 1) * (0.5 + random.random()) if attempt else 0.0


def is_final(answer: Any) -> bool:
    """Return whether asking again cannot help: the object is not there, or may not be read."""
    return is_absent(answer) or is_denied(answer)


async def _read_once(system: Any, path: str, each: Range, tail: Tail, spare: Iterator[int]) -> Any:
    """Return the bytes, or the error, of one request, or of the faster of two."""
    started = time.monotonic()
    requests = {asyncio.ensure_future(read_range(system, path, each.offset, each.length))}
    is_hedged = system.async_impl and each.length <= _SMALL
    error: BaseException | None = None
    try:
        while requests:
            done, requests = await asyncio.wait(
                requests, timeout=tail.limit() if is_hedged else None, return_when=asyncio.FIRST_COMPLETED
            )
            for request in done:
                if (error := request.exception()) is None:
                    tail.add(time.monotonic() - started)
                    return request.result()
            if not done and next(spare, None) is not None:
                requests.add(asyncio.ensure_future(read_range(system, path, each.offset, each.length)))
            is_hedged = False
    finally:
        for request in requests:
            request.cancel()
    return error
