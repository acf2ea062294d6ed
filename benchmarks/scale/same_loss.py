"""Compare the loss of every step of a run in 1, 2 and 4 processes.

    python benchmarks/scale/same_loss.py --steps 200 -- --optim.name adamw --optim.lr 1e-3

Trains the bundled digits with mixup and CutMix in float32. What follows ``--`` are further options of `vitreous train`.
Prints the largest difference of a step's loss from that in one process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from scale.ranks import SMALL, start, wait
from vitreous.train.resume.non_finite import FiniteWatch, Step


def losses(folder: Path, world: int, words: list[str]) -> list[float]:
    """Train, and return the loss of each step."""
    told = folder / f"{world}.txt"

    def before(rank: int) -> None:
        check = FiniteWatch.check

        def tell(self: Any, step: Step) -> None:
            if rank == 0:
                with told.open("a") as file:
                    file.write(f"{float(step.loss)!r}\n")
            check(self, step)

        FiniteWatch.check = tell  # type: ignore[method-assign]

    codes = wait(start(["train", "digits", *SMALL, "--out", str(folder / str(world)), *words], world, before))
    if any(codes):
        raise SystemExit(f"{world} processes ended with {codes}")
    return [float(line) for line in told.read_text().splitlines()]


def main() -> None:
    """Compare runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("options", nargs="*")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = {w: losses(Path(name), w, ["--steps", str(asked.steps), *asked.options]) for w in asked.worlds}
    first = found[asked.worlds[0]]
    for world, each in found.items():
        apart = max(abs(a - b) for a, b in zip(first, each, strict=True))
        print(f"{world} processes: {len(each)} steps, last loss {each[-1]:.6f}, largest difference {apart:.2g}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
