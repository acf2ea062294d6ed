"""Compares the backbone in the package with random weights at equal wall-clock time, as a user runs them.

    python benchmarks/training/start.py flowers/ --counts 20 100 all --budgets 1m 3m 10m --seeds 0 1 2 --out runs/start

The folder has train/ and val/. A count is the number of training images of each class: the first ones in an order drawn
from the seed 0, as links. The score is that of the saved model on all of val, on which the epoch was selected, for both
starts alike. They run in turn, or with `--together` at the same time, on one core each. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from pathlib import Path

from side_by_side import Training, results

STARTS = ("shipped", "none")


def subset(source: Path, count: str, folder: Path) -> Path:
    """Link the first images of every class; return the folder."""
    if count == "all":
        return source
    target = folder / f"{source.name}-{count}"
    for label in sorted(path for path in (source / "train").iterdir() if path.is_dir()):
        images = sorted(label.iterdir())
        random.Random(0).shuffle(images)
        (target / "train" / label.name).mkdir(parents=True, exist_ok=True)
        for image in images[: int(count)]:
            link = target / "train" / label.name / image.name
            if not link.exists():
                os.symlink(image.resolve(), link)
    if not (target / "val").exists():
        os.symlink((source / "val").resolve(), target / "val")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--counts", nargs="+", default=["20", "50", "100", "all"])
    parser.add_argument("--budgets", nargs="+", default=["1m", "3m", "10m"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--starts", nargs="+", default=list(STARTS))
    parser.add_argument("--together", action="store_true", help="run both at the same time, on one core each")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for budget in args.budgets:
        for count in args.counts:
            data = subset(args.data, count, args.out)
            scores: dict[str, list[float]] = {start: [] for start in args.starts}
            for seed in args.seeds:
                fixed = ["--budget", budget, "--seed", str(seed)]
                runs = [
                    Training(str(data), ["--start", start, *fixed], args.out / f"{count}-{budget}-{start}-{seed}")
                    for start in args.starts
                ]
                for start, result in zip(args.starts, results(runs, together=args.together), strict=True):
                    scores[start].append(100 * result["top1"])
            rows.append({"count": count, "budget": budget, **scores})
            cells = (f"{statistics.median(s):.1f} ({min(s):.1f} to {max(s):.1f})" for s in scores.values())
            print(f"| {count} | {budget} | {' | '.join(cells)} |", flush=True)
    (args.out / "start.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
