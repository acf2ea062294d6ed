"""The page shows the figures of evaluation.json, asks nothing of the network, and runs no foreign text."""

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from vitreous.data.corruptions import CORRUPTIONS
from vitreous.data.placement import Placement
from vitreous.errors import ConfigError, OutputError, UsageError
from vitreous.evaluate.scoring.robustness import mean_corruption_error
from vitreous.inspection.explanation import Explanation
from vitreous.report.evaluation.folder import FILES, check_report_folder, write_folder
from vitreous.report.evaluation.page import page
from vitreous.report.evaluation.results import EvaluationInput, EvaluationResult, measure, with_robustness
from vitreous.report.evaluation.robustness import RobustnessResult, ShiftCurve


class Reader(HTMLParser):
    """Collects elements, and checks that they are closed in order."""

    VOID = frozenset(("meta", "link", "br", "img", "rect", "path", "circle", "polyline"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]


@pytest.fixture(scope="module")
def html(result: EvaluationResult, images: np.ndarray) -> str:
    errors = {name: [0.1, 0.2, 0.3, 0.4, 0.5] for name in CORRUPTIONS}
    shifts = {"rotation": ShiftCurve("degrees", 0, (-10, 0, 10), (0.5, 0.9, 0.5))}
    robustness = RobustnessResult(50, 0, 32, mean_corruption_error(errors, clean_error=0.1), shifts)
    return "".join(page(with_robustness(result, robustness), lambda n: images[n]))


def test_page_asks_nothing_of_the_network(html: str) -> None:
    reader = Reader(html)
    assert {attrs["src"][:11] for attrs in reader.all("img")} == {"data:image/"}
    assert all(attrs["href"].startswith("#") for attrs in reader.all("a"))
    assert [attrs["href"] for attrs in reader.all("link")] == ["data:,"]
    assert not {"iframe", "object", "embed", "base", "form"} & {tag for tag, _ in reader.found}
    without_names = html.replace("http://example.org", "")
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest", without_names)


def test_only_the_pages_own_script_runs(html: str) -> None:
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", html, re.DOTALL)
    assert [attributes for attributes, _ in scripts] == [' type="application/json" id="cells"', ""]
    digest = base64.b64encode(hashlib.sha256(scripts[1][1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    assert "default-src 'none'" in html
    assert "<script>alert" not in html
    assert "<b>one" not in html
    assert not [tag for tag, attrs in Reader(html).found if any(name.startswith("on") for name in attrs)]
    assert json.loads(scripts[0][1])["names"].count("<script>alert(9)</script>") == 1


def test_page_shows_the_figures_of_the_json(html: str, result: EvaluationResult) -> None:
    shown = dict(re.findall(r'data-key="(\w+)"><b>([-\d.%]+)</b>', html))
    assert shown.keys() == result.headline.keys()
    for name, text in shown.items():
        value = float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
        assert value == pytest.approx(result.headline[name].value, abs=6e-5), name
    assert html.count('<th scope="row"><bdi>') == len(result.given.classes)
    data = json.loads(re.search(r'id="cells">(.*?)</script>', html, re.DOTALL)[1])
    matrix = np.zeros((10, 10), int)
    for row, column, count in data["cells"]:
        matrix[row, column] = count
    assert (matrix == result.confusion[np.ix_(result.order, result.order)]).all()


def test_page_can_be_read_without_eyes_and_mouse(html: str) -> None:
    reader = Reader(html)
    assert 'lang="en"' in html
    drawings = [attrs for attrs in reader.all("svg") if attrs.get("aria-hidden") != "true"]
    assert len(drawings) > 20
    assert all(attrs.get("role") == "img" and attrs.get("aria-label") for attrs in drawings)
    ids = [attrs["id"] for _, attrs in reader.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for attrs in reader.all("a")} <= set(ids)
    assert {attrs["aria-labelledby"] for attrs in reader.all("section")} <= set(ids)
    assert all("alt" in attrs for attrs in reader.all("img"))
    assert all(attrs.get("scope") in ("col", "row") for attrs in reader.all("th"))
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert re.search(r"setAttribute\(\"aria-sort\"", html)


def test_page_of_a_thousand_classes_stays_small(images: np.ndarray) -> None:
    import torch

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3000) % 1000
    logits = torch.randn(3000, 1000, generator=generator)
    names = [f"{'long' * 40}/{n}.png" for n in range(3000)]
    given = EvaluationInput("m", "d", "s", [f"{'name' * 30}{k}" for k in range(1000)], names, logits, labels)
    photo = np.random.default_rng(0).integers(0, 255, (600, 800, 3), np.uint8)  # the largest JPEG there is
    place = Placement((0, 0, 800, 600), (518, 690), left=-86, top=0)
    noise = np.random.default_rng(1).random((37, 37), np.float32)  # as many patches as of 518 pixels by 14
    one = Explanation(noise, "m", 0, "0", 0.5, noise[0], "", (600, 800), (518, 518), place)
    text = "".join(page(measure(given, resamples=2), lambda n: photo, class_map=lambda n, label: one))
    assert text.count('class="map"') == 72
    assert len(text.encode()) < 10_000_000


def test_sheets_show_the_class_map_of_the_prediction(result: EvaluationResult, images: np.ndarray) -> None:
    """Each overlay has one pixel per patch, in Matplotlib's viridis from the lowest to the highest value."""
    asked: list[tuple[int, int]] = []

    def class_map(n: int, label: int) -> Explanation:
        asked.append((n, label))
        values = np.random.default_rng(n).random((2, 3), np.float32)
        place = Placement((0, 0, 8, 8), (8, 8), left=0, top=0)
        return Explanation(values, "m", label, str(label), 0.5, values[0], "", (8, 8), (8, 8), place)

    text = "".join(page(result, lambda n: images[n], class_map=class_map))
    shown = [n for sheet in (result.sheets.worst, result.sheets.uncertain, result.sheets.random) for n in sheet]
    assert asked == [(n, int(result.predicted[n])) for n in dict.fromkeys(shown)]
    overlays = re.findall(r'<img class="map" src="data:image/png;base64,([^"]*)" alt="Class map: (.*?)"', text)
    assert len(overlays) == len(shown)
    for n, (encoded, alt) in zip(shown, overlays, strict=True):
        values = np.random.default_rng(n).random((2, 3), np.float32)
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as png:
            pixels = np.asarray(png.convert("RGB"), int)
        scaled = (values - values.min()) / (values.max() - values.min())
        assert np.abs(pixels - 255 * mpl.colormaps["viridis"](scaled)[..., :3]).max() <= 4  # one of 256 steps
        row, column = np.unravel_index(values.argmax(), values.shape)
        assert alt == f"highest in row {row + 1} of 2, column {column + 1} of 3"
    assert text.count('class="scale"') == 1


def test_page_says_why_there_are_no_maps(result: EvaluationResult, images: np.ndarray) -> None:
    calls = []

    def refused(n: int, label: int) -> Explanation:
        calls.append(n)
        raise ConfigError("the model merges <tokens>")

    text = "".join(page(result, lambda n: images[n], class_map=refused))
    assert len(calls) == 1
    assert "The images are shown without class maps: the model merges &lt;tokens&gt;." in text
    assert text.count("data:image/png") > 72
    assert 'class="scale"' not in text
    assert "without class maps" not in "".join(page(result, lambda n: images[n]))


def test_unreadable_images_leave_their_place_empty(result: EvaluationResult) -> None:
    def gone(n: int) -> np.ndarray:
        raise OSError("gone")

    text = "".join(page(result, gone))
    assert "<img" not in text
    assert "folder/" in text


def test_folder_is_complete_or_absent(result: EvaluationResult, images: np.ndarray, tmp_path: Path) -> None:
    def broken(n: int) -> np.ndarray:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        write_folder(tmp_path / "report", result, broken)
    assert list(tmp_path.iterdir()) == []
    folder = write_folder(tmp_path / "report", result, lambda n: images[n])
    assert {path.name for path in folder.iterdir()} == set(FILES)
    with pytest.raises(UsageError, match="--overwrite"):
        write_folder(folder, result)
    write_folder(folder, result, overwrite=True)
    assert "<img" not in (folder / "report.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_folders_with_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes.txt', which is not part of a report"):
        check_report_folder(tmp_path, overwrite=True)
    with pytest.raises(UsageError, match="is not a folder"):
        check_report_folder(tmp_path / "notes.txt", overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"):
        check_report_folder(tmp_path / "link")
    with pytest.raises(OutputError, match="does not exist"):
        check_report_folder(tmp_path / "a" / "b")
    (tmp_path / "empty").mkdir()
    assert check_report_folder(tmp_path / "empty") == tmp_path / "empty"
