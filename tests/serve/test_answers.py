"""What the service answers: the model's own results, in every form of a request, and problems in one form."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from services import write_model
from vitreous.errors import DataError, UsageError


def form(*files: tuple[str, bytes], boundary: str = "b0undary") -> tuple[bytes, str]:
    """The body and type of a form with files."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n\r\n'.encode() + content
        for name, content in files
    ]
    return b"\r\n".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


def encoded(*contents: bytes) -> bytes:
    """A JSON body with images."""
    return json.dumps({"images": [base64.b64encode(content).decode() for content in contents]}).encode()


def same(record, prediction):
    """Whether a record of the service is a prediction of the library."""
    assert record["label"] == prediction.label
    assert [each["label"] for each in record["top"]] == [label for label, _ in prediction.top]
    assert [each["probability"] for each in record["top"]] == pytest.approx([p for _, p in prediction.top], abs=1e-5)
    assert record["unsure"] == prediction.unsure
    assert tuple(record["set"]) == prediction.set
    assert record["set_coverage"] == prediction.set_coverage


def test_each_form_of_a_request_gives_the_models_own_predictions(service, local, images):
    expected = local.predict(images[:3], top_k=2)
    raw = [service.json("POST", "/v1/predict?top_k=2", each, Content_Type="image/jpeg") for each in images[:3]]
    body, kind = form(("a.jpg", images[0]), ("b.png", images[1]), ("ü.png", images[2]))
    by_form = service.json("POST", "/v1/predict?top_k=2", body, Content_Type=kind)
    by_json = service.json("POST", "/v1/predict?top_k=2", encoded(*images[:3]), Content_Type="application/json")
    assert [each["name"] for each in by_form["predictions"]] == ["a.jpg", "b.png", "ü.png"]
    assert [each["name"] for each in by_json["predictions"]] == ["#0", "#1", "#2"]
    for n, prediction in enumerate(expected):
        same(raw[n]["predictions"][0], prediction)
        same(by_form["predictions"][n], prediction)
        same(by_json["predictions"][n], prediction)
    assert by_json["model"] == "insects"
    unsure = {prediction.unsure for prediction in local.predict(images)}
    assert unsure == {True, False}, "the model has no use of its threshold: nothing was tested"


def test_a_body_without_a_type_is_an_image(service, local, images):
    same(service.json("POST", "/v1/predict", images[0])["predictions"][0], local.predict(images[0]))


def test_vectors_equal_the_models_own(service, local, images):
    for path, expected in (("/v1/embed", local.embed(images[:4])), ("/v1/logits", local.logits(images[:4]))):
        plain = service.json("POST", path, encoded(*images[:4]), Content_Type="application/json")
        assert np.array([each["vector"] for each in plain["vectors"]]) == pytest.approx(expected, abs=1e-4)
        packed = service.json("POST", f"{path}?encoding=base64", encoded(*images[:4]), Content_Type="application/json")
        rows = [np.frombuffer(base64.b64decode(each["vector"]), "<f4") for each in packed["vectors"]]
        assert np.array(rows) == pytest.approx(expected, abs=1e-4)
        assert packed["length"] == expected.shape[1]


def test_a_map_is_a_png_of_the_image_with_its_numbers(service, local, images):
    from vitreous.inspection.explain import explain

    found = explain(local, images[1], "bee", "legrad")
    status, headers, content = service.request("POST", "/v1/explain?target=bee&method=legrad", images[1])
    said = json.loads(headers["x-explanation"])
    assert (status, headers["content-type"]) == (200, "image/png")
    assert Image.open(io.BytesIO(content)).size == Image.open(io.BytesIO(images[1])).size
    assert (said["label"], said["method"], said["grid"]) == ("bee", "legrad", [4, 4])
    assert said["high"] == pytest.approx(float(found.patches.max()), rel=1e-3)
    _, _, content = service.request("POST", "/v1/explain?target=1&method=legrad&render=patches", images[1])
    patches = np.asarray(Image.open(io.BytesIO(content)), np.float32)
    low, high = found.patches.min(), found.patches.max()
    assert patches == pytest.approx(255 * (found.patches - low) / (high - low), abs=1.5)


def test_layers_have_maps_of_their_own(service, images):
    maps = {
        service.request("POST", f"/v1/explain?method=attention&layer={n}&render=patches", images[0])[2] for n in (0, 1)
    }
    assert len(maps) == 2


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("method=occlusion", "method: Input should be"),
        ("target=cow", "no class 'cow'"),
        ("method=rollout&layer=1", "has no layer"),
        ("method=attention&layer=99", "layer"),
        ("render=gif", "render"),
    ],
)
def test_a_map_with_wrong_parameters(service, images, query, words):
    status, detail = service.problem("POST", f"/v1/explain?{query}", images[0])
    assert status == 422
    assert words in detail


