"""What every request passes: a request id, the checks of host, origin and key, safe headers, the log and the count.

An ASGI application around another. The log has no image data, no query and no key, only the key's name.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.serve.http.service import Service
from vitreous.serve.problems import Problem

__all__ = ["Border"]

access_logger = logging.getLogger("vitreous.access")
logger = logging.getLogger("vitreous.serve")

_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LAST_RESORT = 30.0  # seconds beyond the limits after which a request is ended whatever it does
_MAX_PATH = 200  # characters of a path in the log
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_API_POLICY = "default-src 'none'; frame-ancestors 'none'"


class Border:
    """The application that a server runs.

    Args:
        app: What answers.
        service: Keys, metrics and settings.
        public: Paths that need no key, those of the page and of health checks.
        policy: The content security policy of the page.
        known: Paths that are counted under their own name.
    """

    def __init__(
        self, app: ASGIApp, service: Service, public: Collection[str], policy: str, known: Collection[str]
    ) -> None:
        self.app, self.service, self.public, self.policy = app, service, public, policy
        self.known = known
        settings = service.settings
        self._hosts = [name.lower() for name in settings.hosts or (_LOOPBACK if settings.is_loopback else ())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        await _Passage(self, scope).run(receive, send)

    def refuse(self, scope: Scope, headers: Headers) -> str:
        """Return the name of the request's key, empty without keys; raise the problem of a request that may not pass.

        A page of another origin must not use a service on this machine, neither directly (Origin) nor by a name that it
        has made to point here (Host).
        """
        host = headers.get("host", "")
        if self._hosts and _without_port(host).lower() not in self._hosts:
            names = ", ".join(self._hosts)
            raise Problem(400, f"the Host header is '{host[:100]}': this service is {names}; see --allowed-hosts")
        origin = headers.get("origin")
        if origin is not None and origin.rpartition("://")[2] != host:
            raise Problem(403, f"the page is of another origin, '{origin[:100]}': requests across origins are refused")
        if self.service.keys is None or scope["path"] in self.public:
            return ""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        owner = self.service.keys.owner(key.strip()) if key.strip() else None
        if owner is None:
            what = "the API key is not known" if key.strip() else "an API key is needed"
            raise Problem(
                401,
                f"{what}: send it as 'Authorization: Bearer KEY'",
                reason="key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return owner

    def path_label(self, path: str) -> str:
        """Return the name under which a path is counted; names that clients invent are one."""
        return path if path in self.known else "other"


class _Passage:
    """One request on its way through the border."""

    def __init__(self, border: Border, scope: Scope) -> None:
        self.border, self.scope, self.headers = border, scope, Headers(scope=scope)
        given = self.headers.get("x-request-id", "")
        self.id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        self.status, self.key, self.reason = 0, "", ""
        self.start = time.perf_counter()

    async def run(self, receive: Receive, send: Send) -> None:
        limits = self.border.service.settings.limits

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._complete(message)
            await send(message)

        self.scope.setdefault("state", {})["passage"] = self
        try:
            async with asyncio.timeout(limits.seconds + limits.body_seconds + _LAST_RESORT):
                self.key = self.border.refuse(self.scope, self.headers)
                await self.border.app(self.scope, receive, sent)
        except Problem as problem:
            self.reason = problem.reason
            await problem.response()(self.scope, receive, sent)
        except Exception as error:
            logger.error("request %s: %s: %s", self.id, type(error).__name__, error)
            if not self.status:
                failed = Problem(500, f"the request failed, its id is {self.id}: the service's log has the reason")
                await failed.response()(self.scope, receive, sent)
        finally:
            self._account()

    def _complete(self, message: Message) -> None:
        self.status = message["status"]
        headers = MutableHeaders(scope=message)
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)
        is_page = self.scope["path"] in self.border.public and "html" in headers.get("content-type", "")
        headers.setdefault("Content-Security-Policy", self.border.policy if is_page else _API_POLICY)
        headers["X-Request-ID"] = self.id

    def _account(self) -> None:
        seconds = time.perf_counter() - self.start
        metrics, path = self.border.service.metrics, self.border.path_label(self.scope["path"])
        metrics.requests.labels(path, str(self.status or 499)).inc()
        metrics.seconds.labels(path).observe(seconds)
        if self.reason:
            metrics.rejections.labels(self.reason).inc()
        if self.border.service.settings.access_log:
            access_logger.info("%s", json.dumps(self._record(seconds)))

    def _record(self, seconds: float) -> dict[str, Any]:
        client = self.scope.get("client")
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": self.id,
            "client": client[0] if client else None,
            "method": self.scope["method"],
            "path": self.scope["path"][:_MAX_PATH],
            "status": self.status or 499,
            "ms": round(1000 * seconds, 1),
            **({"key": self.key} if self.key else {}),
        }


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host
