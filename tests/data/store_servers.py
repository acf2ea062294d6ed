"""Servers of gs://, az:// and hf:// on loopback, each behind the proxy that fails, delays and cuts off answers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest
from s3_server import faulty

# The account and key that Azurite's documentation publishes: no secret, yet one that may not be written.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
HF_TOKEN = "hf_a-very-secret-token"


@contextmanager
def gs_server():
    """Yield the address of a folder, what the environment has to say, a secret of it, and the faults."""
    pytest.importorskip("gcsfs", reason="pip install gcsfs: reads gs://")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="pip install gcp-storage-emulator: a server")
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="photos")
    server.start()
    try:
        with faulty(server._api._httpd.server_address[1]) as (address, faults):
            yield "gs://photos/some", {"STORAGE_EMULATOR_HOST": address}, "", faults
    finally:
        server.stop()


@contextmanager
def az_server():
    """Yield the same; Azurite is Microsoft's emulator, a program of Node.js."""
    pytest.importorskip("adlfs", reason="pip install adlfs: reads az://")
    if shutil.which("azurite-blob") is None:
        pytest.skip("npm install --global azurite: a server of az:// for tests")
    command = ["azurite-blob", "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck"]
    with subprocess.Popen([*command, "--disableTelemetry"], stdout=subprocess.PIPE, text=True) as server:
        try:
            ports = (re.search(r"listens on http://127\.0\.0\.1:(\d+)", line) for line in server.stdout)
            with faulty(int(next(found for found in ports if found)[1])) as (address, faults):
                facts = f"AccountName=devstoreaccount1;AccountKey={AZURE_KEY};BlobEndpoint={address}/devstoreaccount1;"
                connection = f"DefaultEndpointsProtocol=http;{facts}"
                from azure.storage.blob import BlobServiceClient

                with BlobServiceClient.from_connection_string(connection) as client:
                    client.create_container("photos")
                yield "az://photos/some", {"AZURE_STORAGE_CONNECTION_STRING": connection}, AZURE_KEY, faults
        finally:
            server.terminate()


@contextmanager
def hf_server():
    """Yield the same, with the part of the Hub's API that reads and writes the files of a dataset."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.daemon_threads, server.files = True, {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with faulty(server.server_address[1]) as (address, faults):
            environment = {"HF_ENDPOINT": address, "HF_TOKEN": HF_TOKEN, "HF_HUB_OFFLINE": "0"}
            yield "hf://datasets/someone/photos/some", environment, HF_TOKEN, faults
    finally:
        server.shutdown()
        server.server_close()


class _Hub(BaseHTTPRequestHandler):
    """One dataset, ``someone/photos``, whose files are in ``server.files``."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        address, path = urlsplit(self.path), unquote(urlsplit(self.path).path)
        files = self.server.files
        if found := re.fullmatch("/datasets/someone/photos/resolve/main/(.*)", path):
            self._file(files.get(found[1]))
        elif found := re.fullmatch("/api/datasets/someone/photos/tree/main/?(.*)", path):
            folder, is_deep = f"{found[1]}/".lstrip("/"), "recursive=true" in address.query.lower()
            names = [name for name in files if name.startswith(folder) and (is_deep or "/" not in name[len(folder) :])]
            if names:
                self._send([self._facts(name) for name in names])
            else:
                self._send({}, 404, **{"X-Error-Code": "EntryNotFound"})
        elif re.fullmatch("/api/datasets/someone/photos(/revision/main)?", path):
            self._send({"id": "someone/photos", "sha": "0" * 40, "private": False, "tags": [], "downloads": 0})
        else:
            self._send({}, 404)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body, files = self.rfile.read(int(self.headers["Content-Length"])), self.server.files
        if "/preupload/" in self.path:
            named = [{"path": each["path"], "uploadMode": "regular"} for each in json.loads(body)["files"]]
            self._send({"files": [{**each, "shouldIgnore": False} for each in named]})
        elif "/commit/" in self.path:
            for line in body.splitlines():
                change = json.loads(line)
                if change["key"] == "file":
                    files[change["value"]["path"]] = base64.b64decode(change["value"]["content"])
                elif change["key"] == "deletedFile":
                    files.pop(change["value"]["path"], None)
            url = f"http://{self.headers['Host']}/datasets/someone/photos/commit/1"
            self._send({"commitOid": "1" * 40, "commitUrl": url, "success": True})
        elif "/paths-info/" in self.path:
            asked = re.findall(rb"paths=([^&]*)", body) or [p.encode() for p in json.loads(body)["paths"]]
            self._send([self._facts(name) for name in (unquote(a.decode()) for a in asked) if name in files])
        else:
            self._send({}, 404)

    def _facts(self, name: str) -> dict[str, object]:
        content = self.server.files[name]
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def _file(self, content: bytes | None) -> None:
        if content is None:
            self._send({}, 404, **{"X-Error-Code": "EntryNotFound"})
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        part = content[int(asked[1]) : int(asked[2]) + 1] if asked else content
        self._send(part, 206 if asked else 200, ETag=f'"{hashlib.sha1(content).hexdigest()}"')

    def _send(self, answer: object, status: int = 200, **headers: str) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(answer, bytes) else "application/json"
        for name, value in (headers | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
