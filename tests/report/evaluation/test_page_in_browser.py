"""The page of an evaluation in Chromium: narrow and wide, light and dark, by mouse, by keyboard alone, and printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from browser import Browser, browser, wait
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.config import PreprocessConfig
from vitreous.data.corruptions import CORRUPTIONS
from vitreous.data.preprocess import EvalPipeline
from vitreous.evaluate.scoring.robustness import mean_corruption_error
from vitreous.inspection.explain import explain
from vitreous.model.config import ViTConfig
from vitreous.predictor import Classifier
from vitreous.report.evaluation.page import page
from vitreous.report.evaluation.results import EvaluationResult, with_robustness
from vitreous.report.evaluation.robustness import RobustnessResult, ShiftCurve

HEIGHT, WIDTH = 60, 90  # of every image; the model sees the central square
SECTIONS = (
    "Scores",
    "Comparison",
    "Classes",
    "Confusion",
    "Slices",
    "Calibration",
    "Abstention",
    "Prediction sets",
    "Robustness",
    "Images",
)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    torch.manual_seed(0)
    config = ViTConfig(image_size=32, patch_size=8, width=32, depth=2, heads=2, mlp_dim=64, num_classes=10, init="timm")
    names = tuple(str(k) for k in range(10))
    pipeline = EvalPipeline((32, 32), 3, PreprocessConfig(fit="crop", crop_ratio=1.0, mean=(0.5,) * 3, std=(0.25,) * 3))
    return Classifier(build(config).eval(), ModelInfo(names, pipeline), device="cpu")


@pytest.fixture(scope="module")
def view(
    result: EvaluationResult, images: np.ndarray, classifier: Classifier, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """The page, opened once; every test leaves it as it was or looks at what no other test changes."""
    errors = {name: [0.1, 0.2, 0.3, 0.4, 0.5] for name in CORRUPTIONS}
    shifts = {"rotation": ShiftCurve("degrees", 0, (-10, 0, 10), (0.5, 0.9, 0.5))}
    robustness = RobustnessResult(50, 0, 32, mean_corruption_error(errors, clean_error=0.1), shifts)

    def image(n: int) -> Image.Image:
        return Image.fromarray(images[n]).resize((WIDTH, HEIGHT)).convert("RGB")

    maps = page(with_robustness(result, robustness), image, class_map=lambda n, k: explain(classifier, image(n), k))
    folder = tmp_path_factory.mktemp("page")
    path = folder / "page.html"
    path.write_text("".join(maps), encoding="utf-8")
    (folder / "profile").mkdir()
    with browser(folder / "profile") as view:
        view.open(path)
        yield view
        assert view.complaints == []
        assert view.requests == [path.as_uri()]


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours `rgb(r, g, b)` (WCAG 2.2)."""
    luminances = []
    for text in (first, second):
        rgb = np.array([int(part) for part in re.findall(r"\d+", text)[:3]]) / 255
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        luminances.append(float(linear @ (0.2126, 0.7152, 0.0722)))
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_fits_the_window_and_can_be_read(view: Browser, width: int, theme: str) -> None:
    view.view(width, theme)
    wide, inner = view.js("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= inner
    assert inner > width - 20
    back = view.js("getComputedStyle(document.body).backgroundColor")
    assert (contrast(back, "rgb(0, 0, 0)") > 10) == (theme == "light")
    for selector in ("p", ".soft", ".wrong", "nav a", "caption", "thead th", "td.why", "summary"):
        colour = view.js(f"getComputedStyle(document.querySelector('{selector}')).color")
        assert contrast(colour, back) >= 4.5, selector
    tick = view.js("getComputedStyle(document.querySelector('svg text.tick')).fill")
    assert contrast(tick, back) >= 4.5
    assert view.js("[...document.images].filter(each => !each.naturalWidth).length") == 0


@pytest.mark.parametrize("width", [390, 1400])
def test_maps_lie_where_the_model_sees_the_image(view: Browser, width: int) -> None:
    view.view(width, "light")
    boxes = view.js(
        "[...document.querySelectorAll('.views')].map(v => [...v.querySelectorAll('.stage, .map')].map(e => {"
        "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height] }))"
    )
    assert len(boxes) == 72
    for plain, stage, overlay in boxes:
        for left, top, wide, high in (plain, stage):
            assert wide / high == pytest.approx(WIDTH / HEIGHT, rel=0.02)
            assert left + wide <= width
            assert top >= 0 or wide > 0
        assert overlay[2] == pytest.approx(overlay[3], rel=0.02)  # the central square
        assert overlay[3] == pytest.approx(stage[3], rel=0.02)
        assert overlay[0] - stage[0] == pytest.approx((stage[2] - overlay[2]) / 2, abs=1)
        assert stage[1] == pytest.approx(plain[1], abs=0.5)  # beside the image
        assert stage[0] > plain[0] + plain[2]


def column(view: Browser, number: int) -> list[float]:
    cells = "[...document.querySelectorAll('.tall tbody tr')].map(row => row.cells[%d].dataset.v)"
    return [float(value) for value in view.js(cells % number)]


def test_tables_are_sorted_by_mouse_and_keyboard(view: Browser) -> None:
    view.view(1400, "light")
    head = ".tall thead th:nth-child(6)"
    before, names = column(view, 5), "[...document.querySelectorAll('.tall tbody th')].map(e => e.textContent)"
    original = view.js(names)
    assert before != sorted(before)
    view.click(f"{head} button")
    assert column(view, 5) == sorted(before)
    assert view.js(f"document.querySelector('{head}').getAttribute('aria-sort')") == "ascending"
    view.js(f"document.querySelector('{head} button').focus()")
    view.key("Enter")
    assert column(view, 5) == sorted(before, reverse=True)
    assert view.js(f"document.querySelector('{head}').getAttribute('aria-sort')") == "descending"
    view.js("document.querySelector('.tall thead th button').focus()")
    view.key("Enter")
    assert view.js(names) == sorted(original, key=lambda text: (text[0] != "<", text))  # as people sort
    assert view.js("document.querySelectorAll('.tall [aria-sort]').length") == 1


def test_every_control_is_reached_and_marked_by_the_tab_key(view: Browser) -> None:
    view.view(1400, "light")
    controls = "[...document.querySelectorAll('a, button, summary, [tabindex=\"0\"]')]"
    view.js(f"{controls}.forEach((each, n) => each.dataset.control = n); document.activeElement.blur()")
    shown = view.js(f"{controls}.filter(each => each.checkVisibility()).map(each => each.dataset.control)")
    assert len(shown) > 25
    view.js("window.getSelection().removeAllRanges(); document.querySelector('h1').focus(); scrollTo(0, 0)")
    reached = []
    for _ in range(len(shown) + 5):
        view.key("Tab")
        state = "const e = document.activeElement, s = getComputedStyle(e), own = e.dataset.control;"
        marked = "own === undefined || s.outlineStyle == 'solid'"  # on a busy machine a moment after the key
        found = f"{marked} ? [own, s.outlineStyle, parseFloat(s.outlineWidth)] : null"
        control, style, width = wait(view, f"(() => {{ {state} return {found} }})()", 10)
        if control is None:
            continue
        assert style == "solid"
        assert width >= 2
        reached.append(control)
    assert set(reached) == set(shown)


def test_cells_of_the_matrix_are_read_by_pointer_and_arrow_keys(view: Browser, result: EvaluationResult) -> None:
    view.view(1400, "light")
    said = "document.querySelector('.readout').textContent"
    view.js("document.querySelector('.matrix').focus()")
    view.key("ArrowDown")
    first = view.js(said)
    counts = result.confusion
    assert f"digit 0 predicted as digit 0: {counts[0, 0]} of {counts[0].sum()} images" in first
    view.key("ArrowDown")
    row = 1 + int(np.flatnonzero(counts[1:, 0])[0])
    name = result.given.classes[row]
    assert f"{name} predicted as digit 0: {counts[row, 0]} of {counts[row].sum()} images" in view.js(said)


def test_figures_and_images_have_names(view: Browser) -> None:
    assert view.unnamed_images() == []
    alts = view.js("[...document.querySelectorAll('img.map')].map(each => each.alt)")
    assert all(re.fullmatch(r"Class map: highest in row [1-4] of 4, column [1-4] of 4", alt) for alt in alts)


def test_print_has_every_section_and_image(view: Browser, tmp_path: Path) -> None:
    view.view(1400, "dark")
    printed = view.pdf()
    titles = re.findall(rb"/Title \((.*?)\)", printed)
    assert [title.decode() for title in titles if title.decode() in SECTIONS] == list(SECTIONS)
    assert printed.count(b"/Subtype /Image") >= view.js("new Set([...document.images].map(each => each.src)).size")
    assert view.js("[...document.querySelectorAll('details')].every(each => each.open)")
