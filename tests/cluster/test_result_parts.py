"""Parts of results: read back as they were, named after what they are results of, and never half there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from vitreous.cluster.parts import JOB, PartFolder, decode, discard, encode, part_size
from vitreous.predictions import Embedding, Failure, Prediction

CLASSES = ("cat", "d\udce9og")  # the second is no valid Unicode, as a folder of another encoding is called
NAMES = ["a.jpg", "b\udcff.jpg", "c.jpg"]


def predictions() -> list[Prediction | Failure]:
    half = float(np.float32(0.3))
    top = (("d\udce9og", float(np.float32(0.7))), ("cat", half))
    held = {"unsure": True, "set": ("cat", "d\udce9og"), "set_coverage": 0.9, "labels": ("cat",)}
    return [
        Prediction(*top[0], top=top, name="a.jpg"),
        Failure("b\udcff.jpg", "no such file"),
        Prediction(*top[0], top=top, name="c.jpg", **held),
    ]


def test_predictions_come_back_as_they_were() -> None:
    table = encode(predictions(), NAMES, "predict")
    assert list(decode(table, NAMES, CLASSES, "predict")) == predictions()


@pytest.mark.parametrize("kind", ["embed", "logits"])
def test_vectors_come_back_as_they_were(kind: str) -> None:
    rows = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    found = [Embedding(row, "") if kind == "embed" else row for row in rows]
    table = encode([found[0], Failure("b", "empty"), found[1]], NAMES, kind)
    first, failure, last = decode(table, NAMES, CLASSES, kind)
    assert failure == Failure(NAMES[1], "empty")
    for row, result, name in ((rows[0], first, NAMES[0]), (rows[1], last, NAMES[2])):
        if kind == "embed":
            assert result.name == name
        assert (getattr(result, "vector", result) == row).all()


def test_only_whole_parts_are_finished(tmp_path: Path) -> None:
    names = [f"{number}.jpg" for number in range(150)]
    folder = PartFolder(tmp_path, {"kind": "logits", "model": "m"}, names)
    assert len(folder) == 3
    assert [len(folder.names_of(part)) for part in range(3)] == [64, 64, 22]
    for part in range(3):
        rows = [np.zeros(2, np.float32) for _ in folder.names_of(part)]
        folder.write(part, encode(rows, folder.names_of(part), "logits"))
    assert folder.missing() == []
    first, second, third = sorted(folder.path.glob("part-*.parquet"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-10])
    parquet.write_table(parquet.read_table(third).slice(1), third)  # a row is missing
    assert PartFolder(tmp_path, {"kind": "logits", "model": "m"}, names).missing() == [0, 1, 2]


def test_another_job_has_another_folder(tmp_path: Path) -> None:
    names = ["a.jpg", "b.jpg"]
    folders = [
        PartFolder(tmp_path, job, listed).path
        for job, listed in (
            ({"kind": "predict", "model": "m", "top_k": 5}, names),
            ({"kind": "predict", "model": "m", "top_k": 1}, names),
            ({"kind": "predict", "model": "n", "top_k": 5}, names),
            ({"kind": "predict", "model": "m", "top_k": 5}, names[::-1]),
            ({"kind": "embed", "model": "m", "top_k": 5}, names),
        )
    ]
    assert len(set(folders)) == len(folders)
    assert all((folder / JOB).exists() for folder in folders)


def test_only_parts_are_discarded(tmp_path: Path) -> None:
    PartFolder(tmp_path / "parts", {"kind": "embed"}, ["a.jpg"])
    (tmp_path / "parts" / "notes").mkdir()
    discard(tmp_path / "parts")
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["notes"]
    (tmp_path / "parts" / "notes").rmdir()
    PartFolder(tmp_path / "parts", {"kind": "embed"}, ["a.jpg"])
    discard(tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize("images", [1, 64, 65, 3_670, 65_536, 100_000_000])
def test_parts_are_neither_tiny_nor_huge(images: int) -> None:
    assert 64 <= part_size(images) <= 2048
