"""No figure has texts that overlap or leave the canvas, whatever the data; light and dark differ in colour alone."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.report import style
from vitreous.report.batch_figure import save_batch_figure
from vitreous.report.figures import draw_curves
from vitreous.report.pretraining import Figures, PretrainReport, _neighbours, _reconstructions
from vitreous.report.pretraining import _curves as draw_pretraining

GAP = 6  # pixels that two texts side by side keep apart

NAMES = {
    "numbers": lambda k: [str(n) for n in range(k)],
    "long": lambda k: [f"a rather long name of class number {n}, with more words" for n in range(k)],
    "wide": lambda k: [f"花の名前はとても長いものです {n}" for n in range(k)],
}


@contextmanager
def saved_figures() -> Iterator[dict[Figure, None]]:
    """Collect the figures that are drawn within the block."""
    saved: dict[Figure, None] = {}
    draw = FigureCanvasAgg.draw

    def record(self: FigureCanvasAgg) -> None:
        saved[self.figure] = None
        draw(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FigureCanvasAgg, "draw", record)
        yield saved


def draw_checked(draw: Callable[[], bytes]) -> tuple[bytes, Figure, list[str]]:
    """Draw a figure, check the layout of its texts, and return its PNG, the figure and the texts."""
    with saved_figures() as saved:
        png = draw()
    (figure,) = saved
    return png, figure, check_texts(figure)


def check_texts(figure: Figure) -> list[str]:
    """Assert that no two texts of a figure overlap or nearly touch, and that none leaves the canvas; return them."""
    boxes = [(text.get_text(), _corners(text, figure)) for text in drawn_texts(figure)]
    width, height = figure.bbox.size
    for text, corners in boxes:
        assert (corners >= -1).all(), f"{text!r} leaves the canvas at the left or bottom"
        assert (corners <= (width + 1, height + 1)).all(), f"{text!r} leaves the canvas at the right or top"
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert _apart(a, b), f"{one!r} and {other!r} overlap"
    return [text for text, _ in boxes]


def drawn_texts(figure: Figure) -> list[Text]:
    """Return the texts that are drawn, without tick labels beyond the ends of an axis."""
    drawn: dict[Text, None] = {}
    draw = Text.draw

    def record(self: Text, renderer: object) -> None:
        if self.get_visible() and self.get_text().strip():
            drawn[self] = None
        draw(self, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        FigureCanvasAgg(figure).draw()
    return list(drawn)


def _corners(text: Text, figure: Figure) -> np.ndarray:
    """Return the (4, 2) corners of a text's box in pixels, turned as the text is, without a pixel of its margin."""
    renderer = figure.canvas.get_renderer()
    turned, angle = text.get_window_extent(renderer), text.get_rotation()
    text.set_rotation(0)
    flat = text.get_window_extent(renderer)
    text.set_rotation(angle)
    half = np.array([flat.width / 2 - 1, flat.height / 2 - 1]).clip(min=0)
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * half @ np.array([(cos, sin), (-sin, cos)])
    return corners + np.array([turned.x0 + turned.x1, turned.y0 + turned.y1]) / 2