def png_header(width: int, height: int) -> bytes:
    """A PNG that only claims a size."""
    data = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + data
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(data)) + chunk + struct.pack(">I", zlib.crc32(chunk))


@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (b"", "image/png", 422, "empty"),
        (b"no image", "image/png", 415, "not an image"),
        (b"P6 1 1 255 abc", "image/x-portable-pixmap", 415, "PNM"),
        (b"hello", "text/plain", 415, "the body is 'text/plain'"),
        (png_header(2000, 1000), "image/png", 413, "the limit is 1,000,000"),
        (png_header(40, 40), "image/png", 422, "truncated"),
        (b"x" * (2 << 20) + b"x", "image/png", 413, "2,097,152 bytes"),
        (b"{", "application/json", 422, "not valid JSON"),
        (b"[" * 100_000, "application/json", 422, "JSON"),
        (b'{"images": ["https://example.org/a.png"]}', "application/json", 422, "URLs are not fetched"),
        (b'{"images": [{"name": 1, "data": ""}]}', "application/json", 422, "name is not a string"),
        (b'{"images": []}', "application/json", 422, "no image"),
        (b'{"images": [1], "more": 2}', "application/json", 422, "unknown members"),
        (encoded(*[b"x"] * 9), "application/json", 413, "9 images, the limit of a request is 8"),
        (b"--x", "multipart/form-data", 422, "boundary"),
        (b"--x\r\nnonsense", "multipart/form-data; boundary=x", 422, ""),
        (form(*[(f"{n}", b"x") for n in range(9)])[0], form()[1], 413, "more than 8 images"),
    ],
    ids=range(17),
)
def test_what_is_refused(service, body, kind, status, words):
    found, detail = service.problem("POST", "/v1/predict", body, Content_Type=kind)
    assert (found, words in detail) == (status, True), detail


def test_one_unreadable_image_does_not_affect_others(service, local, images):
    body = encoded(images[0], b"no image", images[0][:90], images[1])
    records = service.json("POST", "/v1/predict", body, Content_Type="application/json")["predictions"]
    same(records[0], local.predict(images[0]))
    same(records[3], local.predict(images[1]))
    assert records[1] == {"name": "#1", "error": "not an image"}
    assert list(records[2]) == ["name", "error"]
    status, headers, content = service.request(
        "POST", "/v1/predict", encoded(b"no image", b"GIF"), Content_Type="application/json"
    )
    assert (status, headers["content-type"]) == (415, "application/problem+json")
    assert [each["name"] for each in json.loads(content)["errors"]] == ["#0", "#1"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/predict", 405),
        ("OPTIONS", "/v1/predict", 405),
        ("POST", "/v1/predict?model=other", 404),
        ("POST", "/v1/predict?top_k=0", 422),
        ("POST", "/v1/predict?top_k=x", 422),
        ("GET", "/docs", 404),
    ],
)
def test_wrong_paths_and_parameters(service, images, method, path, status):
    assert service.problem(method, path, images[0] if method == "POST" else None)[0] == status


def test_the_model_is_described(service, local):
    found = service.json("GET", "/v1/model")
    assert tuple(found["classes"]) == local.classes
    assert found["features"] == local.features
    assert (found["maps"], found["blocks"]) == (True, local.model.config.depth)
    assert found["pipeline"] == local.pipeline.to_dict()
    assert found["temperature"] == 1.5
    assert found["abstention"] == local.info.abstention.to_dict()
    assert found["conformal"] == local.info.conformal.to_dict()
    assert (found["engine"], found["precision"]) == ("torch", "float32")
    assert found["license"] == "MIT"
    assert found["limits"]["images"] == 8


