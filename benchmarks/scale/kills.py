"""Kill runs at random moments, resume them in another number of processes, and check images and bits.

    python benchmarks/scale/kills.py --kills 50 [--strategy fsdp]

Each chain starts a run of the digits, kills all its processes, and copies the directory. One copy is resumed in another
number of processes to its end; the other is killed there once more, and resumed in the same number. Both must end with
equal bits (resume/same_run.py). Each process records the images of its steps; of every epoch, the last execution of
each step must add up to each image once, but for those that do not fill a step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from resume.same_run import differences
from scale.ranks import SMALL, start, wait, wait_for_file
from vitreous.train.loop.module import VitModule

WORLDS = ((4, 2), (2, 4), (1, 3), (3, 1))
WORKERS = (0, 2, 4)
IMAGES, BATCH = 1284, 64


def run(out: Path, world: int, workers: int, kill_after: float | None, strategy: str) -> bool:
    """Start or resume; return whether the run ended before the kill."""

    stamp = time.time_ns()

    def before(rank: int) -> None:
        os.dup2(os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(1, 2)
        step, told = VitModule.training_step, out.with_suffix(f".{stamp}-{rank}").open("a")

        def record(self: Any, batch: dict[str, Any], index: int) -> Any:
            skipped = self._skip_batch
            result = step(self, batch, index)
            if not skipped:
                place = [batch["epoch"], batch["step"], batch["offset"], batch["index"].tolist()]
                told.write(json.dumps([time.time(), *place]) + "\n")
                told.flush()
            return result

        VitModule.training_step = record  # type: ignore[method-assign]

    memory = ["--data.memory_gb", "0"] if workers else []  # in memory there is nothing for workers to do
    words = [*("train", "digits", *SMALL, "--epochs", "3", "--batch_size", str(BATCH)), *memory]
    words += ["--optim.name", "adamw", "--checkpoint_every", "0.05s", "--data.workers", str(workers)]
    words += ["--strategy", strategy] if world > 1 else []
    pids = start([*words, "--out", str(out), "--resume"], world, before)
    if kill_after is None:
        if any(codes := wait(pids)):
            raise SystemExit(f"{out} ended with {codes}: {out.with_suffix('.log').read_text()[-2000:]}")
        return True
    wait_for_file(out / "recipe.yaml", pids, out.with_suffix(".log"))
    time.sleep(kill_after)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not any(wait(pids))


def images_are_complete(records: list[Path]) -> bool:
    """Return whether the last execution of each step, in all processes, shows each image of an epoch at most once."""
    steps: dict[tuple[int, int], dict[tuple[int, str], list[int]]] = {}
    for path in records:
        start_of = path.suffix.split("-")[0]  # processes of one start
        for line in path.read_text().splitlines():
            _, epoch, step, offset, indices = json.loads(line)
            steps.setdefault((epoch, step), {}).setdefault((offset, start_of), []).extend(indices)
    seen: Counter[tuple[int, int]] = Counter()
    for (epoch, _), runs in steps.items():
        whole = [sorted(images) for images in runs.values() if len(images) == BATCH]
        if not whole or any(images != whole[0] for images in whole):
            return False
        seen.update((epoch, image) for image in whole[0])
    per_epoch = IMAGES // BATCH * BATCH
    return set(seen.values()) == {1} and all(sum(e == epoch for e, _ in seen) == per_epoch for epoch in range(3))


def main() -> None:
    """Count kills, and chains that end otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--strategy", default="ddp", choices=["ddp", "fsdp", "both"], help="both: fsdp, then ddp")
    parser.add_argument("--longest", type=float, default=4.0, help="seconds from the start of training to a kill")
    asked = parser.parse_args()
    rng, kills, chains, wrong = random.Random(asked.seed), 0, 0, []
    before, after = ("fsdp", "ddp") if asked.strategy == "both" else (asked.strategy, asked.strategy)
    while kills < asked.kills:
        (first, second), workers = WORLDS[chains % len(WORLDS)], WORKERS[chains % len(WORKERS)]
        chains += 1
        with tempfile.TemporaryDirectory() as name:
            one, two = Path(name, "one"), Path(name, "two")
            if run(one, first, workers, rng.uniform(0, asked.longest), before):
                continue
            shutil.copytree(one, two)
            kills += 1
            run(one, second, workers, None, after)
            kills += not run(two, second, workers, rng.uniform(0, asked.longest), after)
            run(two, second, workers, None, after)
            found = differences(one, two)
            complete = images_are_complete(
                [p for p in Path(name).iterdir() if p.name.startswith("one.") and "-" in p.suffix]
            )
            if found or not complete:
                wrong.append((first, second, workers, found[:5], complete))
            print(f"{first} to {second}, {workers} workers: {found[:5] or 'equal'}, images {complete}", flush=True)
    print(f"{kills} kills in {chains} chains, {len(wrong)} wrong: {wrong}")


if __name__ == "__main__":
    main()