def _apart(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether a line separates two boxes; texts on one line need a gap as well."""
    for index in range(2):
        for box in (a, b):
            edge = box[index + 1] - box[index]
            axis = edge / max(float(np.hypot(*edge)), 1e-9)
            gap = GAP if index == 0 and np.allclose(a[1] - a[0], [np.hypot(*(a[1] - a[0])), 0]) else 0
            one, other = a @ axis, b @ axis
            if one.max() + gap <= other.min() or other.max() + gap <= one.min():
                return True
    return False


def history(epochs: int, lr: float) -> list[dict[str, float]]:
    scores = [(e, 1 - 0.9 / e) for e in range(1, epochs + 1)]
    return [
        {"epoch": e, "train_loss": 2 / e, "val_log_loss": 1.5 / e, "val_top1": s, "val_macro_f1": s, "lr": lr / e}
        for e, s in scores
    ]


@pytest.mark.parametrize("lr", [3e-3, 1e-3, 1.23e-4, 4e-6, 1e-12, 0.8, 30.0, 0.0])
@pytest.mark.parametrize("epochs", [1, 50, 12000])
def test_curves(lr, epochs):
    scores = {"top1": 1.0, "macro_f1": 1.0}
    _, _, texts = draw_checked(lambda: draw_curves(history(epochs, lr), epochs, scores, "bf16"))
    assert "Learning rate" in texts


def test_the_terms_of_a_second_task_have_a_legend_below():
    rows = [{**row, "train_classification": 1.0, "train_reconstruction": 0.5} for row in history(9, 1e-3)]
    _, figure, texts = draw_checked(lambda: draw_curves(rows, 9))
    assert {"train", "validation", "train, labels", "train, reconstruction", "saved epoch"} <= set(texts)
    loss = figure.axes[0]
    assert loss.get_legend().get_window_extent().y1 < loss.get_window_extent().y0


@pytest.mark.parametrize("terms", [("agreement", "scale", "shape", "center"), ("teacher entropy", "divergence"), ()])
def test_the_terms_of_a_pretraining_loss_can_be_told_apart_and_no_legend_hides_them(terms):
    rows = [{"epoch": e, "train_loss": 2 / e, "val_loss": 1.0, "effective_rank": 3.0, "rankme": 4.0} for e in (1, 2, 3)]
    rows = [{**row, **{f"val_{name}": 0.1 * n for n, name in enumerate(terms)}} for row in rows]
    report = PretrainReport("run", "about", {}, rows, Figures([], [], []))
    _, figure, texts = draw_checked(lambda: draw_pretraining(report, style.LIGHT))
    loss = figure.axes[0]
    assert {"train", "validation", *terms} <= set(texts)
    assert len({line.get_color() for line in loss.lines}) == 2 + len(terms)
    if terms:
        assert loss.get_legend().get_window_extent().y1 < loss.get_window_extent().y0


@pytest.mark.parametrize(("count", "others", "size"), [(8, 6, (8, 8, 1)), (1, 0, (48, 64, 3)), (3, 2, (64, 32, 3))])
def test_images_of_a_pretraining_keep_their_texts_apart(count, others, size):
    images = [np.full(size, 20 * n, np.uint8) for n in range(count)]
    figures = Figures(images, [images[:others]] * count, [[1.0] * others] * count, images, images)
    report = PretrainReport("run", "about", {}, [], figures)
    _, figure, texts = draw_checked(lambda: _neighbours(report, style.LIGHT))
    assert texts.count("1.00") == count * others
    assert texts.count("most similar") == (others > 0)
    assert len(figure.axes[0].images) == count * (1 + others)
    _, figure, texts = draw_checked(lambda: _reconstructions(report, style.DARK))
    assert {"image", "visible", "completed"} <= set(texts)
    shown = [image.get_array().max() for image in figure.axes[0].images]
    assert shown == [20 * n for n in range(count)] * 3


def test_curves_without_data():
    draw_checked(lambda: draw_curves([]))


def test_the_axis_of_the_learning_rate_has_no_text_apart_from_its_ticks():
    _, figure, texts = draw_checked(lambda: draw_curves(history(5, 3e-3), 5))
    assert figure.axes[2].yaxis.get_offset_text().get_text() == ""
    assert {"0", "0.001", "0.003"} <= set(texts)
    _, _, texts = draw_checked(lambda: draw_curves(history(5, 5e-5), 5))
    assert {"0", "1e-5", "5e-5"} <= set(texts)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize(("count", "size"), [(1, (8, 8)), (40, (64, 48)), (3, (48, 128))])
def test_batch(tmp_path, count, size, names):
    pipeline = EvalPipeline(size, 3, PreprocessConfig(mean=(0.4,) * 3, std=(0.3,) * 3))
    images, targets = torch.zeros(count, 3, *size), torch.tensor([0.4, 0.6]).expand(count, 2)
    path = tmp_path / "batch.png"

    def draw() -> bytes:
        save_batch_figure(path, images, targets, NAMES[names](2), pipeline)
        return path.read_bytes()

    draw_checked(draw)


def luminance(colour: np.ndarray) -> float:
    parts = colour / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme", ["LIGHT", "DARK"])
def test_texts_and_lines_stand_out_from_their_background(theme):
    """Contrast of WCAG 2.2, AA: 4.5 : 1 for texts, and 3 : 1 for the lines that light and dark colours draw."""
    colours = getattr(style, theme)

    def contrast(one: str, other: str) -> float:
        low, high = sorted(luminance(255 * np.array(to_rgb(colour))) for colour in (one, other))
        return (high + 0.05) / (low + 0.05)

    for text in (colours.text, colours.muted, colours.red):
        for ground in (colours.background, colours.empty):
            assert contrast(text, ground) >= (4.5 if ground == colours.background or text != colours.red else 3)
    for line in (colours.blue, colours.green):
        assert contrast(line, colours.background) >= 3


DRAWINGS = {
    "curves": lambda dark: draw_curves(history(9, 1e-3), 7, dark=dark),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_dark_figures_have_the_same_layout_on_a_dark_ground(name):
    (light, _, one), (dark, _, other) = (draw_checked(lambda dark=dark: DRAWINGS[name](dark)) for dark in (False, True))
    with Image.open(io.BytesIO(light)) as a, Image.open(io.BytesIO(dark)) as b:
        assert a.size == b.size
        assert a.text["Title"] == b.text["Title"]
        white, black = (np.asarray(image.convert("RGB")) for image in (a, b))
    assert luminance(white[0, 0]) == 1
    assert luminance(black[0, 0]) < 0.02
    assert one == other
    dark_share = (black.max(axis=2) < 60).mean()
    assert dark_share > 0.5  # no panel stays white
