"""Compare distillation with plain training at equal wall clock, the teacher's training included.

    python benchmarks/training/distil.py --data-dir ~/data --work runs/distil

For each seed: trains an S-size teacher for --teacher-budget, distils it for --student-budget into the 128-wide model of
the recipe cifar10-cpu, and trains the same model by the recipe alone for the sum of both budgets. Another plain run, of
--student-budget, says what the teacher is worth to those who have one. Prints a Markdown table of top-1 on the
test images, and writes every number to --json. Finished runs in --work are read, not repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

from vitreous.model.sizes import config_of
from vitreous.recipes import recipe
from vitreous.train.config import RunConfig, parse_duration
from vitreous.train.distil.config import DistilConfig
from vitreous.train.run import run

ROWS = {
    "teacher": "the teacher",
    "distilled": "128x6/4, distilled, teacher's time included",
    "equal": "128x6/4, plain, as long as teacher and student",
    "short": "128x6/4, plain, as long as the student",
}


def student_config(options: argparse.Namespace) -> RunConfig:
    """Return the recipe cifar10-cpu on the data of the benchmark."""
    config = recipe("cifar10-cpu")
    return dataclasses.replace(config, data=dataclasses.replace(config.data, dir=options.data_dir, **options.data))


def teacher_config(options: argparse.Namespace) -> RunConfig:
    """Return the same recipe with the width, depth and heads of S."""
    config = student_config(options)
    size = config_of(options.teacher_size)
    fields = {name: getattr(size, name) for name in ("width", "depth", "heads", "mlp_dim")}
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **fields))


def trained(config: RunConfig, folder: Path, seed: int, budget: float) -> dict[str, Any]:
    """Run for a budget in seconds, or read the finished run in the folder; return its scores and cost."""
    if not (folder / "report.json").exists():
        run(dataclasses.replace(config, seed=seed, budget=f"{budget:g}s", out=str(folder)), resume=folder.exists())
    report = json.loads((folder / "report.json").read_text())
    return {
        "test_top1": report["scores"]["test"]["top1"],
        "val_top1": report["scores"]["val"]["top1"],
        "epochs": report["training"]["epochs"],
        "seconds": report["training"]["seconds"],
        "parameters": report["model"]["parameters"],
    }


def compare(options: argparse.Namespace, seed: int) -> dict[str, dict[str, Any]]:
    """Return all rows of the table for one seed."""
    work, student = options.work / f"seed-{seed}", student_config(options)
    teaching, learning = parse_duration(options.teacher_budget), parse_duration(options.student_budget)
    rows = {"teacher": trained(teacher_config(options), work / "teacher", seed, teaching)}
    distil = DistilConfig(
        teacher=str(work / "teacher"), temperature=options.temperature, weight=options.weight, views=options.views
    )
    if options.views is not None:  # fixed views cannot be mixed
        plain = dataclasses.replace(student.augment, mixup=0.0, cutmix=0.0)
        rows["distilled"] = trained(
            dataclasses.replace(student, distil=distil, augment=plain), work / "distilled", seed, learning
        )
    else:
        rows["distilled"] = trained(dataclasses.replace(student, distil=distil), work / "distilled", seed, learning)
    rows["equal"] = trained(student, work / "equal", seed, teaching + learning)
    rows["short"] = trained(student, work / "short", seed, learning)
    return rows


def main() -> None:
    """Run all seeds, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="~/.cache/vitreous", help="where cifar-10-batches-py is")
    parser.add_argument("--data", type=json.loads, default={}, help="other fields of the data, as a JSON object")
    parser.add_argument("--work", type=Path, default=Path("runs/distil"), help="where runs go")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="to run seeds side by side")
    parser.add_argument("--teacher-size", default="S/4", help="a size of `vitreous models`; patches are the recipe's")
    parser.add_argument("--teacher-budget", default="40m")
    parser.add_argument("--student-budget", default="28m")
    parser.add_argument("--temperature", type=float, default=DistilConfig.temperature)
    parser.add_argument("--weight", type=float, default=DistilConfig.weight)
    parser.add_argument(
        "--views", type=int, default=None, help="fixed views per image, whose answers are computed once"
    )
    parser.add_argument("--json", type=Path, default=None, help="default: distil.json in --work")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    every = {seed: compare(options, seed) for seed in seeds}
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "work", "data_dir")}
    document = json.dumps({"settings": settings, "seeds": every}, indent=2)
    (options.json or options.work / "distil.json").write_text(document + "\n", encoding="utf-8")
    print(f"\nteacher {options.teacher_budget}, student {options.student_budget}, {len(seeds)} seeds\n")
    print("| | top-1 on the test images | epochs |\n|---|---|---|")
    for name, text in ROWS.items():
        scores = [100 * rows[name]["test_top1"] for rows in every.values()]
        epochs = statistics.mean(rows[name]["epochs"] for rows in every.values())
        spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        print(f"| {text} | {statistics.mean(scores):.1f}{spread} % | {epochs:.0f} |")
    gains = [100 * (rows["distilled"]["test_top1"] - rows["equal"]["test_top1"]) for rows in every.values()]
    print(f"\ndistilled minus plain at equal wall clock: {', '.join(f'{gain:+.1f}' for gain in gains)} points")


if __name__ == "__main__":
    main()
