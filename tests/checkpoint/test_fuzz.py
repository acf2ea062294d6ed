"""A few hundred of the damaged files of benchmarks/fuzzing/model_files.py: each is one error of ours, or is read."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FORMATS = ("vitreous", "google", "timm", "huggingface", "shards", "torchvision", "torchvision-legacy")


@pytest.fixture(scope="module")
def fuzz():
    """Import the benchmark as a module."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        specification = importlib.util.spec_from_file_location("fuzz", BENCHMARKS / "fuzzing" / "model_files.py")
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


def test_damaged_files_are_read_or_raise_one_error(tmp_path):
    """In a separate process, because an audit hook cannot be removed and memory is limited."""
    script = (
        "import json, sys; from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[1]); import fuzzing.model_files as fuzz\n"
        "for kind in sys.argv[3:]:\n"
        "    (place := Path(sys.argv[2]) / kind).mkdir()\n"
        "    print(json.dumps([kind, fuzz.work(kind, place, 60, 1)]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, BENCHMARKS, tmp_path, *FORMATS],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    found = dict(json.loads(line) for line in run.stdout.splitlines())
    assert found.keys() == set(FORMATS)
    for kind, each in found.items():
        assert each["wrong"] == {}, kind
        assert sum(each["counts"].values()) == 60
        assert each["counts"]["refused"] > 10
        assert each["grown"] < 64 << 20


def test_hostile_files_cost_no_more_than_two_seconds_and_512_megabytes(tmp_path):
    """A few of benchmarks/fuzzing/costs.py; description goes through every verb."""
    counts = {"pickle": 60, "archive": 8, "array": 30, "configuration": 15, "description": 14}
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import fuzzing.costs as costs; from pathlib import Path\n"
        "for kind, count in json.loads(sys.argv[3]).items():\n"
        "    (place := Path(sys.argv[2]) / kind).mkdir()\n"
        "    print(json.dumps([kind, costs.work(kind, place, 0, count, 1)]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, BENCHMARKS, tmp_path, json.dumps(counts)],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    found = dict(json.loads(line) for line in run.stdout.splitlines())
    assert found.keys() == counts.keys()
    for kind, each in found.items():
        assert each["wrong"] == {}, kind
        assert sum(each["counts"].values()) == counts[kind]


def test_mutations_are_deterministic(fuzz):
    whole = {"model.npz": os.urandom(1000), "config.json": b'{"a": [1, 2, {"b": null}]}'}
    first, second = ([fuzz.mutated(whole, random.Random(5)) for _ in range(20)] for _ in range(2))
    assert first == second


WRONG = """
import sys; sys.path.insert(0, sys.argv[1])
import fuzzing.model_files as fuzz, os, signal, socket, subprocess
from pathlib import Path
from vitreous.errors import CheckpointError, VitreousError

def many_lines(): raise VitreousError("one\\ntwo")
def foreign(): raise ValueError("x")
def clear(): raise CheckpointError("one")
def slow():
    while True: pass
def late(*_): raise fuzz.Slow("late")

fuzz.CPU_SECONDS = 0.2
signal.signal(signal.SIGVTALRM, late)
folder = Path(sys.argv[2])
watch = fuzz.Watch(folder)
for read in (
    many_lines, foreign, clear, slow, int,
    lambda: os.system("true"), lambda: subprocess.run(["true"]), lambda: socket.create_connection(("127.0.0.1", 9)),
    lambda: (folder.parent / "outside").write_text("x"), lambda: (folder / "inside").write_text("x"),
    lambda: os.rename(folder / "inside", folder.parent / "outside"), lambda: os.mkdir(folder.parent / "more"),
):
    print(fuzz.outcome(read, watch).replace("\\n", " "))
"""


def test_the_fuzzer_detects_wrong_behaviour(tmp_path):
    (tmp_path / "in").mkdir()
    run = subprocess.run(
        [sys.executable, "-c", WRONG, BENCHMARKS, tmp_path / "in"],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    said = run.stdout.splitlines()
    wanted = ["WRONG message", "WRONG ValueError", "refused", "WRONG Slow", "read", "WRONG Told: os.system",
              "WRONG Told: subprocess.Popen", "WRONG Told: socket.connect", "WRONG Told: open", "read",
              "WRONG Told: os.rename", "WRONG Told: os.mkdir"]  # fmt: skip
    assert len(said) == len(wanted)
    assert all(line.startswith(start) for line, start in zip(said, wanted, strict=True)), said
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "more").exists()
