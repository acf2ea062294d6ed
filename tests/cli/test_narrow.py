"""Tables on narrow terminals: complete headings, names shortened in the middle, nothing beyond the last column."""

import io
import os
import re
import sys

import pytest
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from vitreous.cli.output.predictions import writer
from vitreous.cli.output.terminal import print_table
from vitreous.files.writing import Outputs
from vitreous.predictions import Failure, Prediction

WIDTHS = (60, 80, 120)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch) -> "type[Terminal]":
    def of(columns: int) -> Terminal:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        return Terminal()

    return of


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


@pytest.mark.parametrize("columns", WIDTHS)
def test_sizes_keep_their_headings_and_costs(vitreous, terminal, monkeypatch, columns):
    stream = terminal(columns)
    monkeypatch.setattr(sys, "stdout", stream)
    from vitreous.cli.main import main

    assert main(["models", "B/16", "H/14"]) == 0
    lines = plain(stream.getvalue())
    assert max(map(cell_len, lines)) <= columns
    assert "\u2026" not in stream.getvalue()
    heading = next(line for line in lines if "size" in line).split()
    assert {"size", "image", "parameters", "GFLOPs", "memory"} <= set(heading)
    assert ("depth" in heading) == (columns == 120)
    assert "86,567,656" in stream.getvalue()
    assert "145 MB" in stream.getvalue()


NAMES = ("photos/2026/holidays/beach/" + "n" * 60 + "-0007.jpg", "a.jpg", "\u72ac" * 50 + "9.png")


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("label", ["daisy", "a class with quite a long name, as people give them", "\u72ac" * 40])
def test_predictions_keep_both_ends_of_names(terminal, columns, label):
    stream = terminal(columns)
    top = ((label, 0.9), ("tulips", 0.05), ("roses", 0.03), ("sunflowers", 0.02))
    results = [
        *(Prediction(label, 0.9, top, name) for name in NAMES),
        Failure("bad/" + "b" * 70 + ".jpg", "not an image"),
    ]
    import vitreous.cli.output.predictions as module

    previous, module.sys.stdout = module.sys.stdout, stream
    try:
        with writer("table", None, 4, {}, Outputs()) as write:
            for result in results:
                write(result)
    finally:
        module.sys.stdout = previous
    lines = plain(stream.getvalue())
    assert max(map(cell_len, lines)) <= columns
    assert len(lines) == len(results) + 4, "a row is one line"
    heading = next(line for line in lines if "image" in line)
    assert {"image", "label", "probability"} <= set(heading.split())
    for end in ("-0007.jpg" if columns > 60 else "7.jpg", "a.jpg", "9.png", "b.jpg"):
        assert any(end in line for line in lines), (end, lines)
    assert sum("90.0%" in line for line in lines) == 3
    assert any("not " in line for line in lines)


def test_columns_are_dropped_in_order_and_only_if_needed(terminal):
    def made() -> Table:
        table = Table("name", "a", "b", "c")
        table.add_row(Text("n" * 30), *("x" * 20 for _ in range(3)))
        return table

    heads = []
    for columns in (120, 90, 60, 30):
        stream = terminal(columns)
        print_table(made(), stream, drop=("b", "c", "a"), shorten=(0,))
        heads.append(" ".join(re.findall(r"\w+", plain(stream.getvalue())[1])))
        assert max(map(cell_len, plain(stream.getvalue()))) <= columns
    assert heads == ["name a b c", "name a c", "name a", "name"]


@pytest.mark.skipif(os.name == "nt", reason="a terminal as POSIX has it")
def test_a_real_terminal_of_sixty_columns():
    import fcntl
    import pty
    import struct
    import subprocess
    import termios

    lead, follow = pty.openpty()
    fcntl.ioctl(follow, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    words = [sys.executable, "-m", "vitreous", "models", "B/16"]
    process = subprocess.Popen(words, stdin=follow, stdout=follow, stderr=subprocess.DEVNULL, env=environment)
    os.close(follow)
    said = b""
    while True:
        try:
            part = os.read(lead, 4096)
        except OSError:  # Linux says so at the end
            break
        if not part:
            break
        said += part
    os.close(lead)
    assert process.wait() == 0
    lines = plain(said.decode().replace("\r", ""))
    assert max(map(len, lines)) <= 60
    assert "parameters" in said.decode()


def test_sentences_are_wrapped_and_commands_stay_whole(terminal, monkeypatch):
    stream = terminal(60)
    monkeypatch.setattr(sys, "stderr", stream)
    from vitreous.cli.main import main
    from vitreous.cli.output.terminal import narrate

    said = "Memory is what training keeps of each image in float32; `vitreous models B/16` prints that of one size."
    narrate(said)
    narrate("  vitreous train photos/ --exclude 'a list with a long name.txt' --model S/16 --epochs 30")
    assert main(["train", "digits", "--budget", "5m", "--epochs", "3"]) == 2
    lines = stream.getvalue().splitlines()
    command = lines.index("  vitreous train photos/ --exclude 'a list with a long name.txt' --model S/16 --epochs 30")
    assert " ".join(lines[:command]) == said
    assert any("`vitreous models B/16`" in line for line in lines)
    assert max(len(line) for line in lines if not line.startswith("  vitreous")) <= 60
    assert lines[command + 1].startswith("vitreous: --epochs 3 and --budget 5m")
