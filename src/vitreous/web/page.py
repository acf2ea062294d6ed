"""Puts the page together from its parts in ``page/``: for the service, and with a model for the web export.

Scripts are joined to one module, so that a page has one file or one checksum of code, and needs no build step.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from vitreous import __version__
from vitreous.files.text import html_text
from vitreous.web.runtime import manifest

__all__ = ["FILES_POLICY", "INLINE_POLICY", "SERVICE_POLICY", "local_page", "service_files"]

_SHARED_SCRIPTS = ("pixels.js", "placement.js", "colours.js", "camera.js")
_WORKER_SCRIPTS = ("pixels.js", "worker.js")

_NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; media-src blob:"

SERVICE_POLICY = f"{_NOTHING}; script-src 'self'; style-src 'self'; connect-src 'self'"
"""Content security policy of the service's page."""

FILES_POLICY = f"{_NOTHING}; connect-src 'self'"
"""That of a page whose model lies in files beside it; checksums of script and style are added."""

INLINE_POLICY = f"{_NOTHING}; connect-src 'none'"
"""That of a page that has everything inside: it cannot send or fetch anything."""


def service_files(title: str = "Image classifier") -> dict[str, bytes]:
    """Return the page that the service shows, by path relative to it; ``index.html`` is the page itself.

    It speaks to ``v1/`` beside it, and shows the model that ``?model=`` names.
    """
    links = '<link rel="stylesheet" href="page.css">\n<script type="module" src="page.js"></script>'
    body = _body(title, _read("snippets.html") + _footer(), _read("key.html"))
    page = _frame(title, _policy(SERVICE_POLICY) + links, body, {"model": {}})
    return {
        "index.html": page.encode(),
        "page.css": _style().encode(),
        "page.js": _script("remote.js", "snippets.js").encode(),
    }


def local_page(title: str, model: Mapping[str, Any], inside: Mapping[str, bytes] | None = None) -> bytes:
    """Return the page of the web export.

    Args:
        title: Untrusted text.
        model: What the scripts know of the model: ``classes``, ``pipeline``, ``files`` by role and so on.
        inside: Contents of files by role, to be stored in the page. None: they lie beside it.
    """
    script, style = _script("local.js"), _style()
    policy = FILES_POLICY if inside is None else INLINE_POLICY
    # The worker starts from a blob, so that this policy holds in it too; ONNX Runtime's module is a blob as well.
    policy += (
        f"; script-src '{_digest(script)}' 'wasm-unsafe-eval' blob:; worker-src blob:; style-src '{_digest(style)}'"
    )
    stored = "".join(
        f'<script type="text/plain" id="file-{role}">{base64.b64encode(content).decode("ascii")}</script>\n'
        for role, content in (inside or {}).items()
    )
    worker = f'<script type="text/plain" id="worker">{"".join(map(_read, _WORKER_SCRIPTS))}</script>\n'
    code = f'{worker}{stored}<script type="module">{script}</script>\n'
    body = _body(
        title, _footer(f"It runs in this browser by ONNX Runtime Web {manifest()['version']} (MIT licence)."), ""
    )
    return _frame(title, f"{_policy(policy)}<style>{style}</style>", body, {"model": dict(model)}, code).encode()


def _policy(policy: str) -> str:
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'


def _frame(title: str, head: str, body: str, data: Mapping[str, Any], code: str = "") -> str:
    """Return the document. ``<`` does not occur in the data, so that no class name can end its element."""
    stored = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'{head}\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<link rel="icon" href="data:,">\n<title>{html_text(title)}</title>\n</head>\n<body>\n{body}'
        f'<script type="application/json" id="data">{stored}</script>\n{code}</body>\n</html>\n'
    )


def _body(title: str, about: str, dialogs: str) -> str:
    parts = {"{title}": html_text(title), "{about}": about, "{dialogs}": dialogs}
    body = _read("page.html")
    for name, content in parts.items():
        body = body.replace(name, content, 1)
    return body


def _footer(more: str = "") -> str:
    return f"<footer>Made with Vitreous {__version__}. {more}</footer>\n"


def _style() -> str:
    return files("vitreous.web").joinpath("shared.css").read_text("utf-8") + _read("page.css")


def _script(*backend: str) -> str:
    names = (*_SHARED_SCRIPTS, "card.js", *backend, "page.js")
    return "".join(map(_read, names))


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}"


def _read(name: str) -> str:
    return files("vitreous.web").joinpath("page", name).read_text("utf-8")
