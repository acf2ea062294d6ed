"""The process that decodes for :mod:`vitreous.data.images.watched.pool`."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import IO, Any

from PIL import AvifImagePlugin

from vitreous.data.images.content import Content
from vitreous.data.images.decoding import decode, rows_of
from vitreous.data.images.watched.child import READY, receive, send
from vitreous.data.images.watched.limits import bound_memory, bounded_time

__all__ = ["main", "serve"]


def serve(answer: Callable[[Any, Content, IO[bytes]], None]) -> None:
    """Answer requests until there are no more.

    Args:
        answer: Called with the request, its data and the stream to answer on.
    """
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # the address space of more threads would count against the limit
    requests, output = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a decoder's library prints must not be taken for an answer
    output.write(READY)
    output.flush()
    bound_memory()
    while (request := receive(requests)) is not None:
        said, size = request
        answer(said, Content(requests.read(size)), output)


def main() -> None:
    """Decode what is sent."""
    serve(_decoded)


def _decoded(request: Any, content: Content, output: IO[bytes]) -> None:
    """Answer with what was seen, and the pixels where they are asked for."""
    least = tuple(request["least"]) if request["least"] else None
    with bounded_time():
        facts, image = decode(content, request["form"], least)
    said = {"facts": dataclasses.asdict(facts), "size": image.size if image is not None else (0, 0)}
    if image is None or not request["pixels"]:
        send(output, said)
    else:
        send(output, said, rows_of(image), 3 * image.width * image.height)


if __name__ == "__main__":
    main()
