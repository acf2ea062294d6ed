"""The output of a run on terminals of any width: a line per epoch, and a live line that keeps what matters."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from vitreous.train.console import Display

ROW = {"train_loss": 1.2345, "val_top1": 0.6789, "val_macro_f1": 0.61, "images_per_second": 1234.0}
STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def terminal(width: int) -> tuple[Display, io.StringIO]:
    text = io.StringIO()
    console = Console(
        file=text, force_terminal=True, width=width, soft_wrap=True, highlight=False, markup=False, emoji=False,
        legacy_windows=False, color_system=None,
    )  # fmt: skip
    return Display(console), text


def lines(text: io.StringIO) -> list[str]:
    return [STEERING.sub("", line) for line in re.split(r"[\r\n]+", text.getvalue())]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_each_epoch_leaves_a_line_on_a_terminal(width):
    view, text = terminal(width)
    for epoch in (1, 2):
        view.step(f" {epoch}/80", epoch / 80, lambda: 1.5, 1234.0, 3725.0)
        view.epoch(f" {epoch}/80", ROW, 3725.0)
    view.stop_bar()
    for epoch in (1, 2):
        kept = [line for line in lines(text) if re.match(rf"epoch  {epoch}/80 +loss 1\.2", line)]
        assert len(kept) == 1
        assert cell_len(kept[0]) <= width
        assert ("val top-1 67.9 %" in kept[0]) == (width >= 60)
        assert ("macro F1 0.61" in kept[0]) == (width >= 60)
        assert ("1:02:05 left" in kept[0]) == (width >= 80)
        assert ("1,234 img/s" in kept[0]) == (width >= 120)


@pytest.mark.parametrize("width", [32, 40, 60, 80, 120])
def test_the_live_line_keeps_the_epoch_and_the_time_left(width):
    view, text = terminal(width)
    view.epoch(" 7/80", ROW, 3725.0)
    view.step(" 8/80", 0.1, lambda: 1.5, 1234.0, 3725.0)
    view.stop_bar()
    drawn = [line for line in lines(text) if line.startswith("epoch  8/80")]
    assert drawn
    assert all("1:02:05 left" in line and cell_len(line) <= width and "…" not in line for line in drawn)
    assert ("loss 1.50" in drawn[-1]) == (width >= 60)
    assert ("1,234 img/s" in drawn[-1]) == (width >= 120)


def test_lines_are_wrapped_between_words_on_a_terminal_and_commands_are_not():
    view, text = terminal(40)
    view.line("model", "vit 128x6, convolutional patch 16 on 128 px: 64 tokens, 0.918 M parameters")
    view.next(["vitreous", "predict", "a/very/long/folder/model.safetensors", "image one.jpg"])
    said = lines(text)
    assert said[:2] == ["model     vit 128x6, convolutional patch", "          16 on 128 px: 64 tokens, 0.918"]
    assert "next      vitreous predict a/very/long/folder/model.safetensors 'image one.jpg'" in said


def test_without_a_terminal_an_epoch_is_one_unwrapped_line():
    text = io.StringIO()
    view = Display(Console(file=text, width=40, soft_wrap=True))
    view.epoch("1/2", ROW, 5.0)
    assert text.getvalue() == "epoch 1/2  loss 1.234  val top-1 67.9 %  macro F1 0.61  1,234 img/s  0:05 left\n"
