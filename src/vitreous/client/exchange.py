"""Requests to a service, repeated while it is busy or away, and what its refusals mean."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import time
import urllib.parse
import weakref
from collections.abc import Mapping
from typing import Any

from vitreous.errors import DataError, UsageError, VitreousError, first_line

__all__ = ["Exchange", "ServiceError", "UnreadableError"]

_AGAIN = (429, 503)
_LONGEST_PAUSE = 5.0  # seconds between attempts to reach a service that is away


class ServiceError(VitreousError):
    """The service cannot be reached, or does not answer; the message has its reason."""


class UnreadableError(DataError):
    """The service cannot read what was sent.

    Args:
        detail: Why.
        errors: A record for each image; empty if the request as a whole is too large.
    """

    def __init__(self, detail: str, errors: list[dict[str, Any]]) -> None:
        super().__init__(detail)
        self.errors = errors


class Exchange:
    """Requests to one service, from any number of threads; connections are used again.

    Args:
        url: The address of the service.
        key: The API key, if it needs one.
        timeout: Seconds to wait for an answer.
        patience: Seconds for which a request is repeated.

    Raises:
        UsageError: If the address is not that of an HTTP service, or the key fits no header.
    """

    def __init__(self, url: str, key: str | None, timeout: float, patience: float) -> None:
        try:
            parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port out of range, or half an IPv6 address
            is_address = False
        if not is_address:
            raise UsageError(f"'{url}' is not the address of a service: write http://host:port")
        if key and not (key.isascii() and key.isprintable()):
            raise UsageError("the API key has characters that no header can hold: give it as the service printed it")
        self.url, self.timeout, self.patience = url, timeout, patience
        self._parts = parts
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._idle: list[http.client.HTTPConnection] = []
        self._closing = weakref.finalize(self, _close_all, self._idle)  # appending and popping are atomic

    def close(self) -> None:
        """Close the connections that are not in use."""
        _close_all(self._idle)

    def request(self, method: str, path: str, query: Mapping[str, str], body: bytes = b"", kind: str = "") -> bytes:
        """Return the body of an answer.

        Raises:
            UnreadableError: If an image is refused.
            UsageError: If a parameter, the model or the key is refused.
            ServiceError: If the service does not answer in time.
        """
        target = self._parts.path.rstrip("/") + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        headers = self._headers | ({"Content-Type": kind} if kind else {})
        end = time.monotonic() + self.patience
        for attempt in itertools.count():
            try:
                status, delay, content = self._once(method, target, body, headers)
            except (OSError, http.client.HTTPException) as error:
                self.close()  # the service is another one now: the others are broken too
                pause = min(_LONGEST_PAUSE, 0.1 * 2**attempt)
                if time.monotonic() + pause > end:
                    reason = first_line(error) if str(error) else type(error).__name__
                    raise ServiceError(
                        f"the service at {self.url} does not answer, {reason}: is it running?"
                    ) from error
                time.sleep(pause)
                continue
            if status < 300:
                return content
            if status not in _AGAIN:
                raise _refusal(status, content)
            pause = delay * random.uniform(1.0, 1.3)  # clients that were refused together must not return together
            if time.monotonic() + pause > end:
                raise ServiceError(f"the service at {self.url} is busy, {_problem(content)['detail']}")
            time.sleep(pause)
        raise AssertionError("the loop returns or raises")

    def _once(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, float, bytes]:
        """Send a request; return the status, Retry-After in seconds and the body."""
        try:
            connection = self._idle.pop()
        except IndexError:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            connection = kind(self._parts.hostname or "", self._parts.port, timeout=self.timeout)
        try:
            connection.request(method, target, body or None, dict(headers))
            answer = connection.getresponse()
            delay = answer.getheader("Retry-After", "1")
            found = answer.status, float(delay) if delay.isdecimal() else 1.0, answer.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return found


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _problem(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if isinstance(found, dict) and "detail" in found:
        return found
    return {"detail": content[:200].decode("utf-8", "replace")}


def _refusal(status: int, content: bytes) -> VitreousError:
    document = _problem(content)
    detail = str(document["detail"])
    if status == 413 or "errors" in document:
        return UnreadableError(detail, document.get("errors", []))
    return UsageError(detail) if 400 <= status < 500 else ServiceError(f"status {status}: {detail}")
