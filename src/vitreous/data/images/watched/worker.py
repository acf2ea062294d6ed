"""The decoder process that :mod:`vitreous.data.images.watched.pool` starts."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import IO, Any

from PIL import AvifImagePlugin

from vitreous.data.images.content import Content
from vitreous.data.images.decoding import decode, iter_row_bytes
from vitreous.data.images.watched.child import READY, receive, send
from vitreous.data.images.watched.limits import cpu_time_limit, limit_memory

__all__ = ["serve"]


def serve(answer: Callable[[Any, Content, IO[bytes]], None]) -> None:
    """Answer requests until standard input ends; ``answer`` takes the request, its bytes and the stream to write to."""
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # each thread reserves address space, which the memory limit counts
    requests, output = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not corrupt the answers
    output.write(READY)
    output.flush()
    limit_memory()
    while (message := receive(requests)) is not None:
        request, size = message
        answer(request, Content(requests.read(size)), output)


def _decode(request: Any, content: Content, output: IO[bytes]) -> None:
    min_size = tuple(request["min_size"]) if request["min_size"] else None
    with cpu_time_limit():
        facts, image = decode(content, request["format"], min_size)
    answer = {"facts": dataclasses.asdict(facts), "size": image.size if image is not None else (0, 0)}
    pixels = () if image is None or not request["pixels"] else (iter_row_bytes(image), 3 * image.width * image.height)
    send(output, answer, *pixels)


if __name__ == "__main__":
    serve(_decode)
