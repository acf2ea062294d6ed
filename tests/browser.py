"""A headless Chromium, driven over a pipe by the DevTools protocol: no port, no driver, no library.

Beside it a host of static files, for pages that may not be opened as files.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import itertools
import json
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PROGRAM = next(filter(None, map(shutil.which, _NAMES)), "")


class Browser:
    """One page; `events` has what the browser reported."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._buffer = write, read, b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._pointer = 0.0, 0.0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next(30)).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready = select.select([self._read], [], [], max(0, end - time.monotonic()))[0]
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        whole, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(whole)

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(60))

    def js(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def key(self, name: str) -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[
            name
        ]
        text = {"text": "\r"} if name == "Enter" else {}
        for kind, more in (("keyDown" if text else "rawKeyDown", text), ("keyUp", {})):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **more)

    def click(self, selector: str) -> None:
        """Press and release the left button in the middle of an element."""
        self.hover(selector, 0.5, 0.5)
        for kind in ("mousePressed", "mouseReleased"):
            x, y = self._pointer
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def view(self, width: int, theme: str) -> None:
        """Make the window so many CSS pixels wide, and prefer the `light` or `dark` theme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def pdf(self) -> bytes:
        """Print the page on A4 with its outline."""
        options = {"paperWidth": 8.27, "paperHeight": 11.69, "generateDocumentOutline": True}
        return base64.b64decode(self.call("Page.printToPDF", **options)["data"])

    def unnamed_images(self) -> list[dict[str, Any]]:
        """Return images and figures that assistive technology announces without a name."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        images = [
            node for node in nodes if node.get("role", {}).get("value") in ("image", "img") and not node["ignored"]
        ]
        assert images
        return [node for node in images if not node.get("name", {}).get("value")]

    def hover(self, selector: str, across: float, down: float) -> None:
        """Move the pointer to a place in an element, given in shares of its size."""
        place = f"(() => {{ const e = document.querySelector('{selector}'); e.scrollIntoView({{block: 'center'}});"
        box = self.js(place + " const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height] })()")
        x, y = box[0] + across * box[2], box[1] + down * box[3]
        self._pointer = x, y
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and uncaught exceptions."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event) for event in self.events if event.get("method") in kinds]

    @property
    def requests(self) -> list[str]:
        sent = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [url for event in sent if not (url := event["params"]["request"]["url"]).startswith("data:")]


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with its profile in a folder; skip the test where none is installed."""
    if not _PROGRAM:
        pytest.skip("no Chromium on this machine: chromium, chromium-browser and google-chrome are missing")
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()

    script = f'exec 3<&{their_read} 4>&{their_write}; exec "$0" "$@"'
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    command = ["bash", "-c", script, _PROGRAM, *flags, f"--user-data-dir={folder}", "--remote-debugging-pipe"]
    # Its own children keep the output open for a moment after it ends, so output goes to a file.
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(
            command, pass_fds=(their_read, their_write), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    os.close(their_read)
    os.close(their_write)
    try:
        yield Browser(our_write, our_read)
    finally:
        os.close(our_write)
        os.close(our_read)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait(view: Browser, expression: str, seconds: float = 60) -> Any:
    """Evaluate until the value is true, and return it."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(AssertionError):  # in between two documents
            if value := view.js(expression):
                return value
        assert time.monotonic() < end, f"not within {seconds} s: {expression}; {state(view)}"
        time.sleep(0.05)


def state(view: Browser) -> str:
    """What the page says, for messages."""
    return str(view.js("document.body?.innerText.slice(0, 600)"))


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
