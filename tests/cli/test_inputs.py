"""Expansion of IMAGES: lists on standard input."""

from __future__ import annotations

import io
import os
import sys

import pytest

from vitreous.cli.options.inputs import expand
from vitreous.errors import DataError


@pytest.mark.parametrize(
    ("listed", "paths"),
    [
        (b"a b.jpg\0caf\xe9\n.jpg\0", [b"a b.jpg", b"caf\xe9\n.jpg"]),
        (b"a b.jpg\r\n\ncaf\xe9.jpg", [b"a b.jpg", b"caf\xe9.jpg"]),
    ],
)
def test_lists_are_separated_by_line_feeds_or_nul(monkeypatch, listed, paths):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(listed)))
    assert expand(["-"]) == [os.fsdecode(path) for path in paths]


def test_an_empty_list_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\0\n\0")))
    with pytest.raises(DataError, match="is empty"):
        expand(["-"])
