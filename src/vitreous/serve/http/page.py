"""The page at `/`: the files of :mod:`vitreous.web`, with their media types."""

from __future__ import annotations

import mimetypes

from vitreous.web.page import SERVICE_POLICY, service_files

__all__ = ["POLICY", "page_files"]

POLICY = f"{SERVICE_POLICY}; frame-ancestors 'none'"
"""The content security policy of the page."""


def page_files() -> dict[str, tuple[str, bytes]]:
    """Return media type and content of each file of the page by its path, such as ``/`` and ``/page.js``."""
    found = {}
    for name, content in service_files().items():
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        kind = "text/javascript" if name.endswith((".js", ".mjs")) else kind
        path = "/" if name == "index.html" else f"/{name}"
        found[path] = (f"{kind}; charset=utf-8" if kind.startswith("text/") else kind, content)
    return found
