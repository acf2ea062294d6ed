"""Work done in threads ahead of whoever uses it, in order: decoding pictures while the model computes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["done_ahead"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def done_ahead(work: Callable[[int, Item], Result], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """Yield what ``work`` makes of each item and its position, in order.

    Args:
        work: Called in threads; it should let go of Python's lock, as Pillow's decoders do.
        items: Read as far as needed, so it may be endless.
        ahead: Items that are begun, at most, before the first of them is taken.
    """
    pool = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="vitreous-decode")
    waiting: deque[Future[Result]] = deque()
    try:
        for position, item in enumerate(items):
            waiting.append(pool.submit(work, position, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
