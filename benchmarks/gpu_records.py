"""The runs of docs/records.md that want a GPU, one after another: the records, and the tutorials beside ours.

    python benchmarks/gpu_records.py --out runs/records --data-dir ~/data
    python benchmarks/gpu_records.py --out runs/records --only tutorial --seeds 3

Each is a command of `vitreous train`, printed before it starts; a tutorial's setting runs as published, and then our
recipe with a model of its size, for as many epochs. A run whose folder has a report is not made again, one that was
broken off is resumed, and one that fails leaves the others alone. Prints a table in Markdown: top-1 on test, the wall
clock of the whole command, and with several seeds the median and the range; a tutorial's aim is what it reports itself.
Words after `--` are added to every command.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from measuring import header
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


def run(words: list[str], folder: Path) -> float | None:
    """Train unless that is done, and return the top-1 on test in %, or None where the command failed.

    What its processes took, one after another, is kept beside the folder.
    """
    report, times = folder / "report.json", folder.with_suffix(".seconds")
    if not report.exists():
        command = [sys.executable, "-m", "vitreous", "train", *words, "--out", str(folder), "--resume"]
        print("$", " ".join(command), flush=True)
        began = time.monotonic()
        code = subprocess.run(command, check=False).returncode
        times.parent.mkdir(parents=True, exist_ok=True)
        with times.open("a", encoding="utf-8") as file:
            print(f"{time.monotonic() - began:.0f}", file=file)
        if code:
            return None
    return 100 * float(json.loads(report.read_text(encoding="utf-8"))["scores"]["test"]["top1"])


def seconds_of(folder: Path) -> str:
    """Wall-clock seconds of all processes that a run took."""
    times = folder.with_suffix(".seconds")
    return " + ".join(times.read_text(encoding="utf-8").split()) if times.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs' folders")
    parser.add_argument("--data-dir", default="~/data")
    parser.add_argument("--only", default="", help="runs whose name has this in it")
    parser.add_argument("--seeds", type=int, default=1)
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, added = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    chosen = {name: row for name, row in commands().items() if options.only in name}
    if not chosen:
        parser.error(f"--only {options.only} fits none of: {'; '.join(commands())}")
    rows = []
    for name, (words, aim) in chosen.items():
        wanted, reached = "" if aim is None else f"{aim} %", []
        for seed in range(options.seeds):
            folder = options.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            shared = ["--seed", str(seed), "--data-dir", str(Path(options.data_dir).expanduser())]
            top1 = run([*words.split(), *shared, *added], folder)
            if top1 is not None:
                reached.append(top1)
            cell = "failed" if top1 is None else f"{top1:.2f} %"
            rows.append(f"| {name} | {seed} | {cell} | {wanted} | {seconds_of(folder)} |")
        if len(reached) > 1:
            spread = f"{statistics.median(reached):.2f} % ({min(reached):.2f} to {max(reached):.2f})"
            rows.append(f"| {name} | median of {len(reached)} | {spread} | {wanted} | |")
    place = header(torch.device("cuda" if torch.cuda.is_available() else "cpu"), ("torch", "torchvision", "lightning"))
    print(f"\n{place}\n\n| run | seed | test top-1 | aim | seconds |\n|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
