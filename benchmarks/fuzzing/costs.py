"""Open thousands of files that claim excessive resources; each must stay within 2 s of CPU and 512 MB.

    python benchmarks/fuzzing/costs.py [--files 10000] [--seed 0] [--only TEXT]

The files (costly_files.py) are pickles that nest and repeat, archives with false sizes, array headers, descriptions of
model files with a correct digest, and configurations. Each is opened by `vitreous.load` or a verb; descriptions pass
through predict, embed, evaluate, probe, convert and the start of a fine-tuning in turn. CPU seconds are those of the
process less those of the verb on the intact file; memory is the peak above what was resident before the file. Many
files share one process.

Prints a Markdown table. Exits 1 if a file costs more, or ends in an error that is not ours, not one line, or "this is a
bug".
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from fuzzing.costly_files import MAKERS, described
from fuzzing.model_files import Slow, Watch, outcome, sources

CPU_SECONDS, MEMORY = 2.0, 512 << 20
GIVE_UP = 20.0  # seconds of CPU after which a file is abandoned
PER_PROCESS = 2_500
KINDS = (*MAKERS, "description")
VERBS = ("load", "predict", "embed", "evaluate", "probe", "convert", "finetune")


class Quiet(Watch):
    """A watch that allows opening system libraries, as engines and torch do."""

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not event.startswith("ctypes"):
            super()._hear(event, arguments)


class Verbs:
    """Opens files in this process.

    Args:
        folder: For images and outputs.
    """

    def __init__(self, folder: Path) -> None:
        import numpy as np
        import timm  # noqa: F401 - which `convert` compares with; it imports PyTorch's compiler, which makes a folder
        from PIL import Image

        self.data, self.target = folder / "images", folder / "target"
        self.target.mkdir()
        noise = np.random.default_rng(0)
        for split, count in (("train", 3), ("val", 2)):
            for label in "abc":
                (self.data / split / label).mkdir(parents=True)
                for n in range(count):
                    pixels = noise.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(self.data / split / label / f"{n}.png")
        self.image = str(self.data / "train" / "a" / "0.png")

    def of(self, verb: str, file: Path) -> Callable[[], object]:
        """Return a call of a verb on a file."""
        if verb == "load":
            return lambda: self._load(file)
        if verb == "config":
            return lambda: self._command("train", "digits", "--config", str(file), "--print-config")
        if verb == "finetune":
            return lambda: self._start(file)
        model, data = str(file), str(self.data)
        words = {
            "predict": ("predict", model, self.image, "--format", "csv", "--engine", "torch"),
            "embed": ("embed", model, self.image, "-o", str(self.target / "e.npz"), "--overwrite"),
            "evaluate": ("evaluate", model, data, "--engine", "torch"),
            "probe": ("probe", model, data, "--shots", "none"),
            "convert": ("convert", model, str(self.target / "c"), "--to", "timm", "--overwrite"),
        }[verb]
        return lambda: self._command(*words)

    def _load(self, file: Path) -> None:
        from vitreous.checkpoint.opening import open_checkpoint

        open_checkpoint(file)

    def _start(self, file: Path) -> None:
        from vitreous.cli.verbs.finetune import configure
        from vitreous.train.finetune.initialisation import open_pretrained

        config, given, _ = configure([str(self.data), "--from", str(file), "--image-size", "32"])
        open_pretrained(config, given)

    def _command(self, *words: str) -> None:
        from vitreous.cli.main import main
        from vitreous.errors import VitreousError

        said, silent = io.StringIO(), io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape")
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(silent):
            code = main(list(words))
        last = said.getvalue().strip().splitlines()[-1:] or [""]
        if "bug in vitreous" in said.getvalue() or "out of memory" in last[0]:
            raise AssertionError(f"{words[0]}: {last[0]:.300}")
        if code not in (0, 1, 2):
            raise AssertionError(f"{words[0]} ended with {code}")
        if code:
            raise VitreousError(last[0] or "nothing said")


def resident(key: str = "VmRSS") -> int:
    """Return the resident bytes of the process, current or peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


