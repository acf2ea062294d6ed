"""The process that opens files for an audit; :mod:`vitreous.audit.watch` starts and replaces it.

It is separate so that a file that hangs, crashes or exhausts a decoder costs only that file.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import time
from typing import IO, Any

from PIL import Image

from vitreous.audit.look import THUMB, Inspection, fingerprint, look, pixels_digest, small_jpeg
from vitreous.data.images.content import Content
from vitreous.data.images.reading import declare_watched
from vitreous.data.images.watched.child import send
from vitreous.data.images.watched.worker import serve

__all__ = ["SECONDS", "answer", "main"]

SECONDS = 5
"""Limit of processor time for one file; decoding alone has a lower one, see `vitreous.data.images.watched`."""


def answer(action: str, path: str | bytes) -> Any:
    """Answer a request: `look` inspects and returns a dictionary, `pixels` a digest, and `thumbnail` a base64 JPEG.

    The path is that of a file, or the bytes of one that lies in a shard.
    """
    if action == "pixels":
        return pixels_digest(path)
    if action == "thumbnail":
        return base64.b64encode(small_jpeg(path)).decode("ascii")
    try:
        result = dataclasses.asdict(look(path))
    except Exception as error:  # an unforeseen decoder error concerns only this file
        result = dataclasses.asdict(Inspection(f"cannot be decoded: {type(error).__name__}: {error}"))
    return result | {"thumb": base64.b64encode(result["thumb"]).decode("ascii")}


def main() -> None:
    """Answer requests until the input ends."""
    fingerprint(Image.new("RGB", (THUMB, THUMB)))  # imports the libraries before the first file is timed
    declare_watched()
    serve(_reply)


def _reply(request: Any, content: Content, output: IO[bytes]) -> None:
    """Answer a request; the system ends this process after SECONDS more of processor time."""
    with contextlib.suppress(ImportError):  # Windows has no limits: only the watching thread limits the time
        import resource

        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS, hard))
    action, path = request
    send(output, answer(action, content.data or path))


if __name__ == "__main__":
    main()
