"""Run the GPU recipes, and the tutorials' settings beside ours, one after another.

    python benchmarks/training/gpu_records.py --out runs/records
    python benchmarks/training/gpu_records.py --out runs/records --only tutorial

Each run is a command of `vitreous train`, printed before it starts. A tutorial's setting runs as published, then our
recipe runs with a model of its size for as many epochs. Records run with three seeds, tutorials with one. Missing data
is downloaded first and not timed. Finished runs are skipped, interrupted ones resumed, and a failed run does not stop
the others. Prints a Markdown table, each row as its run ends: test and validation top-1, the aim (for a tutorial, what
it reports), epochs, wall-clock time of the whole command, and median and range over several seeds. Arguments after `--`
are added to every command.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from measuring import header
from vitreous.data.config import DataConfig
from vitreous.data.sources.known import load_known
from vitreous.recipes import recipe

RECORDS = {  # name: (arguments, aim in %)
    "record, cifar10": ("cifar10 --recipe cifar10-gpu --budget 10m", 96.5),
    "record, cifar10, linear patches": ("cifar10 --recipe cifar10-gpu --budget 10m --model.stem linear", 95.0),
    "record, cifar100": ("cifar100 --recipe cifar100-gpu --budget 10m", 81.0),
    "record, cifar100, linear patches": ("cifar100 --recipe cifar100-gpu --budget 10m --model.stem linear", 77.0),
}
TUTORIALS = {  # recipe: (our recipe, the tutorial's reported score in %)
    "notebook-cifar10": ("cifar10-gpu", 78.8),
    "notebook-cifar100": ("cifar100-gpu", 49.8),
    "annotated-cifar10": ("cifar10-gpu", None),
}


def commands() -> dict[str, tuple[str, float | None]]:
    """Return the arguments of `vitreous train` and the aim of each run, by name."""
    found: dict[str, tuple[str, float | None]] = dict(RECORDS)
    for name, (ours, reported) in TUTORIALS.items():
        published = recipe(name)
        data, model = published.data.source, published.model
        size = {field: getattr(model, field) for field in ("width", "depth", "heads", "mlp_dim", "patch_size")}
        words = " ".join(f"--model.{field} {value}" for field, value in size.items())
        found[f"tutorial, {name}"] = (f"{data} --recipe {name}", reported)
        found[f"tutorial, {name}, our training"] = (
            f"{data} --recipe {ours} --model.stem linear {words} --epochs {published.epochs}",
            None,
        )
    return found


def run(words: list[str], folder: Path) -> dict[str, Any] | None:
    """Train unless the run is finished, and return its report, or None if the command failed.

    The wall-clock seconds of each process are kept beside the folder.
    """
    report, times = folder / "report.json", folder.with_suffix(".seconds")
    command = [sys.executable, "-m", "vitreous", "train", *words, "--out", str(folder), "--resume"]
    print("$", " ".join(command), flush=True)
    done, began = report.exists(), time.monotonic()
    process = subprocess.Popen(command)
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the child got it too, saves, and prints how to resume
        process.wait()
        raise
    finally:
        if not done:
            times.parent.mkdir(parents=True, exist_ok=True)
            with times.open("a", encoding="utf-8") as file:
                print(f"{time.monotonic() - began:.0f}", file=file)
    return None if code else json.loads(report.read_text(encoding="utf-8"))


def seconds_of(folder: Path) -> str:
    """Return the wall-clock seconds of all processes of a run."""
    times = folder.with_suffix(".seconds")
    return " + ".join(times.read_text(encoding="utf-8").split()) if times.exists() else ""


def rows_of(name: str, seeds: int, shared: list[str], out: Path) -> Iterator[str]:
    """Run one entry with every seed; yield a table row for each run and one for the median."""
    words, aim = commands()[name]
    goal, reached = "" if aim is None else f"{aim} %", []
    for seed in range(seeds):
        folder = out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
        report = run([*words.split(), "--seed", str(seed), *shared], folder)
        if report is None:
            yield f"| {name} | {seed} | failed | | {goal} | | {seconds_of(folder)} |"
            continue
        top1, held_out = (100 * report["scores"][split]["top1"] for split in ("test", "val"))
        reached.append(top1)
        cells = f"{top1:.2f} % | {held_out:.2f} % | {goal} | {report['training']['epochs']}"
        yield f"| {name} | {seed} | {cells} | {seconds_of(folder)} |"
    if len(reached) > 1:
        spread = f"{statistics.median(reached):.2f} % ({min(reached):.2f} to {max(reached):.2f})"
        yield f"| {name} | median of {len(reached)} | {spread} | | {goal} | | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs' folders")
    parser.add_argument("--data-dir", default=DataConfig.dir)
    parser.add_argument("--only", default="", help="only runs whose name contains this")
    parser.add_argument("--seeds", type=int, help="seeds of every run [3 for records, 1 for tutorials]")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, added = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    chosen = [name for name in commands() if options.only in name]
    if not chosen:
        parser.error(f"--only {options.only} fits none of: {'; '.join(commands())}")
    data = str(Path(options.data_dir).expanduser())
    for source in {commands()[name][0].split()[0] for name in chosen}:
        load_known(source, data)  # a download is not part of any run's time
    rows = []
    for name in chosen:
        seeds = options.seeds or (3 if name in RECORDS else 1)
        for row in rows_of(name, seeds, ["--data-dir", data, *added], options.out):
            print(row, flush=True)
            rows.append(row)
    place = header(torch.device("cuda" if torch.cuda.is_available() else "cpu"), ("torch", "torchvision", "lightning"))
    columns = "| run | seed | test top-1 | validation | aim | epochs | seconds |\n|---|---|---|---|---|---|---|"
    print(f"\n{place}\n\n{columns}", *rows, sep="\n")
    sys.exit(any("| failed |" in row for row in rows))


if __name__ == "__main__":
    main()
