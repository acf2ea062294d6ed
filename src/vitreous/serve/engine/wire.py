"""Frames between the HTTP process and an engine process: JSON, then bytes such as an image file.

A frame is the length of the JSON and that of the bytes, 4 and 8 bytes, big-endian, then both.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import IO, Any

__all__ = ["pack", "read_frame", "receive"]

_LENGTHS = struct.Struct(">IQ")

Frame = tuple[dict[str, Any], bytes]


def pack(message: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return a frame."""
    text = json.dumps(message).encode("ascii")
    return b"".join((_LENGTHS.pack(len(text), len(payload)), text, payload))


def receive(stream: IO[bytes]) -> Frame | None:
    """Read a frame; None at the end of the stream."""
    head = stream.read(_LENGTHS.size)
    if len(head) < _LENGTHS.size:
        return None
    length, size = _LENGTHS.unpack(head)
    text, payload = stream.read(length), stream.read(size)
    return (json.loads(text), payload) if len(text) == length and len(payload) == size else None


async def read_frame(stream: asyncio.StreamReader) -> Frame | None:
    """Read a frame as :func:`receive` does, without blocking."""
    try:
        length, size = _LENGTHS.unpack(await stream.readexactly(_LENGTHS.size))
        return json.loads(await stream.readexactly(length)), await stream.readexactly(size) if size else b""
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
