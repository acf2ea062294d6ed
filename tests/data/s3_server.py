"""A real S3 server on loopback (moto), and a proxy before it that fails, delays and cuts off answers."""

from __future__ import annotations

import http.client
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Faults:
    """What the proxy does to every n-th request; 0 is never. It counts requests by kind and records their keys."""

    def __init__(self) -> None:
        self.refuse = self.cut = self.slow = 0
        self.seconds = 0.3
        self.refuse_all = ""  # part of a key, whose requests are all refused
        self.requests: list[tuple[str, str]] = []  # method and path
        self.lock = threading.Lock()

    def next(self, method: str, path: str) -> str:
        with self.lock:
            self.requests.append((method, path))
            n = len(self.requests)
        if self.refuse_all and self.refuse_all in path:
            return "refuse"
        return next(
            (kind for kind in ("refuse", "cut", "slow") if (every := getattr(self, kind)) and n % every == 0), ""
        )


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.faults.next(self.command, self.path)
        if fault == "slow":
            time.sleep(self.server.faults.seconds)
        if fault == "refuse":
            self._answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if self.command == "GET" and asked and self.server.remembers:
            path, first, last = self.path, int(asked[1]), int(asked[2])
            if path not in self.server.remembered:
                self.server.remembered[path] = self._ask(body, without="range")[2]
            part = self.server.remembered[path][first : last + 1]
            place = f"bytes {first}-{first + len(part) - 1}/{len(self.server.remembered[path])}"
            self._answer(206, {"Content-Range": place}, part, cut=fault == "cut")
            return
        self._answer(*self._ask(body), cut=fault == "cut")

    def _ask(self, body: bytes, without: str = "") -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=30)
        sent = {name: value for name, value in self.headers.items() if name.lower() != without}
        upstream.request(self.command, self.path, body, sent)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        headers = {k: v for k, v in answer.getheaders() if k.lower() not in ("connection", "transfer-encoding", "date")}
        return answer.status, headers, content

    def _answer(self, status: int, headers: dict[str, str], content: bytes, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        length = headers.get("Content-Length", str(len(content))) if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.wfile.flush()
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing: a client that goes away is not an error of the test."""


@contextmanager
def faulty(upstream: int, *, remembers: bool = False):
    """Yield the address of a proxy before a server at a port of this machine, and its faults.

    ``remembers`` keeps objects that are read in ranges, for measurements that the server's own time would be part of.
    """
    proxy = _Server(("127.0.0.1", 0), _Proxy)
    proxy.upstream, proxy.faults, proxy.remembers, proxy.remembered = upstream, Faults(), remembers, {}
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_address[1]}", proxy.faults
    finally:
        proxy.shutdown()
        proxy.server_close()


@contextmanager
def s3_server(*, remembers: bool = False):
    """Yield the address of the proxy, and its faults."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with faulty(server.get_host_and_port()[1], remembers=remembers) as (address, faults):
            yield address, faults
    finally:
        server.stop()
