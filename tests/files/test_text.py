"""Untrusted text is harmless for terminals, spreadsheets, parsers and pages, and JSON and YAML return it exactly."""

import csv
import html
import io
import json
import math
import random
import sys
import unicodedata

import numpy as np
import pytest
import torch
import yaml

from vitreous.errors import CheckpointError, ConfigError, DataError, VitreousError, did_you_mean
from vitreous.files.text import (
    MAX_NAME_LENGTH,
    csv_cell,
    csv_line,
    html_text,
    json_text,
    json_values,
    printable,
    visible,
    yaml_text,
)

ODD = (
    *("", " ", "plain", "犬 \U0001f33b", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\x00", "a\x1b[31mb"),
    *("\x1b]0;t\x07", "\u202egnp.exe", "\u2066x", "\ufeffbom", "\u00ad", "\x7f", "\x85\x9b31m", "\u2028", "\ud800"),
    *("\udcff", "\U000e0041", "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "\uff1d1", "\u200d=1"),
    *("a;=1", 'a"=1', "a,=1", "a|=1", "'=1", "<b>&amp;</b>", '"><script>', "{x} %s \\x1b"),
)


def random_texts(count: int) -> list[str]:
    """Return random texts; half of their characters are troublesome ones."""
    draw = random.Random(0)
    special = "".join(ODD)
    return [
        "".join(
            draw.choice(special) if draw.random() < 0.5 else chr(draw.randrange(sys.maxunicode + 1))
            for _ in range(draw.randrange(12))
        )
        for _ in range(count)
    ]


TEXTS = [*ODD, *random_texts(3000)]


def unsafe(text: str) -> list[str]:
    """Return the characters that a terminal would interpret, or a reader would not see."""
    return [ascii(char) for char in text if unicodedata.category(char)[0] in "CZ" and char not in " \u200c\u200d"]


def test_names_and_lines_have_no_unsafe_characters():
    for text in TEXTS:
        assert unsafe(visible(text)) == []
        assert unsafe(printable(text)) == []
        assert visible(text) == visible(text).strip(" ")
        if text.isprintable() and text == text.strip(" "):
            assert visible(text) == printable(text) == text


def test_csv_has_no_formulas_and_one_line_per_row():
    for text in TEXTS:
        line = csv_line([text, -0.5, 7, text])
        assert unsafe(line[:-1]) == []
        assert line.count("\n") == 1
        for delimiter in ",;|":
            for cell in next(csv.reader(io.StringIO(line), delimiter=delimiter)):
                number = cell in ("-0.5", "7")
                assert number or cell.lstrip(" \u200c\u200d")[:1] not in tuple("=+-@\uff1d\uff0b\uff0d\uff20\t\r"), line
        assert next(csv.reader([line])) == [csv_cell(text), "-0.5", "7", csv_cell(text)]


def test_json_is_printable_and_returns_the_exact_text():
    for text in TEXTS:
        written = json_text({text: [text, 1.5, None]}, indent=1)
        assert unsafe(written.replace("\n", "")) == []
        plain = json_text({text: text}, ascii_only=True)
        assert plain.isascii()
        assert plain.isprintable()
        assert json.loads(plain) == {text: text}
        assert json.loads(written) == {text: [text, 1.5, None]}
        written.encode("utf-8")
    assert "犬" in json_text("犬")
    assert json.loads(json_text({"a": (float("nan"), float("inf"), 1e308)})) == {"a": [None, None, 1e308]}


def test_yaml_is_printable_and_returns_the_exact_text():
    for text in TEXTS:
        written = yaml_text(text)
        assert unsafe(written) == []
        assert yaml.safe_load(f"name: {written}") == {"name": text}


def test_html_is_escaped():
    for text in TEXTS:
        shown = html_text(text)
        assert set("<>\"'") & set(shown) == set()
        assert html.unescape(shown) == visible(text)


@pytest.mark.parametrize("text", ["a" * 10_000_000, "\x1b" * 1_000_000, " " * 1_000_000, "ab\u202e " * 300_000])
def test_a_long_name_loses_its_middle_and_counts_it(text):
    shown = visible(text)
    assert len(shown) < MAX_NAME_LENGTH + 30
    ends = shown.split("...(")
    omitted = int(ends[1].split(" more)...")[0].replace(",", ""))
    kept = ends[0] + ends[1].split(" more)...")[1]
    assert len(kept) <= MAX_NAME_LENGTH
    assert len(text) - MAX_NAME_LENGTH <= omitted < len(text)
    assert json.loads(json_text(text)) == text
    assert csv_cell(text[:1000]) == printable(text[:1000])


@pytest.mark.parametrize("kind", [VitreousError, DataError, ConfigError, CheckpointError])
def test_errors_of_every_class_are_bounded_and_printable(kind):
    name = "\x1b]0;x\x07\u202e" * 1_000_000
    message = str(kind(f"'{name}' is unknown: name another"))
    assert len(message) < 1700
    assert unsafe(message) == []
    assert message.startswith("'\\x1b]0;x\\x07\\u202e")
    assert message.endswith("' is unknown: name another")
    assert "more)" in message


def test_suggestions_are_bounded_and_printable():
    assert did_you_mean("b" * 1_000_000, ["b" * 999_999]) == ""
    assert did_you_mean("ca\x1bt", ["ca\x1bts"]) == " Did you mean 'ca\\x1bts'?"


def test_json_values_are_those_that_json_returns():
    scalars = [np.float32(0.5), np.int64(3), np.bool_(True), torch.tensor(0.25), np.float64("nan"), -math.inf, None]
    values = {1: (2, [np.uint8(7)]), "a": scalars, "b": {}}
    plain = json_values(values)
    assert plain == {"1": [2, [7]], "a": [0.5, 3, True, 0.25, None, None, None], "b": {}}
    assert [type(each) for each in plain["a"][:4]] == [float, int, bool, float]
    assert json.loads(json.dumps(plain, allow_nan=False)) == json.loads(json_text(values)) == plain
    with pytest.raises(TypeError):
        json_text({"a": np.zeros(1)})
