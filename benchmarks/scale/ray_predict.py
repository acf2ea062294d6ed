"""Images per second of `vitreous predict --on ray://local --workers 2`, and of two plain processes with half each.

All three have one thread per process. Times run from the first image to the last result, as the command prints them;
the plain pair's is that of the slower one. Rounds alternate.

    python benchmarks/scale/ray_predict.py runs/flowers photos/ --rounds 3
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_LINE = re.compile(r"([\d,]+) images? in ([\d.]+) s")


def _start(model: str, images: list[str], output: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vitreous", "predict", model, "-", "-o", str(output), "--engine", "torch", *words]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert process.stdin is not None
    process.stdin.write("\n".join(images))
    process.stdin.close()
    return process


def _seconds(process: subprocess.Popen[str]) -> float:
    assert process.stderr is not None
    errors = process.stderr.read()
    found = _LINE.search(errors)
    if process.wait() != 0 or found is None:
        raise SystemExit(errors)
    return float(found[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("images")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    images = sorted(map(str, Path(options.images).rglob("*.jpg")))[: options.count]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            halves = [
                _start(options.model, images[half::2], Path(folder, f"{number}-{half}.jsonl")) for half in range(2)
            ]
            plain = max(map(_seconds, halves))
            on = ("--on", "ray://local", "--workers", "2")
            ray = _seconds(_start(options.model, images, Path(folder, f"{number}.jsonl"), *on))
            rates = len(images) / plain, len(images) / ray
            ratios.append(rates[1] / rates[0])
            print(f"two processes {rates[0]:.1f} img/s, Ray {rates[1]:.1f} img/s: {ratios[-1]:.3f}", flush=True)
    print(f"median of {len(ratios)}: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
