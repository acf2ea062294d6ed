"""`vitreous serve --on ray://...` with two replicas: the answers of one machine, also when a part of it is killed."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytest.importorskip("ray.serve", reason="the extra `ray` lacks Ray Serve, or the extra `serve` is not installed")
pytest.importorskip("prometheus_client", reason="a service needs the extra `serve`")

from services import RunningService, linux_only, until, write_model
from vitreous.cli.main import main
from vitreous.serve.http.keys import new_key

pytestmark = [linux_only, pytest.mark.filterwarnings("ignore")]  # Ray's own

LIMITS = ("--max-body", "1", "--max-pixels", "100000", "--max-images", "4", "--batch-size", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served") / "insects.safetensors")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 4, 5, 3), np.uint8)
    for number, each in enumerate(pixels):
        Image.fromarray(each).resize((60 + number, 50), Image.Resampling.BICUBIC).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    return new_key(file, "alice"), file


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., RunningService]]:
    running: list[RunningService] = []

    def begin(*words: object, **environment: str) -> RunningService:
        running.append(RunningService(*words, **environment))
        return running[-1]

    yield begin
    for service in running:
        service.close()


@pytest.fixture(scope="module")
def services(start, model, key_file) -> tuple[RunningService, RunningService]:
    """The same service on one machine and on a cluster."""
    words = (model, "--api-keys", key_file[1], *LIMITS)
    pair = start(*words), start(*words, "--on", "ray://local", "--workers", "2")
    for each in pair:
        each.wait_for("ready: ")
    return pair


def test_answers_are_those_of_one_machine(services, key_file, model, images, tmp_path) -> None:
    alone, many = services
    named = {"X_API_Key": key_file[0]}
    output = tmp_path / "labels.jsonl"
    assert main(["predict", str(model), *map(str, images), "--engine", "torch", "-o", str(output)]) == 0
    expected = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    for image, record in zip(images, expected, strict=True):
        found = many.json("POST", "/v1/predict", image.read_bytes(), **named)
        assert found == alone.json("POST", "/v1/predict", image.read_bytes(), **named)
        [prediction] = found["predictions"]
        assert prediction["label"] == record["label"]
        assert prediction["probability"] == pytest.approx(record["probability"], abs=1e-6)
    for path in ("/v1/embed?encoding=base64", "/v1/logits"):
        assert many.json("POST", path, images[0].read_bytes(), **named) == alone.json(
            "POST", path, images[0].read_bytes(), **named
        )
    for path in ("/v1/model", "/openapi.json", "/healthz", "/readyz"):
        assert many.json("GET", path, **named) == alone.json("GET", path, **named)
    assert many.request("GET", "/")[2] == alone.request("GET", "/")[2]
    assert b"vitreous_requests_total" in many.request("GET", "/metrics", **named)[2]


def blank(width: int, height: int) -> bytes:
    memory = io.BytesIO()
    Image.new("L", (width, height)).save(memory, "PNG")
    return memory.getvalue()


REFUSED: dict[str, tuple[Any, ...]] = {
    "no key": (401, "POST", "/v1/predict", b"", {"X_API_Key": ""}),
    "wrong key": (401, "POST", "/v1/predict", b"", {"X_API_Key": "vit_no"}),
    "text": (415, "POST", "/v1/predict", b"{}", {"Content_Type": "text/plain"}),
    "no image": (415, "POST", "/v1/predict", b"no image", {}),
    "cut off": (422, "POST", "/v1/predict", blank(40, 30)[:40], {}),
    "large body": (413, "POST", "/v1/predict", bytes((1 << 20) + 1), {}),
    "many pixels": (413, "POST", "/v1/predict", blank(400, 300), {}),
    "no model": (404, "POST", "/v1/predict?model=bees", b"", {}),
    "no path": (404, "GET", "/v2", None, {}),
    "method": (405, "GET", "/v1/predict", None, {}),
    "parameter": (422, "POST", "/v1/predict?top_k=0", b"", {}),
    "host": (400, "GET", "/", None, {"Host": "example.org"}),
    "origin": (403, "GET", "/", None, {"Origin": "https://example.org"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_those_of_one_machine(services, key_file, name: str) -> None:
    alone, many = services
    status, method, path, body, headers = REFUSED[name]
    named = {"X_API_Key": key_file[0], "X_Request_ID": "r-1", **headers}
    found = [each.request(method, path, body, **named) for each in (alone, many)]
    for code, _, content in found:
        assert (code, json.loads(content)["status"]) == (status, status)
    differ = {"date", "server", "connection"}
    documents = [
        (json.loads(content), {each: said for each, said in given.items() if each not in differ})
        for _, given, content in found
    ]
    assert documents[0] == documents[1]


def test_an_answer_has_one_request_id(services) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", services[1].port, timeout=60)
    for given in ({}, {"X-Request-ID": "mine"}, {"X-Request-ID": "not one of ours!"}):
        connection.request("GET", "/healthz", headers=given)
        answer = connection.getresponse()
        answer.read()
        assert len(answer.headers.get_all("X-Request-ID")) == 1
    connection.close()


class Load:
    """Clients that send the same request again and again, and what they were answered."""

    def __init__(self, service: RunningService, body: bytes, expected: str, clients: int = 4, **headers: str) -> None:
        self.statuses: Counter[int | str] = Counter()
        self.wrong: list[Any] = []
        self._ended = threading.Event()
        arguments = service, body, expected, headers
        self._threads = [threading.Thread(target=self._ask, args=arguments, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, service: RunningService, body: bytes, expected: str, headers: dict[str, str]) -> None:
        while not self._ended.is_set():
            try:
                status, given, content = service.request("POST", "/v1/predict", body, **headers)
                document = json.loads(content)
            except (OSError, ValueError) as error:
                self.statuses[type(error).__name__] += 1
                continue
            self.statuses[status] += 1
            if status == 200:
                if document["predictions"][0]["label"] != expected:
                    self.wrong.append(document)
            elif status not in (429, 503) or int(given.get("retry-after", 0)) < 1:
                self.wrong.append((status, given, document))

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(120)


def test_a_killed_replica_and_a_killed_engine_leave_no_request_without_an_answer(services, key_file, images) -> None:
    service = services[1]
    named = {"X_API_Key": key_file[0]}
    body = images[0].read_bytes()
    expected = service.json("POST", "/v1/predict", body, **named)["predictions"][0]["label"]
    load = Load(service, body, expected, **named)
    until(lambda: load.statuses[200] > 50)
    replicas = processes("ray::ServeReplica", service.process.pid)
    assert len(replicas) == 2
    os.kill(replicas[0], signal.SIGKILL)
    service.wait_for("1 of 2 replicas answer")
    service.wait_for("2 of 2 replicas answer")
    until(lambda: len(processes("ray::ServeReplica", service.process.pid)) == 2)
    before = load.statuses[200]
    [engine] = processes("vitreous.serve.engine.worker", replicas[1])
    os.kill(engine, signal.SIGKILL)
    until(lambda: load.statuses[200] > before + 50)
    until(lambda: any(each != engine for each in processes("vitreous.serve.engine.worker", replicas[1])))
    load.end()
    assert not load.wrong
    assert set(load.statuses) <= {200, 429, 503}, load.statuses

    def all_answer() -> bool:
        return all(service.request("POST", "/v1/predict", body, **named)[0] == 200 for _ in range(20))

    until(all_answer)


def test_a_signal_answers_what_was_accepted_and_ends_everything(services, key_file, images) -> None:
    service = services[1]
    named = {"X_API_Key": key_file[0]}
    body = images[0].read_bytes()
    expected = service.json("POST", "/v1/predict", body, **named)["predictions"][0]["label"]
    started = descendants(service.process.pid)
    assert len(started) > 6
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as slow:
        head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key_file[0]}\r\n"
        slow.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:100])
        time.sleep(1)  # it is with a replica
        service.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        slow.sendall(body[100:])
        answer = b""
        while chunk := slow.recv(1 << 16):
            answer += chunk
            if expected.encode() in answer:
                break
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert service.process.wait(90) == 0
    assert "the service has ended" in service.lines
    until(lambda: not [pid for pid in started if is_running(pid)])


def test_what_cannot_be_served_is_told_as_on_one_machine(tmp_path, model) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(model.read_bytes()[:1000])
    alone, many = (command(broken, "--port", "0", *words) for words in ((), ("--on", "ray://local")))
    assert many.returncode == alone.returncode == 1
    assert many.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]
    assert "broken.safetensors" in many.stderr.splitlines()[-1]
    assert "Traceback" not in many.stderr


def test_a_port_in_use_is_told_before_a_cluster_starts(model) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        run = command(model, "--port", port, "--on", "ray://local")
    assert run.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in run.stderr


def test_other_applications_of_a_cluster_stay(start, model, images) -> None:
    import ray
    from ray import serve

    class Other:  # in here, so that Ray pickles it by value
        def __call__(self) -> str:
            return "still here"

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        other = serve.deployment(Other, ray_actor_options={"num_cpus": 0})
        serve.run(other.bind(), name="other", route_prefix="/other")
        on = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        refused = command(model, "--port", port + 1, "--on", "ray://auto", **on)
        assert refused.returncode == 2
        assert f"Ray Serve of this cluster listens on 127.0.0.1 port {port}" in refused.stderr
        service = start(model, "--on", "ray://auto", "--workers", "1", "--port", port, **on)
        service.wait_for("ready: ")
        assert service.json("POST", "/v1/predict", images[0].read_bytes())["predictions"]
        second = command(model, "--port", port, "--on", "ray://auto", **on)
        assert second.returncode == 2
        assert "another `vitreous serve --on` serves from this cluster" in second.stderr
        assert service.end() == 0
        assert list(serve.status().applications) == ["other"]
        assert service.request("GET", "/other")[::2] == (200, b"still here")
        assert service.request("GET", "/readyz")[0] == 404
    finally:
        serve.shutdown()
        ray.shutdown()


def command(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vitreous", "serve", *map(str, words), "--engine", "torch"],
        capture_output=True,
        text=True,
        timeout=180,
        env=os.environ | environment,
        check=False,
    )


def parents() -> dict[int, int]:
    """The parent of each process that runs."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = status.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in ("Z", "X"):
            found[int(status.parent.name)] = int(parent)
    return found


def is_running(pid: int) -> bool:
    return pid in parents()


def descendants(pid: int) -> list[int]:
    known, found = parents(), [pid]
    for each in found:
        found += [child for child, parent in known.items() if parent == each]
    return found[1:]


def processes(text: str, ancestor: int) -> list[int]:
    """The processes below another one whose command line has a text."""
    found = []
    for pid in descendants(ancestor):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in line:
            found.append(pid)
    return found
