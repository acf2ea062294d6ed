"""What a service survives: a killed engine, a changed file, overload, clients that are slow, silent or gone."""

from __future__ import annotations

import concurrent.futures
import io
import json
import os
import shutil
import signal
import socket
import time

import numpy as np
import pytest
from PIL import Image

from services import READY_SECONDS, linux_only, until, write_model


@pytest.fixture(scope="module")
def slow_image() -> bytes:
    """A JPEG of 16 megapixels, which takes about a tenth of a second to decode."""
    noise = np.random.default_rng(0).integers(0, 256, (250, 250, 3), dtype=np.uint8)
    memory = io.BytesIO()
    Image.fromarray(noise).resize((4000, 4000)).save(memory, "JPEG", quality=60)
    return memory.getvalue()


@pytest.fixture(scope="module")
def small(launch, model_path):
    """A service with narrow limits; the last two tests that use it kill its engine, and end it."""
    limits = ("--queue", 6, "--max-connections", 40, "--max-images", 6, "--timeout", 60, "--body-timeout", 3)
    return launch(model_path, *limits, "--access-log", "false")


def requests_in_queue(service) -> float:
    lines = service.request("GET", "/metrics")[2].decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("vitreous_queue_images"))


def in_parallel(work, count: int) -> list:
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def test_too_many_requests_are_refused_at_once_and_the_rest_is_answered(small, images, local, slow_image):
    expected = local.predict(slow_image)

    def ask(n: int) -> tuple[int, str, bytes]:
        status, headers, content = small.request("POST", "/v1/predict", slow_image)
        return status, headers.get("retry-after", ""), content

    answers = in_parallel(ask, 24)
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429}
    for status, delay, content in answers:
        if status == 429:
            assert int(delay) >= 1
            assert json.loads(content)["detail"].endswith("try again later")
        else:
            assert json.loads(content)["predictions"][0]["label"] == expected.label
    assert small.request("POST", "/v1/predict", images[0])[0] == 200


def test_the_client_repeats_what_is_refused(small, slow_image):
    import vitreous

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        client = vitreous.Client(small.url)
        found = list(pool.map(lambda n: client.predict([slow_image] * 4), range(5)))
    assert [len(each) for each in found] == [4] * 5


@linux_only
def test_work_of_a_client_that_has_gone_is_dropped(small, images, slow_image):
    head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(slow_image)}\r\n\r\n".encode()
    gone = [socket.create_connection(("127.0.0.1", small.port)) for _ in range(6)]
    for each in gone:
        each.sendall(head + slow_image)
    until(lambda: requests_in_queue(small) >= 4)
    for each in gone:
        each.close()
    until(lambda: requests_in_queue(small) == 0)
    assert small.request("POST", "/v1/predict", images[0])[0] == 200


