"""`--engine auto`: PyTorch answers at once, and another engine takes over once the model is converted for it."""

from __future__ import annotations

import json
import shutil
import time

import pytest

from services import until, write_model

pytest.importorskip("openvino", reason="openvino is not installed")


def test_a_faster_engine_takes_over_without_a_failed_request(launch, model_path, images, local, tmp_path):
    expected, changing = local.predict(images[0]), tmp_path / "insects.safetensors"
    shutil.copyfile(model_path, changing)
    first = launch(changing, "--access-log", "false", engine="auto", XDG_CACHE_HOME=str(tmp_path))
    assert not any("converting" in line for line in first.lines), "it converts before it answers"
    statuses = []

    def is_decided() -> bool:
        status, _, content = first.request("POST", "/v1/predict", images[0])
        statuses.append(status)
        if status == 200:
            found = json.loads(content)["predictions"][0]
            assert found["probability"] == pytest.approx(expected.probability, abs=1e-4)
        time.sleep(0.05)
        metrics = first.request("GET", "/metrics")[2].decode()
        return 'vitreous_reloads_total{model="insects",outcome="improved"}' in metrics or any(
            "stays with torch" in line for line in first.lines
        )

    until(is_decided, 300)
    assert any("converting the model for openvino, once" in line for line in first.lines)
    assert set(statuses) == {200}
    write_model(changing, seed=5)  # a new version gets a faster engine too
    ends = ("stays with torch", "a faster engine answers")
    until(lambda: sum(end in line for line in first.lines for end in ends) == 2, 300)
    assert any("the changed file answers" in line for line in first.lines)
    decided = first.json("GET", "/v1/model")["engine"]
    assert first.end() == 0
    again = launch(changing, "--access-log", "false", engine="auto", XDG_CACHE_HOME=str(tmp_path))
    until(lambda: again.json("GET", "/v1/model")["engine"] == decided, 60)
    assert not any("converting" in line for line in again.lines)