def work(kind: str, folder: Path, first: int, count: int, seed: int) -> dict[str, Any]:
    """Open `count` files of one kind, starting at number `first`; return the outcomes and the highest costs."""

    def late(signum: int, frame: object) -> None:
        raise Slow(f"{GIVE_UP:g} s of CPU")

    signal.signal(signal.SIGVTALRM, late)
    warnings.simplefilter("ignore")
    place = folder / "in"
    place.mkdir()
    verbs, watch = Verbs(folder), Quiet(folder)
    whole = (sources(folder)["vitreous"] / "model.safetensors").read_bytes()
    counts: collections.Counter[str] = collections.Counter()
    wrong: dict[str, str] = {}
    slowest, most = 0.0, 0
    warm = place / "model.safetensors"
    warm.write_bytes(whole)
    usual: dict[str, float] = {}  # seconds of each verb on the intact file, subtracted from the cost
    for verb in (VERBS if kind == "description" else ["load"]) * 2:  # twice: the first imports and allocates
        began = time.process_time()
        found = outcome(verbs.of(verb, warm), watch)
        usual[verb] = time.process_time() - began
        if found != "read":
            raise AssertionError(f"{verb} refuses a file that is whole: {found}")
    gc.freeze()  # so that collections skip the objects of the libraries
    for n in range(first, first + count):
        chance = random.Random(f"{kind} {seed} {n}")
        name, content = described(whole, chance) if kind == "description" else MAKERS[kind](chance)
        (file := place / name).write_bytes(content)
        verb = "config" if kind == "configuration" else VERBS[n % len(VERBS)] if kind == "description" else "load"
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before, began = resident(), time.process_time()
        found = outcome(verbs.of(verb, file), watch)
        seconds = time.process_time() - began - usual.get(verb, 0.0)
        taken = resident("VmHWM") - before
        slowest, most = max(slowest, seconds), max(most, taken)
        if seconds > CPU_SECONDS or taken > MEMORY:
            found = f"WRONG cost: {seconds:.1f} s, {taken >> 20} MiB"
        counts["wrong" if found.startswith("WRONG") else found] += 1
        if found.startswith("WRONG"):
            wrong.setdefault(found, f"file {n}, {verb}, {len(content):,} bytes")
    return {"counts": counts, "wrong": wrong, "slowest": slowest, "most": most}


def in_process(kind: str, first: int, count: int, seed: int) -> dict[str, Any]:
    """Run part of a kind in its own process; if the process dies, that is a failure."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # waiting threads spin, which would count as the file's cost
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--worker", kind, folder, str(first), "--files", str(count)]
        run = subprocess.run([*words, "--seed", str(seed)], capture_output=True, text=True, check=False, env=alone)
    if run.returncode or not run.stdout:
        last = run.stderr.strip().splitlines()[-1:] or ["nothing said"]
        died = f"WRONG the process ended with {run.returncode}: {last[0]}"
        return {"counts": {"wrong": 1}, "wrong": {died: f"from file {first} on"}, "slowest": 0.0, "most": 0}
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Make and open files of every kind, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000, help="files of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="TEXT", help="only kinds whose name contains this")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, folder, first = options.worker
        print(json.dumps(work(kind, Path(folder), int(first), options.files, options.seed)))
        return 0
    print("| kind | files | refused | read | wrong | most CPU, s | most memory, MiB | s |")
    print("|---|---|---|---|---|---|---|---|")
    failed = False
    for kind in (each for each in KINDS if options.only in each):
        began, counts, wrong = time.monotonic(), collections.Counter[str](), {}
        slowest, most = 0.0, 0
        for first in range(0, options.files, PER_PROCESS):
            found = in_process(kind, first, min(PER_PROCESS, options.files - first), options.seed)
            counts.update(found["counts"])
            wrong |= found["wrong"]
            slowest, most = max(slowest, found["slowest"]), max(most, found["most"])
        print(
            f"| {kind} | {sum(counts.values()):,} | {counts['refused']:,} | {counts['read']:,} | {counts['wrong']} | "
            f"{slowest:.2f} | {most / 2**20:.0f} | {time.monotonic() - began:.0f} |",
            flush=True,
        )
        for what, where in wrong.items():
            print(f"  {what}: {where}", file=sys.stderr)
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