def test_health_and_the_page(service):
    assert service.json("GET", "/healthz") == {"status": "ok"}
    assert service.json("GET", "/readyz") == {"status": "ready"}
    status, headers, content = service.request("GET", "/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b"http://" not in content.replace(b"http://127.0.0.1:8000", b"")


def test_metrics_count_what_happened(service, images):
    def value(name: str) -> float:
        lines = service.request("GET", "/metrics")[2].decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    names = [
        'vitreous_requests_total{route="/v1/predict",status="200"}',
        "vitreous_predictions_total{",
        "vitreous_batch_size_sum",
    ]
    before = [value(name) for name in names]
    service.json("POST", "/v1/predict", encoded(*images[:5]), Content_Type="application/json")
    assert [value(name) - old for name, old in zip(names, before, strict=True)] == [1, 5, 5]
    assert value("vitreous_queue_images{") == 0
    assert value("vitreous_engine_up{") == 1
    unreadable = value("vitreous_unreadable_images_total{")
    for path in ("/v1/predict", "/v1/embed"):
        service.problem("POST", path, images[0][:60])
    assert value("vitreous_unreadable_images_total{") == unreadable + 2
    before = value('vitreous_rejections_total{reason="body"}')
    service.problem("POST", "/v1/predict", b"x" * (3 << 20))
    assert value('vitreous_rejections_total{reason="body"}') == before + 1


def test_every_answer_has_an_id_and_safe_headers(service, images):
    status, headers, _ = service.request("POST", "/v1/predict", images[0], X_Request_ID="mine-1")
    assert (status, headers["x-request-id"]) == (200, "mine-1")
    line = json.loads(service.wait_for('"mine-1"'))
    assert line.keys() == {"time", "id", "client", "method", "path", "status", "ms"}
    assert headers["x-content-type-options"] == "nosniff"
    assert not any(name.startswith("access-control") for name in headers)
    forged = service.request("GET", "/nothing", X_Request_ID="a b\x1b[0m")[1]["x-request-id"]
    assert forged != "a b\x1b[0m"


def test_pages_of_others_are_refused(service, images):
    status, detail = service.problem("POST", "/v1/predict", images[0], Origin="http://evil.example")
    assert (status, "another origin" in detail) == (403, True)
    status, detail = service.problem("POST", "/v1/predict", images[0], Host="evil.example")  # DNS rebinding
    assert (status, "Host header" in detail) == (400, True)
    own = f"http://127.0.0.1:{service.port}"
    assert service.request("POST", "/v1/predict", images[0], Origin=own)[0] == 200


def test_the_client_has_the_interface_of_a_loaded_model(service, local, images, tmp_path):
    import vitreous

    client = vitreous.Client(service.url)
    file = tmp_path / "a.jpg"
    file.write_bytes(images[1])
    picture = Image.open(io.BytesIO(images[2]))

    def several():
        return [file, images[0], io.BytesIO(images[3]), picture, np.asarray(picture)]

    expected, found = local.predict(several(), top_k=3), client.predict(several(), top_k=3)
    assert [each.name for each in found] == [each.name for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.label, one.unsure, one.set, one.set_coverage) == (
            other.label,
            other.unsure,
            other.set,
            other.set_coverage,
        )
        assert [p for _, p in one.top] == pytest.approx([p for _, p in other.top], abs=1e-5)
    assert client.predict(file).label == local.predict(file).label
    assert client.classes == local.classes
    assert client.features == local.features
    assert client.embed(images) == pytest.approx(local.embed(images), abs=1e-4)
    assert client.embed(images[0]).shape == (local.features,)
    assert client.embed([]).shape == (0, local.features)
    assert client.logits(images) == pytest.approx(local.logits(images), abs=1e-4)
    assert client.explain(file, target="bee", render="map").startswith(b"\x89PNG")
    client.close()


def test_a_class_by_number_is_not_the_one_that_is_called_so(launch, images, tmp_path):
    """Classes are in the order of their names as texts: number 2 is class 10."""
    import vitreous

    path = write_model(tmp_path / "numbers.safetensors", classes=("0", "1", "10", "2"))
    client = vitreous.Client(launch(path, "--access-log", "false").url)
    by_number, by_name, other = (client.explain(images[0], each, render="patches") for each in (2, "10", "2"))
    assert by_number == by_name
    assert by_number != other
    with pytest.raises(UsageError, match="target is 10, it must be a class name or a number from 0 to 3"):
        client.explain(images[0], 10)
    client.close()


def test_the_client_names_what_cannot_be_read(service, images, tmp_path):
    import vitreous

    client = vitreous.Client(service.url)
    found = list(client.predict_stream([images[0], b"no image", "gone.jpg", images[1][:80]]))
    assert [type(each).__name__ for each in found] == ["Prediction", "Failure", "Failure", "Failure"]
    assert [each.reason for each in found[1:3]] == ["not an image", "no such file"]
    with pytest.raises(DataError, match="not an image"):
        client.predict(b"no image")
    with pytest.raises(DataError, match="2 of 3 images cannot be read"):
        client.predict([images[0], b"no", b"image"])
    with pytest.raises(DataError, match="not an image"):
        client.predict(None)
    with pytest.raises(DataError, match="URL"):
        client.predict("https://example.org/a.jpg")
    with pytest.raises(UsageError, match="no class 'cow'"):
        client.explain(images[0], target="cow")
    with pytest.raises(UsageError, match="no model 'other'"):
        vitreous.Client(service.url, model="other").predict(images[0])


def test_the_client_splits_what_is_too_large_for_a_request(service, local):
    import vitreous

    noise = np.random.default_rng(1).integers(0, 256, (5, 480, 640, 3), dtype=np.uint8)  # 0.9 MB each as PNG
    found = vitreous.Client(service.url).predict(list(noise))
    assert [each.label for each in found] == [each.label for each in local.predict(list(noise))]
