"""The web export in Chromium, from a static host: what users do with the page, and that its numbers are Python's."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from driving import choose, drop, paste, picture, promised, results, visit

from browser import Browser, browser, state, static_host, wait
from vitreous.data.config import PreprocessConfig
from vitreous.data.placement import place
from vitreous.inspection.explain import explain

RESULTS = "[...document.querySelectorAll('#results > li')]"


@pytest.fixture(scope="module")
def page(exported: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    """The page from a static host, in one browser for the tests of this file; each begins with an empty page."""
    with static_host(exported.site) as url, browser(tmp_path_factory.mktemp("profile")) as view:
        view.view(1400, "light")
        visit(view, url)
        yield view, url


@pytest.fixture
def view(page: tuple[Browser, str]) -> Iterator[Browser]:
    view, url = page
    view.view(1400, "light")
    view.js("document.getElementById('clear').click()")
    yield view
    assert view.complaints == []
    assert [each for each in view.requests if not each.startswith((url, "blob:"))] == []


def test_numbers_are_those_of_python(view: Browser, exported: SimpleNamespace, images: list[Path]) -> None:
    choose(view, *images)
    shown = results(view, len(images))
    rows = np.array(view.js(f"{RESULTS}.map(card => [...card.result.probabilities])"))
    expected = exported.classifier.predict(images, top_k=6)
    for each, row, prediction in zip(shown, rows, expected, strict=True):
        assert each["label"] == prediction.label, prediction.name
        probabilities = dict(zip(exported.info.classes, row, strict=True))
        assert max(abs(probabilities[name] - value) for name, value in prediction.top) < 0.01, prediction.name
        assert each["unsure"] is prediction.unsure
        assert ("No class" in each["set"]) is (not prediction.set)
        assert all(name in each["set"] for name in prediction.set)
        assert [name for name, _ in each["top"]] == [name for name, _ in prediction.top[:5]]
    assert {each["unsure"] for each in shown} == {True, False}  # else the test says nothing of them


def test_two_dropped_one_pasted_and_one_refused(
    page: tuple[Browser, str], view: Browser, images: list[Path], tmp_path: Path
) -> None:
    notes = tmp_path / "notes.jpg"
    notes.write_text("not an image")
    drop(view, images[0], images[1])
    results(view, 2)
    paste(view, page[1], images[3].read_bytes())
    results(view, 3)
    choose(view, notes)
    shown = results(view, 4)
    assert [each["state"] for each in shown] == ["done", "done", "done", "failed"]
    assert shown[2]["name"] == "pasted image 1"
    assert shown[3]["failure"].startswith("notes.jpg: this is no image that can be read here")
    assert "notes.jpg" in view.js("document.getElementById('status').textContent")  # for assistive technology


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.png", b"", "the file is empty"),
        ("scan.tif", b"II*\0" + bytes(40), "this browser cannot read TIFF images: save it as JPEG or PNG"),
        (
            "phone.heic",
            b"\0\0\0\x18ftypheic" + bytes(40),
            "this browser cannot read HEIC images: save it as JPEG or PNG",
        ),
        ("cut.png", b"\x89PNG\r\n\x1a\n" + bytes(40), "the PNG file is damaged or truncated"),
        ("film.mp4", b"\0\0\0\x18ftypmp42" + bytes(40), "this is a video file: choose JPEG"),
    ],
)
def test_what_cannot_be_read_is_named(view: Browser, tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    choose(view, tmp_path / name)
    (shown,) = results(view, 1)
    assert shown["failure"].startswith(f"{name}: {reason}")


def test_maps_are_those_of_explain(view: Browser, exported: SimpleNamespace, images: list[Path]) -> None:
    choose(view, images[1])
    results(view, 1)
    view.js(f"{RESULTS}[0].querySelector('input[value=map]').click()")
    wait(view, f"{RESULTS}[0].querySelector('.map').getAttribute('aria-label')")
    painted = (
        "(() => { const c = document.querySelector('canvas.map'), context = c.getContext('2d');"
        " return [c.height, c.width, ...context.getImageData(0, 0, c.width, c.height).data] })()"
    )
    height, width, *rgba = view.js(painted)
    one = explain(exported.classifier, images[1])
    from vitreous.report.drawing import magnitude_colours

    found = np.array(rgba, np.uint8).reshape(height, width, 4)[..., :3]
    difference = found.astype(int) - magnitude_colours(one.patches)
    assert abs(difference).max() <= 6  # colours of neighbouring steps: the image is decoded by another program
    row, column = np.unravel_index(one.patches.argmax(), one.patches.shape)
    assert f"highest in row {row + 1} of 4, column {column + 1} of 4" in view.js(
        "document.querySelector('.said').textContent"
    )
    view.js(f"{RESULTS}[0].querySelector('input[value=attention]').click()")
    wait(view, "document.querySelector('.said').textContent.startsWith('Attention in block 2')")


def test_input_lies_where_python_places_it(view: Browser) -> None:
    rng, cases, expected = np.random.default_rng(0), [], []
    for n in range(300):
        image, size = ([int(each) for each in rng.integers(1, high, 2)] for high in ((900, 30)[n % 7 == 0], 300))
        fit, ratio = ("crop", "squash", "pad")[n % 3], (1.0, 0.875, 0.5)[n // 3 % 3]
        at = place((image[0], image[1]), (size[0], size[1]), PreprocessConfig(fit=fit, crop_ratio=ratio))
        start, step = np.array(at.to_input(0, 0)), np.array(at.to_input(1, 1)) - at.to_input(0, 0)
        begin, extent = -start / step / image, np.array(size) / step / image
        cases.append([image, {"size": size, "fit": fit, "crop_ratio": ratio}])
        expected.append([begin[1], begin[0], extent[1], extent[0]])
    source = files("vitreous.web").joinpath("page/placement.js").read_text("utf-8")
    call = f"({json.dumps(cases)}).map(([image, pipeline]) => Object.values(inputBox(image, pipeline)))"
    assert np.allclose(view.js(f"(() => {{ {source}; return {call} }})()"), expected, rtol=1e-9, atol=1e-9)


def test_keyboard_alone(view: Browser, images: list[Path]) -> None:
    choose(view, images[0])
    results(view, 1)
    view.js("document.querySelector('h1').tabIndex = -1; document.querySelector('h1').focus()")
    seen = []
    for _ in range(12):
        view.key("Tab")
        seen.append(view.js("document.activeElement.id.replace(/-image-.*/, '') || document.activeElement.className"))
        if seen[-1].startswith("view"):
            break
    assert {"files", "clear"} <= set(seen)
    view.key("ArrowRight")  # from None to Class map
    wait(view, "document.querySelector('.said').textContent.startsWith('Class map for')")
    for _ in range(2):
        view.key("Tab")
    assert view.js("document.activeElement.className") == "opacity"
    view.key("ArrowRight")
    assert view.js("document.querySelector('.opacity').value") == "65"
    assert view.js("getComputedStyle(document.querySelector('canvas.map')).opacity") == "0.65"
    view.key("Tab")
    view.key("Enter")  # Remove
    assert view.js(f"{RESULTS}.length") == 0
    assert view.js("document.activeElement.id") == "files"


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_fits_and_has_names(view: Browser, images: list[Path], width: int, theme: str) -> None:
    view.view(width, theme)
    choose(view, images[0], images[1])
    results(view, 2)
    view.js(f"{RESULTS}.forEach(card => card.querySelector('input[value=map]').click())")
    wait(view, "[...document.querySelectorAll('.map')].every(each => each.getAttribute('aria-label'))")
    wide, inner = view.js("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= inner
    back = view.js("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", back)[:3])) > 600) == (theme == "light")
    assert view.unnamed_images() == []
    unlabelled = (
        "[...document.querySelectorAll('main input, main select, main button')].filter(each => each.checkVisibility()"
        " && !each.labels?.length && !each.ariaLabel && !each.textContent.trim()).length"
    )
    assert view.js(unlabelled) == 0
    pdf = view.pdf()
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 10_000


def test_class_names_are_shown_as_text(view: Browser, exported: SimpleNamespace) -> None:
    assert view.js("document.querySelector('h1').textContent") == "Trees & <i>more</i>"
    assert view.js("document.title") == "Trees & <i>more</i>"
    assert view.js("document.getElementById('model-classes').textContent") == ", ".join(exported.info.classes)
    assert view.js("document.querySelectorAll('main b, main i').length") == 0


def test_policy_forbids_sending(view: Browser) -> None:
    attempt = "fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')"
    assert promised(view, attempt) == "refused"
    assert "Content Security Policy" in json.dumps(view.events[-20:])
    view.events.clear()  # the refusal is in the console


def test_camera(view: Browser) -> None:
    """With a camera of four colours instead of a real one; the rest is the page's own."""
    view.js(
        "navigator.mediaDevices.getUserMedia = async () => { const canvas = document.createElement('canvas');"
        "[canvas.width, canvas.height] = [64, 48]; const c = canvas.getContext('2d');"
        "setInterval(() => { c.fillStyle = 'teal'; c.fillRect(0, 0, 64, 48) }, 20); return canvas.captureStream(30) }"
    )
    view.click("#camera")
    wait(view, "document.getElementById('camera-dialog').open && !document.getElementById('shoot').disabled")
    view.click("#shoot")
    (shown,) = results(view, 1)
    assert (shown["name"], shown["state"]) == ("photo 1.png", "done")
    assert not view.js("document.getElementById('camera-dialog').open")


