"""The page at `/`: the files of :mod:`vitreous.web`, and a short page without scripts where that is absent."""

from __future__ import annotations

import importlib
import mimetypes

__all__ = ["POLICY", "page_files"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy of the page."""

_PLAIN = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Vitreous</title>
<h1>Vitreous</h1>
<p>This service classifies images. Images are sent to this server and are not stored.</p>
<pre>curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/v1/predict</pre>
<p><a href="openapi.json">The interface as OpenAPI</a></p>
</html>
"""


def page_files() -> dict[str, tuple[str, bytes]]:
    """Return media type and content of each file of the page by its path, such as ``/`` and ``/app.js``."""
    try:
        files: dict[str, bytes] = importlib.import_module("vitreous.web").service_files()
    except (ImportError, AttributeError):
        files = {"index.html": _PLAIN}
    found = {}
    for name, content in files.items():
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        kind = "text/javascript" if name.endswith((".js", ".mjs")) else kind
        path = "/" if name == "index.html" else f"/{name.lstrip('/')}"
        found[path] = (f"{kind}; charset=utf-8" if kind.startswith("text/") else kind, content)
    return found
