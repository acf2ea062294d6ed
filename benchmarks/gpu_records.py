"""The runs of docs/records.md that want a GPU, one after another: the records, and the tutorials beside ours.

    python benchmarks/gpu_records.py --out runs/records
    python benchmarks/gpu_records.py --out runs/records --only tutorial

Each is a command of `vitreous train`, printed before it starts; a tutorial's setting runs as published, and then our
recipe with a model of its size, for as many epochs. The records are run with three seeds, the tutorials with one. What
is not in the data folder is downloaded first, and does not count. A run that is finished is not made again, one that
was broken off is resumed, one of other settings in its folder is refused, and one that fails leaves the others alone.
Prints a table in Markdown, each row as its run ends: top-1 on test and on validation, epochs, the wall clock of the
whole command, and with several seeds the median and the range; a tutorial's aim is what it reports itself. Words after
`--` are added to every command.
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

from measuring import header
from vitreous.data.config import DataConfig
from vitreous.data.sources.known import load_known
from vitreous.recipes import recipe

RECORDS = {  # name: (words, what is aimed at, in %)
    "record, cifar10": ("cifar10 --recipe cifar10-gpu --budget 10m", 96.5),
    "record, cifar10, linear patches": ("cifar10 --recipe cifar10-gpu --budget 10m --model.stem linear", 95.0),
    "record, cifar100": ("cifar100 --recipe cifar100-gpu --budget 10m", 81.0),
    "record, cifar100, linear patches": ("cifar100 --recipe cifar100-gpu --budget 10m --model.stem linear", 77.0),
}
TUTORIALS = {  # recipe: (ours, what the tutorial reports, in %)
    "notebook-cifar10": ("cifar10-gpu", 78.8),
    "notebook-cifar100": ("cifar100-gpu", 49.8),
    "annotated-cifar10": ("cifar10-gpu", None),
}


def commands() -> dict[str, tuple[str, float | None]]:
    """Words of `vitreous train` and the aim of each run, by name."""
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
    """Train, unless that is done, and return the run's report, or None where the command failed.

    What its processes took, one after another, is kept beside the folder.
    """
    report, times = folder / "report.json", folder.with_suffix(".seconds")
    command = [sys.executable, "-m", "vitreous", "train", *words, "--out", str(folder), "--resume"]
    print("$", " ".join(command), flush=True)
    done, began = report.exists(), time.monotonic()
    process = subprocess.Popen(command)
    try:
        code = process.wait()
    except KeyboardInterrupt:  # it had the same, saves, and says how to go on
        process.wait()
        raise
    finally:
        if not done:
            times.parent.mkdir(parents=True, exist_ok=True)
            with times.open("a", encoding="utf-8") as file:
                print(f"{time.monotonic() - began:.0f}", file=file)
    return None if code else json.loads(report.read_text(encoding="utf-8"))


def seconds_of(folder: Path) -> str:
    """Wall-clock seconds of all processes that a run took."""
    times = folder.with_suffix(".seconds")
    return " + ".join(times.read_text(encoding="utf-8").split()) if times.exists() else ""


def rows_of(name: str, seeds: int, shared: list[str], out: Path) -> Iterator[str]:
    """Make the runs of a name, and yield a row of the table for each, and one for several."""
    words, aim = commands()[name]
    wanted, reached = "" if aim is None else f"{aim} %", []
    for seed in range(seeds):
        folder = out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
        report = run([*words.split(), "--seed", str(seed), *shared], folder)
        if report is None:
            yield f"| {name} | {seed} | failed | | {wanted} | | {seconds_of(folder)} |"
            continue
        top1, held_out = (100 * report["scores"][split]["top1"] for split in ("test", "val"))
        reached.append(top1)
        cells = f"{top1:.2f} % | {held_out:.2f} % | {wanted} | {report['training']['epochs']}"
        yield f"| {name} | {seed} | {cells} | {seconds_of(folder)} |"
    if len(reached) > 1:
        spread = f"{statistics.median(reached):.2f} % ({min(reached):.2f} to {max(reached):.2f})"
        yield f"| {name} | median of {len(reached)} | {spread} | | {wanted} | | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs' folders")
    parser.add_argument("--data-dir", default=DataConfig.dir)
    parser.add_argument("--only", default="", help="runs whose name has this in it")
    parser.add_argument("--seeds", type=int, help="of every run; three of each record and one of the others otherwise")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, added = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    chosen = [name for name in commands() if options.only in name]
    if not chosen:
        parser.error(f"--only {options.only} fits none of: {'; '.join(commands())}")
    data = str(Path(options.data_dir).expanduser())
    for source in {commands()[name][0].split()[0] for name in chosen}:
        load_known(source, data)  # a download is in no run's time
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
