"""Checks what fine-tuning in stages promises: the best stage wins, the budget is kept, and cached features are reused.

    vitreous train cifar10 --recipe cifar10-cpu --budget 60m --out runs/source
    python benchmarks/training/stages.py runs/source flowers/ --budget 3m --seeds 0 1 2 --out runs/stages

For each seed, fine-tunes with an empty feature cache, between two runs of `vitreous embed` on the same training images,
and then once more with the features of the first run. Prints the top-1 on val of every stage and of the saved model as
a Markdown table; the time over the budget; the rate of the features over that of `vitreous embed`; the time of the
heads; and when the first head of the second run was printed, from the start of its process. Finished seeds are not
repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from vitreous.train.config import parse_duration

VITREOUS = str(Path(sys.executable).with_name("vitreous"))
HEADS = ("k-NN", "linear", "attentive")
FEATURES = re.compile(r"train: ([\d,]+) images, .*?(?:([\d,]+) images/s|from the cache)")


def embed_rate(model: Path, data: Path, out: Path) -> float:
    """Return the images per second of `vitreous embed` on the training images."""
    document = out.with_suffix(".json")
    command = [VITREOUS, "embed", str(model), str(data / "train"), "-o", f"{out}.npy", "--json", str(document)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    found = json.loads(document.read_text())
    return float(found["written"] / found["seconds"])


def finetune(options: argparse.Namespace, seed: int, out: Path, cache: Path) -> dict[str, Any]:
    """Fine-tune, and return the stages, the times, and the rate of the features, None if they were in the cache."""
    command = [VITREOUS, "finetune", str(options.data), "--from", str(options.source), "--seed", str(seed)]
    command += ["--budget", options.budget, "--out", str(out)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
    began, first_head, images, rate, lines = time.monotonic(), None, 0, None, []
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        for line in process.stdout or ():
            lines.append(line)
            if first_head is None and "linear: val" in line:
                first_head = time.monotonic() - began
            if found := FEATURES.search(line):
                images = int(found[1].replace(",", ""))
                rate = float(found[2].replace(",", "")) if found[2] else None
    seconds = time.monotonic() - began
    if process.returncode:
        sys.exit("".join(lines[-20:]))
    report = json.loads((out / "report.json").read_text())
    stages = report["finetune"]["stages"]
    heads = sum(stage["seconds"] for stage in stages if stage["stage"].split(",")[0] in HEADS)
    return {
        "stages": {stage["stage"]: stage["top1"] for stage in stages if stage["skipped"] is None},
        "skipped": {stage["stage"]: stage["skipped"] for stage in stages if stage["skipped"] is not None},
        "chosen": report["finetune"]["chosen"],
        "saved": report["scores"]["val"]["top1"],
        "heads": heads,
        "images": images,
        "first_head": first_head,
        "rate": rate,
        "seconds": seconds,
        "share": seconds / parse_duration(options.budget),
    }


def measure(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Measure a seed, or read what was measured."""
    folder = (options.out / f"{options.data.name}-{options.budget}-{seed}").resolve()  # a relative cache is ignored
    record = folder / "benchmark.json"
    if record.exists():
        return dict(json.loads(record.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    model, cache = options.source / "model.safetensors", folder / "cache"
    before = embed_rate(model, options.data, folder / "before")
    first = finetune(options, seed, folder / "first", cache)
    after = embed_rate(model, options.data, folder / "after")
    second = finetune(options, seed, folder / "second", cache)
    found = {"embed": [before, after], "first": first, "second": second}
    record.write_text(json.dumps(found, indent=1))
    return found


def main() -> None:
    """Measure all seeds, and print the stages and how the promises were kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the run whose model is fine-tuned")
    parser.add_argument("data", type=Path, help="a folder with train/ and val/")
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/stages"))
    options = parser.parse_args()
    runs = [measure(options, seed) for seed in options.seeds]
    both = [
        (seed, kind, run[kind])
        for seed, run in zip(options.seeds, runs, strict=True)
        for kind in run
        if kind != "embed"
    ]
    stages = list(dict.fromkeys(stage for _, _, run in both for stage in run["stages"]))
    print(f"\n{options.data.name}, {options.budget}: top-1 on val, %\n")
    print("| seed | run |", " | ".join(stages), "| saved | chosen |\n|---|---|" + "---|" * (len(stages) + 2))
    for seed, kind, run in both:
        cells = [f"{100 * run['stages'][stage]:.1f}" if stage in run["stages"] else "" for stage in stages]
        print(f"| {seed} | {kind} | {' | '.join(cells)} | {100 * run['saved']:.1f} | {run['chosen']} |")
    behind = [
        100 * (run["saved"] - max(top1 for stage, top1 in run["stages"].items() if stage != "k-NN"))
        for _, _, run in both
    ]
    print(f"\nthe saved model minus the best stage: {min(behind):+.2f} to {max(behind):+.2f} points")
    print_median("time over the budget", [run["share"] for _, _, run in both])
    rates = [run["first"]["rate"] / statistics.mean(run["embed"]) for run in runs]
    print_median("rate of the features over that of embed", rates)
    print_median("heads, s per 4,000 images", [4000 * run["first"]["heads"] / run["first"]["images"] for run in runs])
    print_median("first head of the second run, s", [run["second"]["first_head"] for run in runs])


def print_median(name: str, values: list[float]) -> None:
    """Print the median and the range."""
    print(f"{name}: {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})")


if __name__ == "__main__":
    main()
