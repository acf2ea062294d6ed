"""Trainings that are compared at equal wall-clock time: in turn on all cores, or at the same time on one core each.

Each run starts with an empty cache of features and converted models, as the first one of a user does. What the hub's
client has downloaded stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple


class Training(NamedTuple):
    """A run of `vitreous train`."""

    data: str
    options: Sequence[str]
    out: Path


Step = Sequence[Training]
"""Runs at the same time, on one core each, if there are several."""


def results(runs: Sequence[Training], *, together: bool = False) -> list[dict[str, Any]]:
    """Train what is not finished yet, and return the score, epochs and seconds of each run, as :func:`last_results`."""
    return last_results([[[run]] for run in runs], together=together)


def last_results(chains: Sequence[Sequence[Step]], *, together: bool = False) -> list[dict[str, Any]]:
    """Take the steps of each chain one after another, and return what is known of each chain's last run.

    The score is the top-1 of the saved model on test, or without one on val; the seconds are those of all steps of the
    chain. Finished runs are not repeated. If one of the chains that go together is finished already, nothing runs
    beside the other, and the two are not comparable: repeat both.
    """
    for step in (step for chain in chains for step in chain):
        if together and len(step) > 1:
            sys.exit(f"a chain has {len(step)} runs at the same time, on one core each: omit --together")
        for run in step:
            _stored(run, together or len(step) > 1)  # a refusal comes before the first training
    if not together:
        return [_last(chain, None) for chain in chains]
    return _on_one_core_each(_last, chains)


def _last(chain: Sequence[Step], core: int | None) -> dict[str, Any]:
    steps = [_on_one_core_each(_result, step) if len(step) > 1 else [_result(step[0], core)] for step in chain]
    return {**steps[-1][-1], "seconds": sum(max(each["seconds"] for each in step) for step in steps)}


def _on_one_core_each(work: Callable[[Any, int], dict[str, Any]], of: Sequence[Any]) -> list[dict[str, Any]]:
    cores = sorted(os.sched_getaffinity(0))
    if len(of) > len(cores):
        sys.exit(f"{len(of)} runs at the same time need as many cores, and there are {len(cores)}")
    with ThreadPoolExecutor(len(of)) as pool:
        return list(pool.map(work, of, cores))


def _stored(run: Training, together: bool) -> dict[str, Any] | None:
    """Return the result of a finished run; None if there is none."""
    record = run.out / "benchmark.json"
    if not record.exists():
        return None
    found: dict[str, Any] = json.loads(record.read_text())
    if found.get("asked") != _asked(run, together):
        sys.exit(f"{record} is of another run: use another --out")
    return found


def _asked(run: Training, together: bool) -> dict[str, Any]:
    return {"data": run.data, "options": list(run.options), "together": together}


def _hub_home() -> str:
    """Return where the hub's client keeps its downloads, which it looks for in the cache."""
    return str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface")


def _result(run: Training, core: int | None) -> dict[str, Any]:
    if (found := _stored(run, core is not None)) is not None:
        return found
    alone = ["taskset", "--cpu-list", str(core)] if core is not None else []
    command = [str(Path(sys.executable).with_name("vitreous")), "train", run.data, *run.options]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:  # features that an earlier run computed would be time that it saves
        environment = {"HF_HOME": _hub_home(), **os.environ, "XDG_CACHE_HOME": cache}
        subprocess.run([*alone, *command, "--out", str(run.out), "--resume"], check=True, env=environment)
    seconds = time.monotonic() - began
    report = json.loads((run.out / "report.json").read_text())
    scores = report["scores"].get("test") or report["scores"]["val"]
    found = {"top1": scores["top1"], "epochs": report["training"]["epochs"], "seconds": seconds}
    found["asked"] = _asked(run, core is not None)
    (run.out / "benchmark.json").write_text(json.dumps(found))
    return found
