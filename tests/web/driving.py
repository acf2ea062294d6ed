"""Drives the page in a headless Chromium: files that are chosen, dropped or pasted, and what is shown."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from browser import Browser, wait


def visit(view: Browser, url: str, seconds: float = 60) -> None:
    """Open an address and wait until the classifier is ready, or has failed."""
    view.call("Page.navigate", url=url)
    wait(view, "document.documentElement.dataset.state ?? ''", seconds)


def promised(view: Browser, expression: str) -> Any:
    """Evaluate and wait for the promise."""
    found = view.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
    assert "exceptionDetails" not in found, found
    return found["result"].get("value")


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
