"""Compare two finished runs bit for bit.

Compares the last checkpoint (weights, moving average, optimiser, selection, history), the model file, metrics.csv, the
report and its figures. Ignores times and what derives from them (seconds, images_per_second, dates) and the number of
available cores.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from vitreous.checkpoint.model_file import KEY
from vitreous.report.run_report import PICTURES
from vitreous.train.resume.saving import load_newest

__all__ = ["differences", "timeless", "unlike"]

TIMES = ("seconds", "images_per_second")


def differences(left: Path, right: Path) -> list[str]:
    """Return the differences of two finished runs, times excepted."""
    found = list(unlike(*(timeless(_state(folder)) for folder in (left, right)), "state"))
    found += unlike(*(_model(folder / "model.safetensors") for folder in (left, right)), "model")
    found += unlike(*(_rows(folder / "metrics.csv") for folder in (left, right)), "metrics")
    found += unlike(*(_report(folder / "report.json") for folder in (left, right)), "report")
    found += [name for name in PICTURES if (left / name).read_bytes() != (right / name).read_bytes()]
    return found


def _state(folder: Path) -> dict[str, Any]:
    found = load_newest(folder, print)
    return found[1].to_dict() if found else {}


def timeless(state: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a checkpoint without times."""
    history = [{name: value for name, value in row.items() if name not in TIMES} for row in state["history"]]
    probed = state["probed"] and {**state["probed"], "seconds": None}
    return {**state, "history": history, "seconds": None, "clock": None, "probed": probed}


def _model(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()[KEY])
        for name in ("date", "machine", "config"):  # the configuration contains the folder's name
            told["provenance"].pop(name)
        return {"told": told, **{name: file.get_tensor(name) for name in list(file.keys())}}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [{name: value for name, value in row.items() if name not in TIMES} for row in csv.DictReader(file)]


def _report(path: Path) -> dict[str, Any]:
    report = json.loads(path.read_text(encoding="utf-8"))
    report["training"].pop("seconds")
    report["machine"].pop("cores")  # available cores: some runs are pinned to one
    return report


def unlike(left: Any, right: Any, where: str) -> list[str]:
    """Return the paths at which two values differ in a bit."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        same = left.dtype == right.dtype and left.shape == right.shape
        return [] if same and left.numpy().tobytes() == right.numpy().tobytes() else [where]
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return [place for name in left for place in unlike(left[name], right[name], f"{where}.{name}")]
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [p for n, (a, b) in enumerate(zip(left, right, strict=True)) for p in unlike(a, b, f"{where}[{n}]")]
    return [] if json.dumps(left) == json.dumps(right) else [where]  # so that NaN equals NaN
