"""Pictures of strangers: thousands of damaged files through the decoder, `vitreous predict` and `vitreous audit`.

    python benchmarks/fuzz_pictures.py [--inputs 3000] [--seed 0] [--pictures FOLDER]

Real photographs (those of the folder, else the two that come with scikit-learn) are written as JPEG, PNG, WebP, GIF,
TIFF and BMP and then damaged: bits flipped, cut, lengthened, parts repeated, numbers in headers and chunks with fitting
checksums replaced, other kinds of file put before or over them. Each is inspected, read and predicted in a process per
kind, which counts processor time and memory; then both commands run over folders of all. A PNG of 50,000 x 50,000
pixels must be refused without being decoded.

Prints a table in Markdown; exits 1 if an error was not one line of ours, a picture took 5 s of processor time or memory
more than the pixel limit allows, or a command ended with anything but 0 or 1.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fuzz_picture_mutations import KINDS, files, large_png, mutated

SECONDS = 5.0
MORE_MEMORY = (
    3 << 30
)  # bytes: a picture of the most pixels allowed, its conversion and its copy take 4 bytes a pixel each
_SIDE = 160  # pixels of the longer side of what is damaged
_LONGEST = 300  # characters of a reason


def photographs(folder: Path | None) -> list[Image.Image]:
    """Small copies of a folder's pictures, or of the two photographs that scikit-learn has."""
    if folder is not None:
        found = [Image.open(path).convert("RGB") for path in sorted(folder.iterdir()) if path.is_file()]
    else:
        from sklearn.datasets import load_sample_images

        found = [Image.fromarray(array) for array in load_sample_images().images]
    for picture in found:
        picture.thumbnail((_SIDE, _SIDE))
    return found


def tiny_model(folder: Path) -> Path:
    """Write a model file of three classes with random weights."""
    import torch

    from vitreous.checkpoint.artifact import ModelInfo, save_model
    from vitreous.data.config import PreprocessConfig
    from vitreous.data.preprocess import EvalPipeline
    from vitreous.model.sizes import create

    torch.manual_seed(0)
    model = create("mu/8", num_classes=3, image_size=16)
    pipeline = EvalPipeline((16, 16), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3))
    save_model(folder / "model.safetensors", model, ModelInfo(("a", "b", "c"), pipeline))
    return folder / "model.safetensors"


def work(kind: str, folder: Path, inputs: int, seed: int, pictures: Path | None) -> dict[str, Any]:
    """Write damaged files of one kind into a folder of its name, and read each in this process."""
    import vitreous
    from vitreous.data.pictures import inspect_picture, read_picture
    from vitreous.errors import DataError
    from vitreous.predictor import Failure

    whole = files(photographs(pictures))[kind]
    model = vitreous.load(folder / "model.safetensors", device="cpu")
    place = folder / "pictures" / kind
    place.mkdir(parents=True)
    chance = random.Random(f"{kind} {seed}")
    counts: collections.Counter[str] = collections.Counter()
    wrong: dict[str, str] = {}
    slowest = 0.0
    paths, said, what = [], {}, {}
    model.predict(np.zeros((16, 16, 3), dtype=np.uint8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + MORE_MEMORY, resource.RLIM_INFINITY))

    for number in range(inputs):
        content, done = mutated(chance.choice(whole), chance)
        path = place / f"{number:05}.{kind.rsplit(maxsplit=1)[-1]}"
        path.write_bytes(content)
        paths.append(path)
        what[str(path)] = f"input {number}, {done}"
        began = time.process_time()
        try:
            facts = inspect_picture(content)
            try:
                read_picture(path)
                said[str(path)] = None
            except DataError as error:
                said[str(path)] = str(error).removeprefix(f"{path}: ")
                if not _plain(said[str(path)]):
                    wrong.setdefault(f"WRONG message: {str(error)[-200:]!r}", what[str(path)])
            if (facts.reason is None) != (said[str(path)] is None):
                counts["scan differs"] += 1
        except Exception as error:
            wrong.setdefault(f"WRONG {type(error).__name__}: {error!s:.200}", what[str(path)])
        took = time.process_time() - began
        slowest = max(slowest, took)
        if took > SECONDS:
            wrong.setdefault(f"WRONG {took:.1f} s of processor time", what[str(path)])
    for result in model.predict_stream(paths, batch_size=32):
        refused = isinstance(result, Failure)
        counts["refused" if refused else "read"] += 1
        if refused != (said.get(result.name) is not None):
            wrong.setdefault(f"WRONG predict and read differ: {result!s:.200}", what[result.name])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    return {"counts": counts, "wrong": wrong, "grown": grown, "slowest": slowest}


def _plain(reason: str) -> bool:
    return 0 < len(reason) <= _LONGEST and reason.isprintable()


def refused_large() -> str:
    """What is said of a PNG of 50,000 x 50,000 pixels, if it takes no memory; else what is wrong."""
    from vitreous.data.pictures import read_picture
    from vitreous.errors import DataError

    content = large_png()
    read_picture(np.zeros((4, 4), dtype=np.uint8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read_picture(content)
    except DataError as error:
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        return str(error) if grown < 16 << 20 else f"WRONG {grown / 2**20:.0f} MiB were taken to say: {error}"
    return "WRONG it was read"


def commands(folder: Path, names: int) -> dict[str, str]:
    """Run both commands over all pictures; return what went wrong, by what was seen."""
    pictures, wrong = folder / "pictures", {}
    model, looked = str(folder / "model.safetensors"), folder / "audit.json"
    runs = {
        "predict": ["predict", model, str(pictures), "--format", "jsonl", "--device", "cpu", "--engine", "torch"],
        "audit": ["audit", str(pictures), "--json", str(looked), "--html", str(folder / "audit.html"), "--fresh"],
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
    """Damage, read, predict, audit, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=3000, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="photographs to damage")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    each = -(-options.inputs // len(KINDS))
    if options.worker:
        kind, folder = options.worker
        print(json.dumps(work(kind, Path(folder), each, options.seed, options.pictures)))
        return 0
    print(f"{refused_large()}\n")
    failed = refused_large().startswith("WRONG")
    print("| kind | inputs | refused | read | wrong | slowest, s of CPU | memory grew by, MiB | s |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        tiny_model(folder := Path(temporary))
        for kind in KINDS:
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
                f"| {kind} | {each:,} | {counts['refused']:,} | {counts['read']:,} | {len(found['wrong'])} | "
                f"{found['slowest']:.2f} | {found['grown'] / 2**20:.0f} | {time.monotonic() - began:.0f} |",
                flush=True,
            )
            failed |= _told(found["wrong"])
        began = time.monotonic()
        failed |= _told(commands(folder, each * len(KINDS)))
        print(f"\n`vitreous predict` and `vitreous audit` over all of them: {time.monotonic() - began:.0f} s")
    return int(failed)


def _told(wrong: dict[str, str]) -> bool:
    for what, where in wrong.items():
        print(f"  {what}: {where}", file=sys.stderr, flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
