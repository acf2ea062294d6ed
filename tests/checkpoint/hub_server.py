"""A local server with the part of the huggingface.co API that the hub client uses for a model."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import file_download
from huggingface_hub.utils import enable_progress_bars

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".npz")  # files that the hub stores in LFS and names by SHA-256


def commit_of(revision: str) -> str:
    """Return the commit that a revision stands for: itself, or the one of all branches."""
    return revision if re.fullmatch("[0-9a-f]{40}", revision) else COMMIT


@functools.cache
def etag(path: Path, changed: int) -> str:
    """Return the hash by which the hub names a file; `changed` is part of the key of the cache."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256" if path.suffix in LARGE else "sha1").hexdigest()


class Hub(ThreadingHTTPServer):
    """Serves ``root/<owner>/<name>/<files>``.

    ``asked`` records every request, ``spoil`` corrupts large files, ``cut`` truncates them, ``slow`` takes seconds to
    send them, ``resumes`` answers requests for the rest of a file, as the hub does, and ``failing`` maps ids to a
    status and an error code.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.root, self.asked, self.spoil, self.cut = root, list[str](), False, False
        self.slow = self.resumes = False
        self.failing: dict[str, tuple[int, str]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *arguments: object) -> None:
        """Do not log."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        whole = urlsplit(self.path).path.strip("/")
        path = unquote(whole)
        self.server.asked.append(f"{self.command} {path}")
        parts = [unquote(part) for part in whole.split("/")]  # a revision may have slashes of its own
        for name, (status, code) in self.server.failing.items():
            if name in path:
                return self._refuse(code, status)
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self._model("/".join(parts[2:4]), parts[4:], body)
        if len(parts) >= 5 and parts[2] == "resolve":
            return self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), body)
        return self._refuse("RepoNotFound")

    def _model(self, name: str, rest: list[str], body: bool) -> None:
        folder = self.server.root / name
        if not folder.is_dir():
            return self._refuse("RepoNotFound")
        revision = rest[1] if len(rest) > 1 else "main"
        if revision != "main" and not re.fullmatch("[0-9a-f]{40}|refs/pr/[0-9]+", revision):
            return self._refuse("RevisionNotFound")
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        if rest[:1] == ["tree"]:
            listing = [{"type": "file", "path": f, "size": (folder / f).stat().st_size, "oid": "0" * 40} for f in files]
            return self._send(json.dumps(listing).encode(), {"Content-Type": "application/json"}, body)
        document = {"id": name, "modelId": name, "sha": commit_of(revision), "private": False, "tags": [],
                    "downloads": 0, "siblings": [{"rfilename": f} for f in files]}  # fmt: skip
        return self._send(json.dumps(document).encode(), {"Content-Type": "application/json"}, body)

    def _file(self, name: str, revision: str, file: str, body: bool) -> None:
        path = self.server.root / name / file
        if not path.is_file():
            return self._refuse("EntryNotFound", headers={"X-Repo-Commit": commit_of(revision)})
        content = path.read_bytes()
        digest = etag(path, path.stat().st_mtime_ns)
        if self.server.spoil and path.suffix in LARGE:
            content = content[:-1] + bytes([content[-1] ^ 1])
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": commit_of(revision), "Accept-Ranges": "bytes"}
        asked = re.fullmatch("bytes=([0-9]+)-", self.headers.get("Range", ""))
        if self.server.resumes and asked is not None:
            first, size = int(asked[1]), len(content)
            return self._send(content[first:], headers | {"Content-Range": f"bytes {first}-{size - 1}/{size}"}, body)
        return self._send(content, headers, body)

    def _send(self, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(206 if "Content-Range" in headers else 200)
        for key, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(key, value)
        self.end_headers()
        if body and self.server.cut and len(content) > 10_000:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif body and self.server.slow and len(content) > 10_000:
            with contextlib.suppress(OSError):  # the client has gone
                for first in range(0, len(content), len(content) // 100):
                    self.wfile.write(content[first : first + len(content) // 100])
                    time.sleep(0.2)
        elif body:
            self.wfile.write(content)

    def _refuse(self, code: str, status: int = 404, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def serving(root: Path) -> Iterator[Hub]:
    """Serve within the context, with the client's progress bars, which tests that silence transformers turn off."""
    enable_progress_bars()
    with Hub(root) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client resume a download that breaks off at once, where it waits a second before each attempt."""
    monkeypatch.setattr(file_download, "time", SimpleNamespace(**vars(time) | {"sleep": lambda seconds: None}))
