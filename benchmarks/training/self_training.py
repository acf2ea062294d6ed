"""Compares self-training with the labels alone at equal wall-clock time.

    python benchmarks/training/few_labels.py cifar10/ few/ --seeds 0 1 2
    python benchmarks/training/self_training.py few/{seed}.csv --budgets 15m 45m --both "--recipe cifar10-cpu" \
        --out runs/self

The first run learns from the labels alone for the first budget; `--first 2` trains two such models at the same time, on
one core each. Each later one learns from what those before it predict for the other images, for its own budget. The run
beside them learns from the labels alone for all of the time. They run in turn, or with `--together` at the same time,
on one core each. Options of `vitreous train` go to all after `--both`, as one text, and to the rounds from the third on
after `--later`, where {before} is the run before. Prints the top-1 of the saved models on the test split. Finished runs
are not repeated.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections.abc import Iterator
from pathlib import Path

from side_by_side import Training, last_results

from vitreous.train.config import parse_duration


def rounds(data: str, options: argparse.Namespace, seed: int) -> Iterator[list[Training]]:
    """Yield the runs of each round of self-training."""
    before: list[Path] = []
    for number, budget in enumerate(options.budgets):
        words = [*shlex.split(options.both), "--budget", budget]
        if number:
            words += ["--aux", "self-training", "--aux.model", ",".join(map(str, before))]
        if number > 1:
            words += shlex.split(options.later.replace("{before}", str(before[0])))
        seeds = [seed + 100 * n for n in range(1 if number else options.first)]
        before = [options.out / f"round-{each}-{number}" for each in seeds]
        yield [Training(data, [*words, "--seed", str(n)], out) for n, out in zip(seeds, before, strict=True)]


def main() -> None:
    """Run all with all seeds, and print a Markdown table and the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a manifest in which most rows have no label; {seed} in it is the seed")
    parser.add_argument("--budgets", nargs="+", default=["15m", "45m"], help="of the runs of self-training")
    parser.add_argument("--first", type=int, default=1, help="models of the first round")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--both", default="", help="options of all runs")
    parser.add_argument("--later", default="", help="options of the rounds from the third on")
    parser.add_argument("--together", action="store_true", help="run both at the same time, on one core each")
    parser.add_argument("--out", type=Path, default=Path("runs/self-training"))
    options = parser.parse_args()
    total = f"{sum(map(parse_duration, options.budgets)):.0f}s"
    found: list[list[float]] = []
    for seed in options.seeds:
        data = options.data.replace("{seed}", str(seed))
        words = [*shlex.split(options.both), "--seed", str(seed), "--budget", total]
        plain = Training(data, words, options.out / f"plain-{seed}")
        chains = [[[plain]], [*rounds(data, options, seed)]]
        found.append([100 * each["top1"] for each in last_results(chains, together=options.together)])
    print(f"\n{total}, seeds {' '.join(map(str, options.seeds))}\n\n| | top-1 |\n|---|---|")
    for name, scores in zip(("labels alone", "self-training"), zip(*found, strict=True), strict=True):
        spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        print(f"| {name} | {statistics.mean(scores):.1f}{spread} % |")
    print(f"\nself-training minus labels alone: {', '.join(f'{ours - plain:+.1f}' for plain, ours in found)} points")


if __name__ == "__main__":
    main()
