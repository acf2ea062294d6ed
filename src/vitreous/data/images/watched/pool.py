"""The decoder processes of this process: started on demand, reused, and replaced after a file ended one."""

from __future__ import annotations

import atexit
import os
import threading

from PIL import Image

from vitreous.data.images.content import Content
from vitreous.data.images.decoding import BAND_PIXELS, FileFacts
from vitreous.data.images.watched.child import Child, ChildExited
from vitreous.data.images.watched.limits import CPU_SECONDS, exit_reason

__all__ = ["DECODER_EXIT_PREFIX", "decode_watched"]

DECODER_EXIT_PREFIX = "its decoder "
"""How the reason begins for a file that ended its decoder process."""

_COMMAND = ("-m", "vitreous.data.images.watched.worker")
_MAX_PROCESSES = 4  # each takes about 40 MB
_WALL_SECONDS = 30.0 if os.name == "posix" else CPU_SECONDS  # Windows does not enforce the processor time


class _Pool:
    """Idle processes, and slots for those that may run at a time."""

    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(max(1, min(_MAX_PROCESSES, os.cpu_count() or 1)))
        self.idle: list[Child] = []

    def close(self) -> None:
        while self.idle:
            self.idle.pop().end()


_pool = _Pool()
_inherited: list[_Pool] = []  # kept alive: collecting one would wait for processes of the parent


def _reset_after_fork() -> None:
    """Start with an empty pool: the processes and locks belong to the parent."""
    global _pool  # noqa: PLW0603 - the pool of this process
    _inherited.append(_pool)
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


@atexit.register
def _close() -> None:
    _pool.close()  # looked up at exit: a fork has replaced it


def decode_watched(
    content: Content, format: str, min_size: tuple[int, int] | None = None, pixels: bool = True
) -> tuple[FileFacts, Image.Image | None]:
    """Decode a file in a process with limits on time and memory.

    Arguments and result are those of :func:`vitreous.data.images.decoding.decode`; without ``pixels`` only the facts
    are returned.
    """
    pool = _pool
    with pool.slots:
        try:
            child = pool.idle.pop() if pool.idle else Child(_COMMAND)
        except OSError as error:
            return FileFacts(f"cannot be decoded: the decoder process does not start: {error}", format), None
        timed_out = threading.Event()
        timer = threading.Timer(_WALL_SECONDS, _time_out, (child, timed_out))
        timer.daemon = True
        timer.start()
        try:
            request = {"format": format, "min_size": min_size, "pixels": pixels}
            answer, size = child.ask(request, content.drain(), len(content))
            facts = FileFacts(**(answer["facts"] | {"size": tuple(answer["facts"]["size"])}))
            image = _receive_image(child, tuple(answer["size"])) if size else None
        except ChildExited as gone:
            return FileFacts(DECODER_EXIT_PREFIX + exit_reason(gone.code, timed_out.is_set()), format), None
        except BaseException:
            child.end()
            raise
        finally:
            timer.cancel()
        pool.idle.append(child)
        return facts, image


def _time_out(child: Child, timed_out: threading.Event) -> None:
    timed_out.set()
    child.kill()


def _receive_image(child: Child, size: tuple[int, int]) -> Image.Image:
    width, height = size
    image = Image.new("RGB", size)
    rows = max(1, BAND_PIXELS // width)
    for top in range(0, height, rows):
        bottom = min(height, top + rows)
        data = child.stdout.read(3 * width * (bottom - top))
        if len(data) < 3 * width * (bottom - top):
            raise ChildExited(child.end())
        image.paste(Image.frombytes("RGB", (width, bottom - top), data), (0, top))
    return image
