"""Read damaged and hostile image files through every reader, `vitreous predict` and `vitreous audit`.

    python benchmarks/fuzzing/images.py [--inputs 10000] [--kinds "built gif" avif ...] [--seed 0] [--images FOLDER]

Three sources: real photographs (those of FOLDER, or the two of scikit-learn) written in every format and damaged
(image_mutations.py); files built by hand that claim or cost a lot (image_builders.py); and pipes, devices, sparse files
and folders of links (special_files.py). For each kind, one process reads each file as prediction does and measures CPU
time and memory, decoder processes included. Training's scan, the audit and a prediction then read all of them: they
must agree on which files are unusable and why. Finally both commands run over a folder with some files of each kind.

Prints a Markdown table. Exits 1 if an error is not one line of ours, a file takes more than 2 s of CPU or 512 MiB,
readers disagree, or a command exits with anything but 0 or 1.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from fuzzing.image_builders import BUILT
from fuzzing.image_mutations import KINDS, files, large_png, mutated
from fuzzing.special_files import PLACES, folders_of_links, special_file

SECONDS = 2.0
MORE_MEMORY = 512 << 20
ALL = (*KINDS, *BUILT, *PLACES)
_SIDE = 160  # pixels of the longer side of an image before damage
_LONGEST = 300  # characters of an error message
_BATCH = 250  # files on disk at a time
_KEPT = 20  # files of each kind kept for the commands
_TICK = 1.5 / os.sysconf("SC_CLK_TCK")  # resolution of the CPU time of other processes


def photographs(folder: Path | None) -> list[Image.Image]:
    """Return small copies of a folder's images, or of the two photographs of scikit-learn."""
    if folder is not None:
        found = [Image.open(path).convert("RGB") for path in sorted(folder.iterdir()) if path.is_file()]
    else:
        from sklearn.datasets import load_sample_images

        found = [Image.fromarray(array) for array in load_sample_images().images]
    for image in found:
        image.thumbnail((_SIDE, _SIDE))
    return found


def tiny_model(folder: Path) -> Path:
    """Write a model file of three classes with random weights."""
    import torch

    from vitreous.accelerate.model import create
    from vitreous.checkpoint.model_file import ModelInfo, save_model
    from vitreous.data.config import PreprocessConfig
    from vitreous.data.preprocess import EvalPipeline

    torch.manual_seed(0)
    model = create("mu/8", num_classes=3, image_size=16)
    pipeline = EvalPipeline((16, 16), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3))
    save_model(folder / "model.safetensors", model, ModelInfo(("a", "b", "c"), pipeline))
    return folder / "model.safetensors"


class MemoryMeter:
    """CPU time and peak memory since :meth:`start`, of this process and its decoder process."""

    def __init__(self) -> None:
        from vitreous.data.images.watched.child import Child
        from vitreous.data.images.watched.pool import _COMMAND, _pool

        self.pool = _pool
        self.start_child = lambda: Child(_COMMAND)

    def start(self) -> None:
        if not self.pool.idle:  # starting a process is not a cost of the file
            self.pool.idle.append(self.start_child())
        self.child = self.pool.idle[-1].process.pid
        for process in ("self", self.child):
            Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
        self.memory = {process: _peak(process) for process in ("self", self.child)}
        self.reaped = _reaped()
        self.began = time.process_time() + _seconds(self.child)

    def stop(self) -> tuple[float, int]:
        """Return seconds and bytes; the memory of a decoder that has ended is not included."""
        alive = any(child.process.pid == self.child for child in self.pool.idle)
        took = time.process_time() - self.began + (_seconds(self.child) if alive else _reaped() - self.reaped)
        grown = [
            _peak(process) - self.memory[process] for process in ("self", self.child) if process == "self" or alive
        ]
        return took - _TICK, sum(grown)


def _reaped() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _peak(process: int | str) -> int:
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


