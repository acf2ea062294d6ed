"""`vitreous embed`: every format has the library's vectors."""

import csv
import re

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

import vitreous as package
from vitreous.cli.output.features import WRITERS
from vitreous.files.writing import atomic_write
from vitreous.predictions import Embedding


@pytest.fixture
def asked(tmp_path, photographs) -> list[str]:
    for n in range(3):
        Image.fromarray(photographs[n % 2]).rotate(30 * n).save(tmp_path / f"{n}.png")
    return ["2.png", "0.png", "1.png"]


def test_parquet_has_the_librarys_vectors_without_unreadable_images(command, model_file, asked, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"bad")
    run = command("embed", model_file, *asked[:1], "bad.png", *asked[1:], "-o", "f.parquet", "--precision=float32")
    assert run.returncode == 1
    said = run.stderr.splitlines()
    assert re.fullmatch(r"3 images in [\d.]+ s, [\d,.]+ img/s: \w+, \w+, cpu", said.pop(1))
    assert said == [
        "vitreous: bad.png: not an image",
        "3 vectors of 32 numbers in f.parquet",
        "vitreous: 1 of 4 images could not be read",
    ]
    table = parquet.read_table(tmp_path / "f.parquet")
    assert table["path"].to_pylist() == asked
    expected = package.load(model_file, precision="float32").embed([tmp_path / name for name in asked])
    np.testing.assert_allclose(np.stack(table["embedding"].to_numpy()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npz", ".npy"])
@pytest.mark.parametrize("count", [0, 3, 4097])
def test_every_format_restores_the_same_bits(tmp_path, suffix, count):
    vectors = np.random.default_rng(0).standard_normal((count, 5)).astype(np.float32)
    names = [f'p {n}, "x" 犬' for n in range(count)]
    with atomic_write(tmp_path / f"f{suffix}") as path, WRITERS[suffix](path, 5) as write:
        for name, vector in zip(names, vectors, strict=True):
            write(Embedding(vector, name))
    file = tmp_path / f"f{suffix}"
    if suffix == ".parquet":
        table = parquet.read_table(file)
        found, back = table["path"].to_pylist(), np.asarray(table["embedding"].to_pylist(), np.float32)
    elif suffix == ".csv":
        rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
        assert rows[0] == ["path", "f0", "f1", "f2", "f3", "f4"]
        found, back = [row[0] for row in rows[1:]], np.asarray([row[1:] for row in rows[1:]], np.float32)
    else:
        loaded = np.load(file)
        found = names if suffix == ".npy" else loaded["path"].tolist()
        back = loaded if suffix == ".npy" else loaded["embedding"]
    assert found == names
    assert np.array_equal(back.reshape(-1, 5), vectors)
    assert [each.name for each in tmp_path.iterdir()] == [f"f{suffix}"]


def test_an_error_leaves_no_file(tmp_path):
    def interrupted() -> None:
        with atomic_write(tmp_path / "f.parquet") as path, WRITERS[".parquet"](path, 2) as write:
            write(Embedding(np.zeros(2, np.float32), "a"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
