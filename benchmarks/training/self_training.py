"""Compares self-training with the labels alone at equal wall-clock time.

    python benchmarks/training/few_labels.py cifar10/ few/ --seeds 0 1 2
    python benchmarks/training/self_training.py few/{seed}.csv --budgets 15m 45m --both "--recipe cifar10-cpu" \
        --out runs/self

The first run learns from the labels alone for the first budget. Each later one learns from the labels that the one
before predicts for the other images, for its own budget. The run beside them learns from the labels alone for all of
the time. They run in turn, or with `--together` at the same time, on one core each. Options of `vitreous train` go to
all after `--both`, as one text. Prints the top-1 of the saved models on the test split. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from side_by_side import Training, last_results

from vitreous.train.config import parse_duration


def rounds(data: str, options: Sequence[str], budgets: Sequence[str], out: Path) -> Iterator[Training]:
    """Yield the runs of self-training."""
    for number, budget in enumerate(budgets):
        before = out.with_name(f"{out.name}-{number - 1}")
        aux = ["--aux", "self-training", "--aux.model", str(before)] if number else []
        yield Training(data, [*options, *aux, "--budget", budget], out.with_name(f"{out.name}-{number}"))


def main() -> None:
    """Run all with all seeds, and print a Markdown table and the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a manifest in which most rows have no label; {seed} in it is the seed")
    parser.add_argument("--budgets", nargs="+", default=["15m", "45m"], help="of the runs of self-training")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--both", default="", help="options of all runs")
    parser.add_argument("--together", action="store_true", help="run both at the same time, on one core each")
    parser.add_argument("--out", type=Path, default=Path("runs/self-training"))
    options = parser.parse_args()
    total = f"{sum(map(parse_duration, options.budgets)):.0f}s"
    found: list[list[float]] = []
    for seed in options.seeds:
        data = options.data.replace("{seed}", str(seed))
        fixed = [*shlex.split(options.both), "--seed", str(seed)]
        plain = Training(data, [*fixed, "--budget", total], options.out / f"plain-{seed}")
        chain = list(rounds(data, fixed, options.budgets, options.out / f"round-{seed}"))
        found.append([100 * each["top1"] for each in last_results([[plain], chain], together=options.together)])
    print(f"\n{total}, seeds {' '.join(map(str, options.seeds))}\n\n| | top-1 |\n|---|---|")
    for name, scores in zip(("labels alone", "self-training"), zip(*found, strict=True), strict=True):
        spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        print(f"| {name} | {statistics.mean(scores):.1f}{spread} % |")
    print(f"\nself-training minus labels alone: {', '.join(f'{ours - plain:+.1f}' for plain, ours in found)} points")


if __name__ == "__main__":
    main()
