"""Compares a second task beside classification with classification alone at equal wall-clock time.

    python benchmarks/training/auxiliary.py flowers/ --budget 13m --seeds 0 1 2 --out runs/auxiliary
    python benchmarks/training/few_labels.py cifar10/ few/ --seeds 0 1 2
    python benchmarks/training/auxiliary.py few/{seed}.csv --method fixmatch --recipe cifar10-cpu --budget 60m \
        --out runs/few

Both train from random weights, as a user runs them; further options of `vitreous train` go to both after `--both`, to
classification alone after `--plain`, and to the second task after `--aux`, each as one text: --aux "--aux.weight 0.5".
They run in turn, or with `--together` at the same time, on one core each. Prints the top-1 of the saved model on the
test split, or without one on val, on which the epoch was selected, for both alike. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
from pathlib import Path

from side_by_side import Training, results


def main() -> None:
    """Run both with all seeds, and print a Markdown table and the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder, a manifest or a known dataset; {seed} in it is the seed")
    parser.add_argument("--method", default="mae")
    parser.add_argument("--budget", default="13m")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--recipe", default="folder")
    parser.add_argument("--both", default="", help="options of both")
    parser.add_argument("--plain", default="", help="further options of classification alone")
    parser.add_argument("--aux", default="", help="further options of the second task")
    parser.add_argument("--together", action="store_true", help="run both at the same time, on one core each")
    parser.add_argument("--out", type=Path, default=Path("runs/auxiliary"))
    options = parser.parse_args()
    both, task = ["--recipe", options.recipe, *shlex.split(options.both)], f"aux {options.method}"
    kinds = {
        "plain": [*both, "--aux", "none", *shlex.split(options.plain)],
        task: [*both, "--aux", options.method, *shlex.split(options.aux)],
    }
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for seed in options.seeds:
        data = options.data.replace("{seed}", str(seed))
        fixed = ["--start", "none", "--budget", options.budget, "--seed", str(seed)]
        runs = [
            Training(data, [*words, *fixed], options.out / f"{kind.replace(' ', '-')}-{seed}")
            for kind, words in kinds.items()
        ]
        for kind, result in zip(kinds, results(runs, together=options.together), strict=True):
            found[kind].append(result)
    print(f"\n{options.budget}, seeds {' '.join(map(str, options.seeds))}\n\n| | top-1 | epochs |\n|---|---|---|")
    for kind, runs in found.items():
        scores = [100 * run["top1"] for run in runs]
        spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        epochs = statistics.mean(run["epochs"] for run in runs)
        print(f"| {kind} | {statistics.mean(scores):.1f}{spread} % | {epochs:.0f} |")
    pairs = zip(found[task], found["plain"], strict=True)
    gains = ", ".join(f"{100 * (ours['top1'] - plain['top1']):+.1f}" for ours, plain in pairs)
    print(f"\n{task} minus plain: {gains} points")


if __name__ == "__main__":
    main()
