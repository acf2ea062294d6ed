"""The process that opens files for an audit and answers requests about them.

It is a process of its own, so that a file that hangs, crashes or starves a decoder costs that file and no more:
:mod:`vitreous.audit.watch` starts it, and another one after it.
"""

from __future__ import annotations

import base64
import dataclasses
import time
from typing import IO, Any

from PIL import Image

from vitreous.audit.look import THUMB, Look, look, pixels_digest, seen, small_jpeg
from vitreous.data.images.content import Content
from vitreous.data.images.reading import watched_already
from vitreous.data.images.watched.child import send
from vitreous.data.images.watched.worker import serve

__all__ = ["SECONDS", "answer", "main"]

SECONDS = 5
"""Of processor time that all work on one file may take; decoding alone has less, see `vitreous.data.images.watched`."""


def answer(what: str, path: str) -> Any:
    """Answer a request: a look, as a dictionary; the digest of the pixels; or a small JPEG, in base 64.

    Args:
        what: `look`, `pixels` or `shown`.
        path: The file.
    """
    if what == "pixels":
        return pixels_digest(path)
    if what == "shown":
        return base64.b64encode(small_jpeg(path)).decode("ascii")
    try:
        found = dataclasses.asdict(look(path))
    except Exception as error:  # whatever a decoder meets that nobody foresaw is about this file, and no other
        found = dataclasses.asdict(Look(f"cannot be decoded: {type(error).__name__}: {error}"))
    return found | {"thumb": base64.b64encode(found["thumb"]).decode("ascii")}


def main() -> None:
    """Answer requests until there are no more."""
    seen(Image.new("RGB", (THUMB, THUMB)))  # loads the libraries before the clock of the first file runs
    watched_already()
    serve(_reply)


def _reply(request: Any, _: Content, output: IO[bytes]) -> None:
    _limit()
    send(output, answer(*request))


def _limit() -> None:
    """Have the system end this process after SECONDS more of processor time."""
    try:
        import resource
    except ImportError:  # Windows: the watcher's clock is all there is
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS, hard))


if __name__ == "__main__":
    main()
