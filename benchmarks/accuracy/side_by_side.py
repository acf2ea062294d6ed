"""Trainings that are compared at equal wall-clock time: in turn on all cores, or at the same time on one core each."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Training(NamedTuple):
    """A run of `vitreous train`."""

    data: str
    options: Sequence[str]
    out: Path


def results(runs: Sequence[Training], *, together: bool = False) -> list[dict[str, float]]:
    """Train what is not finished yet, and return the score, epochs and seconds of each run.

    The score is the top-1 of the saved model on test, or without one on val.
    """
    started = []
    for core, run in enumerate(runs):
        if not (run.out / "benchmark.json").exists():
            began, process = time.monotonic(), _start(run, core if together else None)
            started.append((process, began, run.out))
            if not together:
                _finish(*started.pop())
    for each in started:
        _finish(*each)
    return [json.loads((run.out / "benchmark.json").read_text()) for run in runs]


def _start(run: Training, core: int | None) -> subprocess.Popen[bytes]:
    alone = ["taskset", "--cpu-list", str(core)] if core is not None else []
    command = [str(Path(sys.executable).with_name("vitreous")), "train", run.data, *run.options]
    return subprocess.Popen([*alone, *command, "--out", str(run.out), "--resume"])


def _finish(process: subprocess.Popen[bytes], began: float, out: Path) -> None:
    if process.wait():
        sys.exit(f"the run of {out} failed")
    seconds = time.monotonic() - began
    report = json.loads((out / "report.json").read_text())
    scores = report["scores"].get("test") or report["scores"]["val"]
    found = {"top1": scores["top1"], "epochs": report["training"]["epochs"], "seconds": seconds}
    (out / "benchmark.json").write_text(json.dumps(found))
