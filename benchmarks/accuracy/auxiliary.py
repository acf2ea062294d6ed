"""Compares masked reconstruction beside classification with classification alone at equal wall-clock time, in turn.

    python benchmarks/accuracy/auxiliary.py flowers/ --budget 13m --seeds 0 1 2 --out runs/auxiliary

Both train the recipe `folder` from random weights, as a user runs them; further options of `vitreous train` go to both
after `--both`, and to the second task after `--aux`, each as one text: --aux "--aux.weight 0.5". Prints the top-1 of
the saved model on the test split, or without one on val, on which the epoch was selected, for both alike. Finished runs
are not repeated.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path


def trained(data: str, options: list[str], budget: str, seed: int, out: Path) -> dict[str, float]:
    """Train unless the run is finished; return its score and the seconds of the command."""
    record = out / "benchmark.json"
    if not record.exists():
        command = [str(Path(sys.executable).with_name("vitreous")), "train", data, "--start", "none", *options]
        began = time.monotonic()
        subprocess.run([*command, "--budget", budget, "--seed", str(seed), "--out", str(out), "--resume"], check=True)
        report = json.loads((out / "report.json").read_text())
        scores = report["scores"].get("test") or report["scores"]["val"]
        found = {"top1": scores["top1"], "epochs": report["training"]["epochs"], "seconds": time.monotonic() - began}
        record.write_text(json.dumps(found))
    return json.loads(record.read_text())


def main() -> None:
    """Run both with all seeds, and print a Markdown table and the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder, a manifest or a known dataset")
    parser.add_argument("--budget", default="13m")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--recipe", default="folder")
    parser.add_argument("--both", default="", help="options of both")
    parser.add_argument("--aux", default="", help="further options of the second task")
    parser.add_argument("--out", type=Path, default=Path("runs/auxiliary"))
    options = parser.parse_args()
    both = ["--recipe", options.recipe, *shlex.split(options.both)]
    kinds = {"plain": both, "aux mae": [*both, "--aux", "mae", *shlex.split(options.aux)]}
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for seed in options.seeds:
        for kind, words in kinds.items():
            folder = options.out / f"{kind.replace(' ', '-')}-{seed}"
            found[kind].append(trained(options.data, words, options.budget, seed, folder))
    print(f"\n{options.budget}, seeds {' '.join(map(str, options.seeds))}\n\n| | top-1 | epochs |\n|---|---|---|")
    for kind, runs in found.items():
        scores = [100 * run["top1"] for run in runs]
        spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        epochs = statistics.mean(run["epochs"] for run in runs)
        print(f"| {kind} | {statistics.mean(scores):.1f}{spread} % | {epochs:.0f} |")
    pairs = zip(found["aux mae"], found["plain"], strict=True)
    gains = ", ".join(f"{100 * (ours['top1'] - plain['top1']):+.1f}" for ours, plain in pairs)
    print(f"\naux mae minus plain: {gains} points")


if __name__ == "__main__":
    main()
