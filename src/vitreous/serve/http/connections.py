"""Bounds on sockets that a server of HTTP needs and uvicorn does not have.

A connection that sends no complete head of a request in time is closed, and one whose client does not read the answer
is broken off. Beyond a number of connections, the oldest idle one is closed for the new one: clients that only hold
connections cannot keep others out.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from vitreous.serve.problems import MEDIA_TYPE
from vitreous.serve.settings import Limits

__all__ = ["Connections", "GuardedProtocol", "guarded_protocol", "raise_descriptor_limit"]

_SWEEP = 1.0  # seconds between looks at all connections
_OTHER_DESCRIPTORS = 64  # of the process, besides connections


class Connections:
    """All connections of a server, the oldest first."""

    def __init__(self, limits: Limits, most: int) -> None:
        self.limits, self.most = limits, most
        self.open: dict[GuardedProtocol, None] = {}

    def admit(self, connection: GuardedProtocol) -> None:
        """Take a new connection, in place of the oldest idle one if there are too many."""
        self.open[connection] = None
        if len(self.open) <= self.most:
            return
        idle = next((other for other in self.open if other.is_idle and other is not connection), connection)
        self.forget(idle)
        idle.transport.abort()

    def forget(self, connection: GuardedProtocol) -> None:
        """Leave a connection out."""
        self.open.pop(connection, None)

    async def watch(self) -> None:
        """Break off connections that keep the service waiting, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP)
            now = time.monotonic()
            for connection in list(self.open):
                if connection.is_stuck(now, self.limits):
                    connection.transport.abort()


class GuardedProtocol(H11Protocol):
    """A connection that knows since when it waits for its client."""

    guard: Connections  # set by `guarded_protocol`

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        self._idle_since = time.monotonic()
        self._unread, self._unread_since = 0, 0.0
        super().connection_made(transport)
        self.guard.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self.guard.forget(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._idle_since = time.monotonic()
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def is_stuck(self, now: float, limits: Limits) -> bool:
        """Return whether the client has sent no complete head of a request, or read nothing, for too long."""
        patience = limits.header_seconds if self.cycle is None else limits.idle_seconds
        if self.is_idle and now - self._idle_since > patience:
            return True
        unread = self.transport.get_write_buffer_size()
        if not unread or unread != self._unread:
            self._unread, self._unread_since = unread, now
        return bool(unread) and now - self._unread_since > limits.idle_seconds

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the form of all errors, and close."""
        document = {"type": "about:blank", "title": "Bad Request", "status": 400, "detail": msg}
        body = json.dumps(document).encode("ascii")
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(head.encode("ascii") + b"Connection: close\r\n\r\n" + body)
        self.transport.close()


def guarded_protocol(connections: Connections) -> type[GuardedProtocol]:
    """Return the class of a server's connections."""
    return type("Connection", (GuardedProtocol,), {"guard": connections})


def raise_descriptor_limit(connections: int) -> int:
    """Let this process open so many connections, as far as the system permits; return how many it may open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else max(8, min(connections, soft - _OTHER_DESCRIPTORS))
