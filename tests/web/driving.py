"""Drives the page in a headless Chromium: static hosts, files that are chosen, dropped or pasted, and what is shown."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from browser import Browser


class _Quiet(http.server.SimpleHTTPRequestHandler):
    headers_sent: Mapping[str, str] = {}

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def end_headers(self) -> None:
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        super().end_headers()


@contextlib.contextmanager
def static_host(folder: Path, headers: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve a folder on this machine; gives its address."""
    handler = type("Handler", (_Quiet,), {"headers_sent": headers or {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def visit(view: Browser, url: str, seconds: float = 60) -> None:
    """Open an address and wait until the classifier is ready, or has failed."""
    view.call("Page.navigate", url=url)
    wait(view, "document.documentElement.dataset.state ?? ''", seconds)


def wait(view: Browser, expression: str, seconds: float = 60) -> Any:
    """Evaluate until the value is true, and return it."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(AssertionError):  # in between two documents
            if value := view.js(expression):
                return value
        assert time.monotonic() < end, f"not within {seconds} s: {expression}; {state(view)}"
        time.sleep(0.05)


def promised(view: Browser, expression: str) -> Any:
    """Evaluate and wait for the promise."""
    found = view.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
    assert "exceptionDetails" not in found, found
    return found["result"].get("value")


def state(view: Browser) -> str:
    """What the page says, for messages."""
    return str(view.js("document.body?.innerText.slice(0, 600)"))


def choose(view: Browser, *files: Path) -> None:
    """Choose files in the dialog of the button."""
    root = view.call("DOM.getDocument")["root"]["nodeId"]
    node = view.call("DOM.querySelector", nodeId=root, selector="#files")["nodeId"]
    view.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])


def drop(view: Browser, *files: Path) -> None:
    """Drop files on the page, as from a file manager."""
    content = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        view.call("Input.dispatchDragEvent", type=kind, x=200, y=200, data=content)


def paste(view: Browser, origin: str, png: bytes) -> None:
    """Put an image on the clipboard, and press Ctrl+V."""
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    session, view._session = view._session, None
    view.call("Browser.grantPermissions", origin=origin.rstrip("/"), permissions=permissions)
    view._session = session
    text = base64.b64encode(png).decode()
    promised(
        view,
        f"navigator.clipboard.write([new ClipboardItem({{'image/png': new Blob([Uint8Array.from(atob('{text}'),"
        " (c) => c.charCodeAt(0))], {type: 'image/png'})})])",
    )
    view.call(
        "Input.dispatchKeyEvent",
        type="rawKeyDown",
        key="v",
        code="KeyV",
        modifiers=2,
        windowsVirtualKeyCode=86,
        commands=["paste"],
    )
    view.call("Input.dispatchKeyEvent", type="keyUp", key="v", code="KeyV", modifiers=2, windowsVirtualKeyCode=86)


def results(view: Browser, count: int, seconds: float = 120) -> list[dict[str, Any]]:
    """Wait until so many images are classified or refused, and return what their cards show."""
    states = "[...document.querySelectorAll('#results > li')].map(each => each.dataset.state)"
    wait(view, f"({states}).filter(each => each === 'done' || each === 'failed').length === {count}", seconds)
    return view.js(
        "[...document.querySelectorAll('#results > li')].map(card => ({"
        "state: card.dataset.state, name: card.querySelector('h3').innerText,"
        "label: card.querySelector('.label').innerText, failure: card.querySelector('.failure').textContent,"
        "unsure: !card.querySelector('.unsure').hidden, set: card.querySelector('.set').textContent,"
        "top: [...card.querySelectorAll('tbody tr')].map(row => [row.cells[0].innerText, row.cells[1].innerText])}))"
    )


def picture(view: Browser, file: Path, full: bool = True) -> None:
    """Save what the page looks like."""
    shot = view.call("Page.captureScreenshot", captureBeyondViewport=full)
    file.write_bytes(base64.b64decode(shot["data"]))