def test_a_dead_worker_is_replaced(page: tuple[Browser, str], view: Browser, images: list[Path]) -> None:
    choose(view, images[0])
    (before,) = results(view, 1)
    view.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)
    time.sleep(0.2)
    view.js("1")
    attached = [each["params"] for each in view.events if each.get("method") == "Target.attachedToTarget"]
    own, view._session = view._session, attached[-1]["sessionId"]
    view.call("Runtime.evaluate", expression="close()")
    view._session = own
    view.call("Target.setAutoAttach", autoAttach=False, waitForDebuggerOnStart=False, flatten=True)
    choose(view, images[0])
    both = results(view, 2)
    assert both[1]["top"] == before["top"], state(view)


def test_screens_can_be_saved(view: Browser, tmp_path: Path) -> None:
    picture(view, tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 5_000


def test_threads_are_used_where_a_host_allows_them(
    exported: SimpleNamespace, images: list[Path], tmp_path: Path
) -> None:
    headers = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
    profile = tmp_path / "profile"
    profile.mkdir()
    with static_host(exported.site, headers) as url, browser(profile) as view:
        visit(view, url)
        assert view.js("crossOriginIsolated") is True
        choose(view, images[0])
        (shown,) = results(view, 1)
        assert shown["label"] == exported.classifier.predict(images[0]).label
        assert view.complaints == []


@torch.no_grad()
def test_a_damaged_file_is_named(exported: SimpleNamespace, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(exported.site, tmp_path / "site")
    weights = bytearray((tmp_path / "site/weights.bin").read_bytes())
    weights[100] ^= 1
    (tmp_path / "site/weights.bin").write_bytes(weights)
    profile = tmp_path / "profile"
    profile.mkdir()
    with static_host(tmp_path / "site") as url, browser(profile) as view:
        visit(view, url)
        assert view.js("document.documentElement.dataset.state") == "failed"
        assert "weights.bin of this page is damaged" in view.js("document.getElementById('problems').textContent")
