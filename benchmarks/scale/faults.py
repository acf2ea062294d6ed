"""Stop, kill, slow down and break one process of a run, and check the run against docs/explanation/scale.md.

    python benchmarks/scale/faults.py stop --times 20 --world 3    # SIGSTOP: reported within 60 s
    python benchmarks/scale/faults.py slow --seconds 20 --lasts 600    # a slow step in 10 minutes raises no alarm
    python benchmarks/scale/faults.py kill|hang|error|int|term

Trains the bundled digits. The process and the moment are random. A run that ended has a checkpoint, which one process
resumes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from scale.ranks import SMALL, start, wait, wait_for_file
from vitreous.errors import DataError
from vitreous.train.resume.saving import load_newest
from vitreous.train.scale.shares import SharedVitModule

SENT = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL, "int": signal.SIGINT, "term": signal.SIGTERM}
EXIT = {"stop": 1, "kill": 1, "hang": 1, "error": 1, "int": 130, "term": 143, "slow": 143}


def break_step(kind: str, seconds: float, at: int) -> None:
    """Make one step of this process slow, endless or fail."""
    backward, calls = SharedVitModule._backward, iter(range(1 << 30))

    def broken(self: Any, *arguments: Any) -> Any:
        if next(calls) == at:
            if kind == "error":
                raise DataError("a/b.jpg cannot be read: it is gone")
            time.sleep(seconds if kind == "slow" else 1e4)
        return backward(self, *arguments)

    SharedVitModule._backward = broken  # type: ignore[method-assign]


def one(asked: argparse.Namespace, rng: random.Random, out: Path) -> tuple[bool, float]:
    """Do it once; return whether all was as promised, and the seconds until the end."""
    kind, world, seconds = asked.kind, asked.world, asked.seconds
    victim, at = rng.randrange(world), rng.randrange(20, 60)

    def before(rank: int) -> None:
        os.dup2(os.open(out.with_suffix(f".{rank}"), os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if rank == victim and kind not in SENT:
            break_step(kind, seconds, at)

    words = ["train", "digits", *SMALL, "--epochs", "5000", "--checkpoint_every", "1h", "--out", str(out)]
    words += ["--strategy", asked.strategy, *(["--checkpoint_epochs", "1"] if asked.strategy == "fsdp" else [])]
    pids = start(words, world, before)
    begun = "last.ckpt" if asked.strategy == "fsdp" else "metrics.csv"  # what one process cannot save must be there
    wait_for_file(out / begun, pids, out.with_suffix(f".{victim}"))
    time.sleep(rng.uniform(0, 3))
    began = time.monotonic()
    if kind in SENT:
        os.kill(pids[victim], SENT[kind])
    if kind == "slow":
        time.sleep(asked.lasts)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    codes = wait(pids)
    took = time.monotonic() - began
    told = "".join(out.with_suffix(f".{rank}").read_text() for rank in range(world))
    good = all(
        code == EXIT[kind] for rank, code in enumerate(codes) if rank != victim or kind not in ("stop", "kill", "hang")
    )
    good &= (found := load_newest(out, print)) is not None and found[1].epoch >= 1
    if kind in ("stop", "kill", "hang", "error"):
        good &= told.count("vitreous: ") == 1 and f"process {victim} (pid {pids[victim]}" in told and took < 60
    if kind in ("stop", "hang"):
        stacks = (out / "stacks.txt").read_text()
        good &= (
            all(f"process {rank} (pid {pids[rank]}" in stacks for rank in range(world))
            and stacks.count("File ") > world
        )
    print(f"{kind} of process {victim} of {world}: {took:.0f} s, {codes}: {told.strip()[:300]}", flush=True)
    return good, took


def main() -> None:
    """Count what was as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(EXIT))
    parser.add_argument("--world", type=int, default=3)
    parser.add_argument("--strategy", default="ddp", choices=["ddp", "fsdp"])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--lasts", type=float, default=80.0, metavar="S", help="seconds of a run with a slow step")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, results = random.Random(asked.seed), []
    for n in range(asked.times):
        with tempfile.TemporaryDirectory() as name:
            results.append(one(asked, rng, Path(name, f"run{n}")))
    longest = max(took for _, took in results)
    print(
        f"{asked.kind}: {sum(good for good, _ in results)} of {len(results)} as promised, the longest {longest:.0f} s"
    )


if __name__ == "__main__":
    main()
