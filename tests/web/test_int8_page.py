"""A page around an int8 graph, in Chromium: it computes what ONNX Runtime does, and the class map stays."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from driving import choose, results, visit
from PIL import Image

from browser import Browser, static_host
from vitreous.data.images.reading import read_image

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("nncf", reason="nncf is not installed: pip install -e '.[dev]'")

from vitreous.export.quantisation import quantise as story  # noqa: E402
from vitreous.export.quantisation.files import Int8  # noqa: E402
from vitreous.export.quantisation.running import Top1  # noqa: E402
from vitreous.export.web import export_web  # noqa: E402

RESULTS = "[...document.querySelectorAll('#results > li')]"


def test_browser_computes_int8_as_onnx_runtime_does(
    exported: SimpleNamespace, photos: Path, view: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story, "SETTINGS", {"SmoothQuant off": None})
    tiles = read_image(photos / "astronaut.png")
    crops = [np.asarray(tiles.crop((x, y, x + 96, y + 96))) for y in range(0, 400, 96) for x in range(0, 400, 96)]
    images = np.stack(crops)
    file = tmp_path / "model.onnx"
    shutil.copy(exported.graph, file)
    step = Int8([images], Top1([images], exported.classifier.logits(list(crops)).argmax(1)), max_drop=100)
    step("onnx", [file])
    said: list[str] = []
    export_web(file, tmp_path / "site", exported.model, exported.info, tell=said.append)
    assert said == ["the class maps are those of the model before quantisation, with weights in float16"]
    assert (tmp_path / "site/weights.bin").stat().st_size < (exported.site / "weights.bin").stat().st_size

    shown = [tmp_path / f"{number}.png" for number in range(4)]
    for path, pixels in zip(shown, crops[::6], strict=False):
        Image.fromarray(pixels).save(path)
    with static_host(tmp_path / "site") as url:
        visit(view, url)
        choose(view, *shown)
        assert all(each["state"] == "done" for each in results(view, len(shown)))
        rows = np.array(view.js(f"{RESULTS}.map(({{result}}) => [...result.probabilities])"))
    assert view.complaints == []
    # Not optimised, its products are exact; optimised, processors without VNNI add them in 16 bits.
    exact = onnxruntime.SessionOptions()
    exact.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "site/model.onnx", exact, providers=["CPUExecutionProvider"])
    (expected,) = session.run(["probabilities"], {"images": images[::6][: len(shown)]})
    (in_float,) = onnxruntime.InferenceSession(exported.graph, providers=["CPUExecutionProvider"]).run(
        ["probabilities"], {"images": images[::6][: len(shown)]}
    )
    assert abs(in_float - expected).max() > 1e-3, "the quantisation is not seen"
    assert abs(rows - expected).max() < 0.01
