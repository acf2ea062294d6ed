"""This process's watched processes: started when a file first needs one, kept, and replaced when a file ends one."""

from __future__ import annotations

import atexit
import os
import threading

from PIL import Image

from vitreous.data.images.content import Content
from vitreous.data.images.decoding import BAND, ImageFacts
from vitreous.data.images.watched.child import Child, Gone
from vitreous.data.images.watched.limits import SECONDS, reason_of

__all__ = ["STOPS", "decode_watched"]

STOPS = "its decoder "
"""How a reason begins where a process did not survive the file."""

_COMMAND = ("-m", "vitreous.data.images.watched.worker")
_MOST = 4  # processes; each takes about 40 MB
_WALL = 30.0 if os.name == "posix" else float(SECONDS)  # seconds; where the system has no clock for them, this is it


class _Pool:
    """Processes that wait, and how many there may be."""

    def __init__(self) -> None:
        self.slots = threading.BoundedSemaphore(max(1, min(_MOST, os.cpu_count() or 1)))
        self.idle: list[Child] = []

    def close(self) -> None:
        """End those that wait."""
        while self.idle:
            self.idle.pop().end()


_pool = _Pool()


def _forget() -> None:
    """In a fork: the processes are the parent's, and so are the locks."""
    global _pool  # noqa: PLW0603 - a fork has to leave what it inherits
    _inherited.append(_pool)
    _pool = _Pool()


_inherited: list[_Pool] = []  # not to be collected: that would wait for processes of another parent
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@atexit.register
def _end() -> None:
    """End the processes of this one, which is not the pool of the import where this is a fork."""
    _pool.close()


def decode_watched(
    content: Content, form: str, least: tuple[int, int] | None = None, pixels: bool = True
) -> tuple[ImageFacts, Image.Image | None]:
    """Decode a file's bytes in a process with limits of time and memory.

    Args:
        content: The bytes, which are let go.
        form: Its format.
        least: As :func:`vitreous.data.images.decoding.decode` has it.
        pixels: Whether the image is wanted, and not only what is seen.

    Returns:
        As :func:`vitreous.data.images.decoding.decode`.
    """
    pool = _pool
    with pool.slots:
        try:
            child = pool.idle.pop() if pool.idle else Child(_COMMAND)
        except OSError as error:
            return ImageFacts(f"cannot be decoded: no process could be started for it: {error}", form), None
        late = threading.Event()
        timer = threading.Timer(_WALL, _too_late, (child, late))
        timer.daemon = True
        timer.start()
        try:
            request = {"form": form, "least": least, "pixels": pixels}
            answer, size = child.ask(request, content.handed_over(), len(content))
            facts = ImageFacts(**(answer["facts"] | {"size": tuple(answer["facts"]["size"])}))
            image = _received(child, tuple(answer["size"])) if size else None
        except Gone as gone:
            return ImageFacts(STOPS + reason_of(gone.code, late.is_set()), form), None
        except BaseException:
            child.end()
            raise
        finally:
            timer.cancel()
        pool.idle.append(child)
        return facts, image


def _too_late(child: Child, late: threading.Event) -> None:
    late.set()
    child.kill()


def _received(child: Child, size: tuple[int, int]) -> Image.Image:
    """Read an image's rows as they come, into the image."""
    width, height = size
    image = Image.new("RGB", size)
    rows = max(1, BAND // width)
    for top in range(0, height, rows):
        bottom = min(height, top + rows)
        data = child.stdout.read(3 * width * (bottom - top))
        if len(data) < 3 * width * (bottom - top):
            raise Gone(child.end())
        image.paste(Image.frombytes("RGB", (width, bottom - top), data), (0, top))
    return image
