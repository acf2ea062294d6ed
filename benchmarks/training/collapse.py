"""Counts false alarms of the watch for collapses: healthy pretrainings, of which none should be stopped.

    python benchmarks/training/collapse.py digits cifar10 photos/ --methods mae mpp visreg lejepa --seeds 0 1 2 \
        --out runs/collapse -- --data.dir ~/data

Runs `vitreous pretrain` for --steps steps with the settings of each method's recipe; options behind -- go to all runs.
Prints a line for each run, and how many ended with an alarm. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from pathlib import Path

VITREOUS = str(Path(sys.executable).with_name("vitreous"))


def is_stopped(data: str, method: str, seed: int, steps: int, out: Path, rest: list[str]) -> bool:
    """Pretrain, and return whether a collapse was named."""
    command = [VITREOUS, "pretrain", data, "--method", method, "--seed", str(seed), "--steps", str(steps)]
    done = subprocess.run([*command, "--out", str(out), "--resume", *rest], check=False, text=True, capture_output=True)
    if done.returncode and "collapse" not in done.stderr:
        sys.exit(done.stderr)
    return bool(done.returncode)


def main() -> int:
    """Run all, and print the count; exit code 1 if there was an alarm."""
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="what `vitreous pretrain` takes")
    parser.add_argument("--methods", nargs="+", default=["mae", "mpp", "visreg", "lejepa"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--out", type=Path, default=Path("runs/collapse"))
    options = parser.parse_args(words[:split])
    alarms = []
    for data, method, seed in itertools.product(options.data, options.methods, options.seeds):
        name = f"{Path(data).name}-{method}-{seed}"
        alarms.append(is_stopped(data, method, seed, options.steps, options.out / name, words[split + 1 :]))
        print(f"{name}: {'ALARM' if alarms[-1] else 'none'}", flush=True)
    print(f"{sum(alarms)} of {len(alarms)} healthy runs raised an alarm")
    return int(any(alarms))


if __name__ == "__main__":
    sys.exit(main())