def test_slow_and_silent_senders_do_not_keep_others_out(small, images):
    """More connections than the limit, none of which completes a request; the service answers others meanwhile."""
    beginnings = [b"", b"POST /v1/pre", b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"]
    beginnings += [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"]
    held = []
    for n in range(120):
        held.append(socket.create_connection(("127.0.0.1", small.port)))
        held[-1].sendall(beginnings[n % len(beginnings)])
    for n in range(3):
        assert small.request("POST", "/v1/predict", images[n])[0] == 200
    lines = small.request("GET", "/metrics")[2].decode().splitlines()
    assert next(float(line.split()[-1]) for line in lines if line.startswith("vitreous_connections")) <= 40
    for each in held:
        each.close()


def test_half_a_body_ends_with_408(small):
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as slow:
        slow.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nabc")
        answer = b"".join(iter(lambda: slow.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body took more than 3 s" in answer
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as half_closed:
        half_closed.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nabc")
        half_closed.shutdown(socket.SHUT_WR)
        assert half_closed.recv(4096) == b""  # closed, not kept


def test_what_is_no_http_gets_a_problem(small):
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as other:
        other.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
        answer = b"".join(iter(lambda: other.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer


@linux_only
def test_a_killed_engine_is_replaced_and_no_request_hangs(small, images, local):
    """Every client gets answers before and after, all of them those of its own image, and no other status than 503."""
    expected = [each.label for each in local.predict(images)]
    (pid,) = small.engine_pids()
    killed, start = False, time.monotonic()

    def ask(n: int) -> list[int]:
        nonlocal killed
        statuses: list[int] = []
        after = 0  # answers to requests that began after the engine's end
        while after < 3:
            assert time.monotonic() - start < 2 * READY_SECONDS
            is_after = any("starting another" in line for line in small.lines)
            status, headers, content = small.request("POST", "/v1/predict", images[n])
            assert status in (200, 503)
            if status != 200:
                assert int(headers["retry-after"]) >= 1
                time.sleep(0.05)
            else:
                assert json.loads(content)["predictions"][0]["label"] == expected[n]
            statuses.append(status)
            after += is_after and status == 200
            if n == 0 and not killed and len(statuses) == 5:
                os.kill(pid, signal.SIGKILL)
                killed = True
        return statuses

    found = in_parallel(ask, 4)
    assert len(found) == 4
    assert small.engine_pids() != [pid]
    small.wait_for("ended with code -9: starting another")
    assert 'vitreous_engine_restarts_total{model="insects"} 1.0' in small.request("GET", "/metrics")[2].decode()


def test_two_models_keys_and_a_changed_file(launch, model_path, images, tmp_path):
    """One service for what needs no other: names, keys, and a reload without a failed request."""
    from vitreous.serve.http.keys import new_key

    changing, keys = tmp_path / "changing.safetensors", tmp_path / "keys.txt"
    shutil.copyfile(model_path, changing)
    key = new_key(keys, "alice")
    assert key not in keys.read_text()
    service = launch(model_path, f"b={changing}", "--api-keys", keys)
    bearer = {"Authorization": f"Bearer {key}"}
    assert service.problem("GET", "/v1/model")[0] == 401
    assert service.problem("GET", "/metrics", Authorization="Bearer no")[0] == 401
    assert service.json("GET", "/readyz") == {"status": "ready"}
    status, detail = service.problem("POST", "/v1/predict", images[0], X_API_Key=key)
    assert (status, detail) == (422, "the service has several models: add ?model= with one of insects, b")
    assert service.json("GET", "/v1/model?model=b", **bearer)["models"] == ["b", "insects"]
    assert json.loads(service.wait_for('"key": "alice"'))["path"] == "/v1/predict"

    before = service.json("POST", "/v1/predict?model=b", images[0], **bearer)
    write_model(changing, seed=5)
    statuses = []

    def is_new() -> bool:
        answer = service.request("POST", "/v1/predict?model=b", images[0], **bearer)
        statuses.append(answer[0])
        return json.loads(answer[2])["version"] != before["version"]

    until(is_new)
    assert set(statuses) == {200}
    from vitreous.predictor import load

    expected = load(changing, device="cpu", engine="torch").predict(images[0])
    after = service.json("POST", "/v1/predict?model=b", images[0], **bearer)["predictions"][0]
    assert after["probability"] == pytest.approx(expected.probability, abs=1e-5)

    changing.write_bytes(b"damaged")  # the model that is loaded goes on
    service.wait_for("model b goes on as it is")
    assert service.json("POST", "/v1/predict?model=b", images[0], **bearer)["predictions"][0] == after
    keys.write_text("")  # revoked
    assert service.problem("GET", "/v1/model", **bearer)[0] == 401


@linux_only
def test_the_socket_listens_when_that_is_announced(model_path):
    """Whoever starts a service and waits for the line may connect at once."""
    from vitreous.serve.run import serve
    from vitreous.serve.settings import Settings, parse_models

    heard = []

    def announce(line: str) -> None:
        heard.append(line.partition(" http")[0])
        with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])), timeout=5):
            signal.raise_signal(signal.SIGTERM)

    serve(Settings(parse_models([str(model_path)], {"engine": "torch"}), port=0), announce)
    assert heard[0] == "listening on"


def test_sigterm_answers_what_was_accepted(small, slow_image):
    service = small
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(service.request, "POST", "/v1/predict", slow_image) for _ in range(4)]
        until(lambda: requests_in_queue(service) == 4)
        assert service.end(signal.SIGTERM) == 0
        assert {each.result()[0] for each in asked} == {200}
    service.wait_for("the service has ended")
    assert not any("Traceback" in line for line in service.lines)
    with pytest.raises(ConnectionError):
        service.request("GET", "/healthz")
