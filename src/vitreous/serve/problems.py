"""Errors as a client sees them: ``application/problem+json`` (RFC 9457), with the status, the reason and the remedy."""

from __future__ import annotations

import http
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from vitreous.files.text import printable

__all__ = ["MEDIA_TYPE", "Problem", "problem_response"]

MEDIA_TYPE = "application/problem+json"
"""The media type of errors (RFC 9457)."""

_MAX_DETAIL = 1000  # characters


class Problem(Exception):  # noqa: N818 - an answer, not a mistake
    """A request that is refused.

    Args:
        status: The status of HTTP.
        detail: Value, limit and remedy, in one line.
        retry_after: Seconds after which the same request may succeed.
        reason: A short word for the count of rejections, such as ``queue``.
        headers: Further headers.
        more: Further members of the document.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        retry_after: int | None = None,
        reason: str = "",
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.reason = status, printable(detail, _MAX_DETAIL), reason
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, retry_after))
        self.more = dict(more or {})

    def response(self) -> JSONResponse:
        """Return the answer."""
        return problem_response(self.status, self.detail, self.headers, self.more)


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None, more: Mapping[str, Any] | None = None
) -> JSONResponse:
    """Return an answer with a problem document."""
    try:
        title = http.HTTPStatus(status).phrase
    except ValueError:  # 499, a client that has gone
        title = "Client Closed Request"
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail, **(more or {})}
    return JSONResponse(document, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)