def _seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Work:
    """Generates and reads one kind of input in this process."""

    def __init__(self, kind: str, folder: Path, seed: int, images: Path | None, audit: bool) -> None:
        import vitreous

        self.kind, self.folder, self.audit = kind, folder, audit
        self.chance = random.Random(f"{kind} {seed}")
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: dict[str, str] = {}
        self.slowest, self.grown = 0.0, 0
        shown = photographs(images)
        self.whole = files(shown, [kind]).get(kind, []) if kind in KINDS else []
        self.photograph = files(shown[:1], ["jpeg"])["jpeg"][0]
        self.model = vitreous.load(folder / "model.safetensors", device="cpu", engine="torch")
        self.model.predict(np.zeros((16, 16, 3), dtype=np.uint8))
        self.meter = MemoryMeter()

    def run(self, inputs: int) -> dict[str, Any]:
        """Generate and read this many inputs."""
        for first in range(0, inputs, _BATCH):
            place = self.folder / "batch" / self.kind
            place.mkdir(parents=True)
            numbers = range(first, min(inputs, first + _BATCH))
            if self.kind == "folders of links":
                for number in numbers:
                    self._links(place / f"{number}", number)
            else:
                self._batch([self._made(place, number) for number in numbers], first == 0)
            shutil.rmtree(place)
        found = {"counts": self.counts, "wrong": self.wrong, "grown": self.grown, "slowest": self.slowest}
        return json.loads(json.dumps(found))

    def _made(self, place: Path, number: int) -> tuple[Path, str]:
        extension = self.kind.replace("jpeg 2000", "jp2").rsplit(maxsplit=1)[-1]
        path = place / f"{number:05}.{extension if self.kind not in PLACES else 'jpg'}"
        if self.kind == "special files":
            return special_file(path, self.photograph, self.chance)[0], f"input {number}"
        content, done = BUILT[self.kind](self.chance) if self.kind in BUILT else self.chance.choice(self.whole), "built"
        if self.kind in KINDS or self.chance.random() < 0.2:
            content, done = mutated(content, self.chance)
        path.write_bytes(content)
        return path, f"input {number}, {done}"

    def _batch(self, made: list[tuple[Path, str]], keep: bool) -> None:
        from vitreous.audit.watch import look_at
        from vitreous.data.sources.scan import scan
        from vitreous.predictions import Failure

        said = {str(path): self._read(path, what) for path, what in made}
        paths, what = [path for path, _ in made], {str(path): done for path, done in made}
        looks, scanned = look_at(paths if self.audit else [], workers=1), scan(paths)
        seen_so = [look.reason for look in looks] or [said[str(path)] for path in paths]
        results = list(self.model.predict_stream(paths, batch_size=32))
        for path, looked, seen, result in zip(map(str, paths), seen_so, scanned, results, strict=True):
            refused = isinstance(result, Failure)
            self.counts["refused" if refused else "read"] += 1
            reasons = {said[path], looked, seen.facts.reason or "", result.reason if refused else ""}
            if len(reasons) > 1:
                self._complain(f"readers disagree: {sorted(reasons)}", what[path])
        if keep:
            kept = self.folder / "images" / self.kind
            kept.mkdir(parents=True)
            for path in paths[:_KEPT]:
                if path.is_file() and path.stat().st_size < 1 << 22:
                    shutil.copyfile(path, kept / path.name)

    def _read(self, path: Path, what: str) -> str:
        """Read a file; return the reason if it is refused, else an empty string."""
        from vitreous.data.images.reading import read_image
        from vitreous.errors import DataError
        from vitreous.files.text import printable

        self.meter.start()
        reason = ""
        try:
            read_image(path)
        except DataError as error:
            reason = str(error).removeprefix(f"{printable(str(path))}: ")
            if not 0 < len(reason) <= _LONGEST or not reason.isprintable():
                self._complain(f"message: {reason[-200:]!r}", what)
        except Exception as error:
            self._complain(f"{type(error).__name__}: {error!s:.200}", what)
        self._measured(what)
        return reason

    def _links(self, place: Path, number: int) -> None:
        from vitreous.data.sources.finding import find_images

        there = folders_of_links(place, self.chance)
        self.meter.start()
        found = [os.stat(path) for path in find_images(place).pictures]
        self._measured(f"input {number}")
        if sorted((status.st_dev, status.st_ino) for status in found) != sorted(there):
            self._complain("an image is listed twice or not at all", f"input {number}")
        self.counts["read"] += 1
        shutil.rmtree(place)

    def _measured(self, what: str) -> None:
        took, grown = self.meter.stop()
        self.slowest, self.grown = max(self.slowest, took), max(self.grown, grown)
        if took > SECONDS:
            self._complain(f"{took:.1f} s of processor time", what)
        if grown > MORE_MEMORY:
            self._complain(f"{grown / 2**20:.0f} MiB", what)

    def _complain(self, how: str, what: str) -> None:
        self.wrong.setdefault(f"WRONG {how}", what)


