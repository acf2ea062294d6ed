"""What the proxies of Ray Serve answer when no replica does, in the form of all errors of a service.

Ray Serve answers a request whose replica was lost with 500, although another replica can answer the same request. Here
it is sent once more, and gets 503 after a second time, as a service does with the jobs of an engine that died. Paths of
other applications on the same cluster are left alone.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.serve.http.page import page_files
from vitreous.serve.problems import MEDIA_TYPE, Problem

__all__ = ["IMPORT_PATH", "ProxyAnswers", "middlewares"]

IMPORT_PATH = f"{__name__}.middlewares"
"""How Ray Serve finds :func:`middlewares`."""

_TRIES = 2  # replicas that a request may meet
_RETRY = 2  # seconds after which to repeat a request
_LOST = "the replica was lost while it computed the answer: try again"
_PROBLEMS = {
    404: (503, "no replica has started yet, or the service has ended: try again"),
    408: (503, "no replica has answered in time: try again later"),
    429: (429, "all replicas have as many requests as they take: try again later"),
    503: (503, "no replica answers: try again"),
}
_CONTROLS = (b"x-request-timeout-seconds", b"x-request-disconnect-disabled")  # by which a client could lift limits
_PATHS = ("/v1/", "/healthz", "/readyz", "/metrics", "/openapi.json")


def middlewares() -> list[Middleware]:
    """Return what Ray Serve puts around a proxy."""
    return [Middleware(ProxyAnswers)]


class ProxyAnswers:
    """A proxy whose own errors are documents of RFC 9457, with Retry-After."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._files = frozenset(page_files())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and answer it if the proxy has no answer of a replica."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if not self._is_ours(scope["path"]):
            await self.app(scope, receive, _Answer(send, is_ours=False).send)
            return
        kept = [pair for pair in scope["headers"] if pair[0].lower() not in _CONTROLS]
        request, answer = _Request(receive), _Answer(send)
        for _ in range(_TRIES):
            sent = {**scope, "headers": [*kept]}
            await self.app(sent, request.from_start(), answer.send)
            if answer.is_sent or answer.refused or request.is_cancelled:
                break
        if not answer.is_sent:
            status, detail = _PROBLEMS.get(answer.refused, (503, _LOST))
            number = Headers(scope=sent).get("x-request-id")  # the proxy has given it one
            problem = Problem(status, detail, retry_after=_RETRY, headers={"X-Request-ID": number} if number else {})
            await problem.response()(scope, receive, send)

    def _is_ours(self, path: str) -> bool:
        return path.startswith(_PATHS) or path in self._files


class _Request:
    """The messages of a request, which can be received again from the first one."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has gone."""
        return any(message["type"] == "http.disconnect" for message in self._messages[-1:])

    def from_start(self) -> Receive:
        """Return what receives all messages."""
        position = 0

        async def receive() -> Message:
            nonlocal position
            if position == len(self._messages):
                self._messages.append(await self._receive())
            position += 1
            return self._messages[position - 1]

        return receive


class _Answer:
    """An answer on its way: that of a replica is sent, with one request id; the proxy's own is kept back."""

    def __init__(self, send: Send, is_ours: bool = True) -> None:
        self._send, self._is_ours = send, is_ours
        self.is_sent = False
        self.refused = 0  # the status of the proxy's own answer

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            kind = headers.get("content-type", "")
            if self._is_ours and message["status"] >= 400 and not kind.startswith(MEDIA_TYPE):
                self.refused = message["status"]
            message = {**message, "headers": _without_second_id(message["headers"])}
        if self.refused:
            return
        self.is_sent = True
        await self._send(message)


def _without_second_id(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Leave out the request id that the proxy adds to the replica's."""
    ids = [position for position, (name, _) in enumerate(headers) if name.lower() == b"x-request-id"]
    return [pair for position, pair in enumerate(headers) if position not in ids[1:]]
