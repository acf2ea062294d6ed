"""Trainings that are compared at equal wall-clock time: in turn on all cores, or at the same time on one core each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple


class Training(NamedTuple):
    """A run of `vitreous train`."""

    data: str
    options: Sequence[str]
    out: Path


def results(runs: Sequence[Training], *, together: bool = False) -> list[dict[str, Any]]:
    """Train what is not finished yet, and return the score, epochs and seconds of each run.

    The score is the top-1 of the saved model on test, or without one on val. If one of the runs that go together is
    finished already, the other has its core alone but not the same company: repeat both for a comparison.
    """
    cores = sorted(os.sched_getaffinity(0))
    if together and len(runs) > len(cores):
        sys.exit(f"{len(runs)} runs at the same time need as many cores, and there are {len(cores)}")
    with ThreadPoolExecutor(len(runs) if together else 1) as pool:
        return list(pool.map(_result, runs, cores if together else [None] * len(runs)))


def _result(run: Training, core: int | None) -> dict[str, Any]:
    record, asked = run.out / "benchmark.json", {"data": run.data, "options": list(run.options)}
    if record.exists():
        stored = json.loads(record.read_text())
        if stored.get("asked") != asked:
            sys.exit(f"{record} is of another run: use another --out")
        return stored
    alone = ["taskset", "--cpu-list", str(core)] if core is not None else []
    command = [str(Path(sys.executable).with_name("vitreous")), "train", run.data, *run.options]
    began = time.monotonic()
    subprocess.run([*alone, *command, "--out", str(run.out), "--resume"], check=True)
    seconds = time.monotonic() - began
    report = json.loads((run.out / "report.json").read_text())
    scores = report["scores"].get("test") or report["scores"]["val"]
    found = {"top1": scores["top1"], "epochs": report["training"]["epochs"], "seconds": seconds, "asked": asked}
    record.write_text(json.dumps(found))
    return found
