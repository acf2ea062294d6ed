"""Work done ahead in threads, in order: prediction decodes images while the model computes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["map_ahead"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(work: Callable[[int, Item], Result], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """Yield ``work(position, item)`` for each item, in order; items are consumed lazily and may be infinite.

    ``work`` runs in threads, so it should release the GIL, as Pillow's decoders do. At most ``ahead`` calls are in
    progress or finished but not yet yielded.
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
