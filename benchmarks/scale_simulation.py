"""Calculate and simulate a run on many GPUs, without any: bytes, requests, time, failures, money, the first bottleneck.

    python benchmarks/scale_simulation.py --dataset jft --model B/16 --gpus 8 64 512
    python benchmarks/scale_simulation.py --model S/16 --step-ms 32:9.1 256:33.2 --set store_rate=2e9 decode=0.004
    python benchmarks/scale_simulation.py --plan 64.json 512.json      # files of `vitreous plan ... --json`
    python benchmarks/scale_simulation.py --write docs/explanation/scale-on-paper.md

The first three print a table like those of docs/explanation/scale-on-paper.md, which explains the columns; the last one
writes that page's tables. `draw_lost` draws its figure. The inputs and their sources are in `scale/paper_inputs.py`,
the closed forms in `scale/paper.py`. `scale/step_events.py` and `scale/run_events.py` simulate events, with the
program's own shares of batches, interval of checkpoints and watch. Everything is a function of `--seed`. It needs half
a minute on one core.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parent))  # benchmarks/

from scale.lost_time import Outcome, simulate
from scale.paper import LAYOUTS, Case, StepModel, fit
from scale.paper_figure import draw
from scale.paper_inputs import DATASETS, INPUTS, values
from scale.paper_tables import GPUS, TABLES, runs_table
from vitreous.errors import VitreousError
from vitreous.report.style import Theme

PANELS = {
    "shards": "shards in a store",
    "images": "a request to the store for each image",
    "disk": "a copy on each disk",
}


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=DATASETS, default="imagenet-21k")
    parser.add_argument("--model", default="B/16", help="any size of `vitreous models` (default: B/16)")
    parser.add_argument("--gpus", type=int, nargs="+", default=GPUS)
    parser.add_argument("--batch", type=int, default=4096, help="images per step of all GPUs together (default: 4096)")
    parser.add_argument("--layout", choices=LAYOUTS, default="shards", help="where images come from (default: shards)")
    parser.add_argument("--spot", action="store_true", help="machines that can be taken away, at a discount")
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument(
        "--step-ms", nargs="+", metavar="IMAGES:MS", help="time of steps with so many images, one GPU"
    )
    measured.add_argument("--plan", nargs="+", type=Path, metavar="FILE", help="the same from `vitreous plan --json`")
    parser.add_argument("--set", nargs="+", default=(), metavar="NAME=VALUE", help=f"inputs: {', '.join(INPUTS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=20, help="draws of the failures of a run (default: 20)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the tables into their places in this page")
    return parser.parse_args(words)


def measured_steps(asked: argparse.Namespace) -> StepModel | None:
    """Fit the step times that one machine measured, if any are given."""
    points = []
    for pair in asked.step_ms or ():
        images, colon, milliseconds = pair.partition(":")
        if not colon:
            raise ValueError(f"--step-ms '{pair}' has no colon: write IMAGES:MS, such as 256:33.2")
        points.append((float(images), float(milliseconds) / 1000))
    for file in asked.plan or ():
        plan = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(plan, dict) or not {"batch_size", "step_seconds"} <= plan.keys():
            raise ValueError(f"'{file}' has no batch_size and step_seconds: give a file of `vitreous plan --json`")
        points.append((float(plan["batch_size"]), float(plan["step_seconds"])))
    return fit(points) if points else None


def cases(asked: argparse.Namespace) -> list[Case]:
    """Return the cases that were asked for."""
    pairs = [pair.partition("=") for pair in asked.set]
    others = {"batch": asked.batch, "layout": asked.layout, "spot": asked.spot}
    others["given"] = values(**{name: float(value) for name, _, value in pairs})
    if (step := measured_steps(asked)) is not None:
        others["step"] = step
    return [Case.of(asked.dataset, asked.model, gpus, **others) for gpus in asked.gpus]


def fill(page: str) -> str:
    """Return a page with all tables in their places, between `<!-- NAME -->` and `<!-- end of NAME -->`."""
    for name, table in TABLES.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", flags=re.DOTALL)
        if not place.search(page):
            raise ValueError(
                f"the page has no place for the table '{name}': add <!-- {name} --> and <!-- end of {name} -->"
            )
        text = table()
        page = place.sub(lambda found, text=text: f"{found[1]}\n{text}\n\n{found[2]}", page)
    return page


def draw_lost(figure: Figure, theme: Theme) -> None:
    """Draw the time that is lost by cause, for each layout of the data, on an empty figure."""
    draw(_panels(), figure, theme)


@cache
def _panels() -> dict[str, list[Outcome]]:
    base = [Case.of("jft", "B/16", gpus) for gpus in GPUS]
    return {name: [simulate(replace(c, layout=layout)) for c in base] for layout, name in PANELS.items()}


def main(words: Sequence[str] | None = None) -> None:
    """Print a table, or write the tables of the page."""
    asked = parse(words)
    try:
        if asked.write is not None:
            asked.write.write_text(fill(asked.write.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            print(runs_table(simulate(case, seed=asked.seed, runs=asked.runs) for case in cases(asked)))
    except (VitreousError, ValueError, OSError) as error:
        raise SystemExit(f"{Path(__file__).name}: {error}") from None


if __name__ == "__main__":
    main()