def work(kind: str, folder: Path, inputs: int, seed: int, images: Path | None, audit: bool = True) -> dict[str, Any]:
    """Generate and read files of one kind in this process; with ``audit``, the audit reads them too."""
    worker = Work(kind, folder, seed, images, audit)
    if kind in KINDS and not worker.whole:
        return {"counts": {"skipped": inputs}, "wrong": {}, "grown": 0, "slowest": 0.0}
    return worker.run(inputs)


def refused_large() -> str:
    """Return the error for a PNG of 50,000 x 50,000 pixels if it takes little memory, else what is wrong."""
    from vitreous.data.images.reading import read_image
    from vitreous.errors import DataError

    content = large_png()
    read_image(np.zeros((4, 4), dtype=np.uint8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read_image(content)
    except DataError as error:
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        return str(error) if grown < 16 << 20 else f"WRONG {grown / 2**20:.0f} MiB were taken to say: {error}"
    return "WRONG it was read"


def commands(folder: Path) -> dict[str, str]:
    """Run both commands over some images of each kind; return what went wrong."""
    images, wrong = folder / "images", {}
    names = sum(len(inside) for _, _, inside in os.walk(images))
    model, looked = str(folder / "model.safetensors"), folder / "audit.json"
    runs = {
        "predict": ["predict", model, str(images), "--format", "jsonl", "--device", "cpu", "--engine", "torch"],
        "audit": ["audit", str(images), "--json", str(looked), "--html", str(folder / "audit.html"), "--fresh"],
    }
    for verb, words in runs.items():
        run = subprocess.run([sys.executable, "-m", "vitreous", *words], capture_output=True, text=True, check=False)
        if run.returncode not in (0, 1) or "Traceback" in run.stderr or "a bug" in run.stderr:
            last = run.stderr.strip().splitlines()[-1:] or ["nothing said"]
            wrong[f"WRONG {verb} ended with {run.returncode}: {last[0]}"] = ""
        elif verb == "predict" and (lines := len([json.loads(line) for line in run.stdout.splitlines()])) != names:
            wrong[f"WRONG predict wrote {lines} lines of {names}"] = ""
        elif verb == "audit":
            json.loads(looked.read_text(encoding="utf-8"))
    return wrong


def main() -> int:
    """Generate, read, predict and audit every kind, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=300, help="files of each kind")
    parser.add_argument("--kinds", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="photographs to damage")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, folder = options.worker
        print(json.dumps(work(kind, Path(folder), options.inputs, options.seed, options.images)))
        return 0
    print(f"{refused_large()}\n")
    failed = refused_large().startswith("WRONG")
    print("| kind | cases | refused | read | wrong | slowest, s of CPU | memory, MiB | s |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        tiny_model(folder := Path(temporary))
        for kind in options.kinds:
            began = time.monotonic()
            words = [sys.executable, __file__, *sys.argv[1:], "--worker", kind, str(folder)]
            run = subprocess.run(words, capture_output=True, text=True, check=False)
            found: dict[str, Any] = {"counts": {}, "wrong": {}, "grown": 0, "slowest": 0.0}
            if run.returncode or not run.stdout:
                last = run.stderr.strip().splitlines()[-1:] or ["nothing said"]
                found["wrong"] = {f"WRONG the process ended with {run.returncode}: {last[0]}": ""}
            else:
                found = json.loads(run.stdout.splitlines()[-1])
            counts = collections.Counter(found["counts"])
            print(
                f"| {kind} | {options.inputs:,} | {counts['refused']:,} | {counts['read']:,} | {len(found['wrong'])} | "
                f"{found['slowest']:.2f} | {found['grown'] / 2**20:.0f} | {time.monotonic() - began:.0f} |",
                flush=True,
            )
            failed |= _told(found["wrong"])
        began = time.monotonic()
        if (folder / "images").exists():
            failed |= _told(commands(folder))
        print(f"\n`vitreous predict` and `vitreous audit` over some of each: {time.monotonic() - began:.0f} s")
    return int(failed)


def _told(wrong: dict[str, str]) -> bool:
    for what, where in wrong.items():
        print(f"  {what}: {where}", file=sys.stderr, flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
