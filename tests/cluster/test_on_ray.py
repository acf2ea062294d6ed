"""`--on ray://local` with two workers: the results of one machine, also when a worker is killed in the middle."""

from __future__ import annotations

import csv
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from vitreous.cli.main import main
from vitreous.cluster.address import connect

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

TINY = (
    *("--device", "cpu", "--precision", "float32", "--optim.name", "adamw", "--batch_size", "256"),
    *("--model.width", "16", "--model.depth", "1", "--model.heads", "2", "--model.mlp_dim", "32"),
)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for all tests, to which the commands connect."""
    connect("ray://local", 2)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "run"
    assert main(["train", "digits", *TINY, "--epochs", "1", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """640 images in 10 parts, one of them damaged."""
    folder = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0).integers(0, 256, (640, 16, 16), np.uint8)
    for number, each in enumerate(pixels):
        Image.fromarray(each).save(folder / f"{number:04d}.png")
    (folder / "0300.png").write_bytes(b"no image")
    return folder


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_killed_worker_leaves_the_run_complete(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, killed = tmp_path / "run", []

    def kill_the_worker_of_process_1() -> None:
        while len(killed) < 1:
            time.sleep(0.05)
            if (run / "metrics.csv").exists() and (run / "ranks" / "1.json").exists():
                keeper = parent_of(json.loads((run / "ranks" / "1.json").read_text())["pid"])
                killed.append(parent_of(keeper))
                os.kill(killed[0], signal.SIGKILL)

    thread = in_background(kill_the_worker_of_process_1)
    words = ["train", "digits", *TINY, "--epochs", "20", "--devices", "2", "--out", str(run), "--on", "ray://local"]
    assert main(words) == 0
    thread.join(1)
    told, errors = capfd.readouterr()
    assert killed
    assert "raylet" not in told  # Ray's own words do not mix with the output
    assert "a worker was lost: the run continues in" in errors
    assert told.count("model.safetensors") >= 1
    with (run / "metrics.csv").open(newline="") as file:
        assert [int(row["epoch"]) for row in csv.DictReader(file)] == list(range(1, 21))
    assert (run / "report.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_killed_worker_leaves_each_prediction_once(
    model: Path, images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    alone, many, parts = tmp_path / "alone.jsonl", tmp_path / "many.jsonl", tmp_path / "parts"
    assert main(["predict", str(model), str(images), "--engine", "torch", "-o", str(alone)]) == 1
    capfd.readouterr()

    def kill_a_worker() -> None:
        while not list(parts.glob("*/part-*.parquet")):
            time.sleep(0.005)
        os.kill(workers()[0], signal.SIGKILL)

    thread = in_background(kill_a_worker)
    on = ["--on", "ray://local", "--workers", "2", "--parts", str(parts), "--engine", "torch"]
    words = ["predict", str(model), str(images), *on, "-o", str(many)]
    assert main(words) == 1  # because of the damaged image, as on one machine
    thread.join(1)
    assert "a worker died: another one takes over its images" in capfd.readouterr().err
    assert many.read_text() == alone.read_text()
    table = parquet.read_table(parts)
    assert sorted(table["path"].to_pylist()) == sorted(str(path) for path in images.iterdir())
    assert sum(error is not None for error in table["error"].to_pylist()) == 1

    # The same command, after its output and some of its parts are gone, computes what is missing.
    many.unlink()
    whole = sorted(parts.glob("*/part-*.parquet"))
    whole[3].unlink()
    whole[5].write_bytes(whole[5].read_bytes()[:100])
    before = {path: path.stat().st_mtime_ns for path in whole if path not in (whole[3], whole[5])}
    assert main(words) == 1
    assert many.read_text() == alone.read_text()
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_features_and_scores_are_those_of_one_machine(model: Path, images: Path, tmp_path: Path) -> None:
    on = ["--on", "ray://local", "--workers", "2"]
    for name, words in (("alone", []), ("many", on)):
        embed = ["embed", str(model), str(images), "--engine", "torch", "-o", str(tmp_path / f"{name}.npz"), *words]
        assert main(embed) == 1
        scores = tmp_path / f"{name}.json"
        evaluate = ["evaluate", str(model), "digits", "--engine", "torch", "--json", str(scores), *words]
        assert main(evaluate) == 0
    one, two = (np.load(tmp_path / f"{name}.npz") for name in ("alone", "many"))
    assert (one["path"] == two["path"]).all()
    assert (one["embedding"] == two["embedding"]).all()
    assert (tmp_path / "alone.json").read_text() == (tmp_path / "many.json").read_text()
    assert not list(tmp_path.glob("*.parts"))  # they end with the output that they led to


def test_an_error_of_a_worker_is_the_error_of_the_command(
    model: Path, images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = ["train", "digits", *TINY, "--batch_size", "3", "--devices", "2", "--out", str(tmp_path / "run")]
    assert main([*wrong, "--on", "ray://local"]) == 2
    errors = capfd.readouterr().err
    assert "a batch of 3 images is too small for 2 processes" in errors
    assert "a worker was lost" not in errors


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def workers() -> list[int]:
    """The processes of the actors that compute."""
    found = []
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::_Worker" in status.read_bytes():
                found.append(int(status.parent.name))
        except OSError:
            continue
    return found
