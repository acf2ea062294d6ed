"""The page of the service in Chromium: predictions and maps over HTTP, keys, and an engine that is killed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from driving import choose, drop, results, visit
from small import model_and_info

from browser import Browser, wait
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.inspection.explain import explain
from vitreous.inspection.maps import MAPS
from vitreous.model.vit import VisionTransformer
from vitreous.predictor import load
from vitreous.report.drawing import magnitude_colours

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vitreous.serve") is None or importlib.util.find_spec("fastapi") is None,
    reason="the service is not installed",
)


PYTHON = "document.getElementById('snippet-python').textContent"


class Service:
    """`vitreous serve` as a process."""

    def __init__(self, *words: str | Path) -> None:
        command = [sys.executable, "-m", "vitreous", "serve", *map(str, words), "--port", "0", "--engine", "torch"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"ready: (http://\S+)", line):
                self.url = f"{found[1].rstrip('/')}/"
                break
        assert self.url, "the service has not started"

    def engines(self) -> list[int]:
        """Return the process ids of its engines."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "trees.safetensors"
    save_model(path, *model_and_info())
    return path


@pytest.fixture(scope="module")
def service(model: Path) -> Iterator[Service]:
    running = Service(model)
    yield running
    running.close()


@pytest.fixture
def open_page(service: Service, view: Browser) -> Browser:
    visit(view, service.url)
    return view


def test_page_over_http(open_page: Browser, service: Service, model: Path, images: list[Path], tmp_path: Path) -> None:
    view, classifier = open_page, load(model, device="cpu", engine="torch")
    assert view.js("document.getElementById('promise').textContent") == (
        "Images are sent to this server and are not stored."
    )
    (tmp_path / "notes.txt").write_text("not an image")
    drop(view, images[0], images[2], tmp_path / "notes.txt")
    *shown, refused = results(view, 3)
    for each, prediction in zip(shown, classifier.predict([images[0], images[2]]), strict=True):
        assert [name for name, _ in each["top"]] == [name for name, _ in prediction.top]
        assert each["unsure"] is prediction.unsure
        assert all(name in each["set"] for name in prediction.set)
    assert refused["failure"].startswith("notes.txt: ")
    view.js("document.querySelector('input[value=map]').click()")
    wait(view, "document.querySelector('.said').textContent.startsWith('Class map for')")
    painted = (
        "(() => { const c = document.querySelector('canvas.map'), context = c.getContext('2d');"
        " return [c.height, c.width, ...context.getImageData(0, 0, c.width, c.height).data] })()"
    )
    height, width, *rgba = view.js(painted)
    found = np.array(rgba, np.uint8).reshape(height, width, 4)[..., :3]
    assert np.array_equal(found, magnitude_colours(explain(classifier, images[0]).patches))
    assert service.url.rstrip("/") in view.js("document.getElementById('snippet-curl').textContent")
    assert view.js(PYTHON).endswith("\nprint(prediction.label, prediction.probability)")
    outside = [each for each in view.requests if not each.startswith((service.url, "blob:"))]
    assert outside == []
    assert [each for each in view.complaints if "415" not in each] == []  # the refusal of the text file


def test_engine_is_killed(open_page: Browser, service: Service, images: list[Path]) -> None:
    choose(open_page, images[0])
    (before,) = results(open_page, 1)
    import os

    for pid in service.engines():
        os.kill(pid, signal.SIGKILL)
    choose(open_page, images[0], images[3])
    again = results(open_page, 3)
    assert [each["state"] for each in again] == ["done"] * 3, again
    assert again[1]["top"] == before["top"]


def test_code_for_several_labels_prints_those_given(view: Browser, tmp_path: Path) -> None:
    model, info = model_and_info()
    rule = LabelRule.plain(len(info.classes))
    several = dataclasses.replace(info, temperature=1.0, abstention=None, conformal=None, multilabel=rule)
    save_model(tmp_path / "several.safetensors", model, several)
    service = Service(tmp_path / "several.safetensors")
    try:
        visit(view, service.url)
        assert view.js(PYTHON).endswith("\nprint(prediction.labels)")
    finally:
        service.close()


def test_a_model_without_a_head_says_what_it_has(view: Browser, images: list[Path], tmp_path: Path) -> None:
    model, info = model_and_info()
    headless = VisionTransformer(dataclasses.replace(model.config, num_classes=0)).eval()
    bare = ModelInfo((), info.pipeline)
    save_model(tmp_path / "headless.safetensors", headless, bare)
    service = Service(tmp_path / "headless.safetensors")
    try:
        from vitreous.serve.http.routes import METHODS  # needs the extra `serve`

        with urlopen(f"{service.url}v1/model") as answer:
            maps = json.load(answer)["explain"]
        assert maps["methods"] == [kind.kind for kind in MAPS if kind.kind in METHODS and not kind.uses_class]
        assert maps["with_layer"] == ["attention"]
        visit(view, service.url)
        assert "no classification head" in view.js("document.getElementById('problems').textContent")
        choose(view, images[0])
        (shown,) = results(view, 1)
        assert shown["failure"].endswith("no classification head: POST /v1/embed gives its features.")
    finally:
        service.close()


def test_key_is_asked_for(model: Path, view: Browser, images: list[Path], tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    made = subprocess.run(
        [sys.executable, "-m", "vitreous", "serve", "--new-key", "alice", "--api-keys", str(keys)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    key = made.stdout.split()[-1]
    service = Service(model, "--api-keys", keys)
    try:
        view.call("Page.navigate", url=service.url)
        for attempt in ("wrong", key):
            wait(view, "document.getElementById('key-dialog')?.open")
            view.js(f"document.getElementById('key').value = '{attempt}'")
            view.js("document.querySelector('#key-dialog button[value=send]').click()")
        wait(view, "document.documentElement.dataset.state === 'ready'")
        choose(view, images[0])
        (shown,) = results(view, 1)
        assert shown["state"] == "done"
    finally:
        service.close()
