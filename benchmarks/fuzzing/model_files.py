"""Open thousands of damaged model files of every family; each must be read or refused with one error of ours.

    python benchmarks/fuzzing/model_files.py [--inputs 10000] [--seed 0] [--only TEXT]

Writes a small model in every family's format and damages it. Bytes are flipped, cut, appended, repeated, blanked or
swapped; with lengths and checksums corrected, names, shapes, types, offsets, pickle instructions and JSON values are
replaced. Each file is opened as `vitreous.load` and `vitreous convert` do, in a process limited to 256 MiB more address
space than the intact files took. Python's audit events report any program started, connection made, and file written,
moved or removed. Every 20th readable file is converted.

Prints a Markdown table. Exits 1 if an error is not ours or not one line, a file takes 10 s of CPU, or an audit event
reports an action.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from fuzzing.model_mutations import mutated

WATCHED = (
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pty.spawn", "ctypes"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate"),
    *("shutil", "socket.connect", "webbrowser.open"),
)
MORE_MEMORY = 256 << 20  # bytes
CPU_SECONDS = 10
CONVERTERS = 20  # one in this many readable files is converted
LONGEST = 2000  # characters of an error message


class Told(BaseException):
    """A forbidden audit event; handlers of ordinary errors do not catch it."""


class Slow(BaseException):
    """An input that takes too long."""


class Watch:
    """Raises `Told`, while enabled, for audit events that affect anything outside a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.on = str(folder.resolve()), False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        writes = event == "open" and _writes(arguments) and not isinstance(arguments[0], int)
        if not (writes or event.startswith(WATCHED)):
            return
        places = [os.fsdecode(a) for a in arguments if isinstance(a, str | bytes | os.PathLike)][: 1 if writes else 2]
        handle = (
            arguments[-1] if event.startswith("os.") and event != "os.truncate" else -1
        )  # a folder descriptor, as rmtree uses
        base = os.readlink(f"/proc/self/fd/{handle}") if isinstance(handle, int) and handle > 2 else ""
        inside = [os.path.realpath(os.path.join(base, place)).startswith(self.folder) for place in places]
        if event.startswith(("os.system", "os.exec", "subprocess", "ctypes")) or not (inside and all(inside)):
            raise Told(f"{event} {arguments!r:.200}")


def _writes(arguments: tuple[Any, ...]) -> bool:
    mode, flags = arguments[1], arguments[2]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))


def sources(folder: Path) -> dict[str, Path]:
    """Write the small model in every format; return the file or folder by the format's name."""
    import torch

    from vitreous.accelerate.model import create
    from vitreous.checkpoint.conversion.writing import adopted, export, write_files
    from vitreous.checkpoint.model_file import ModelInfo, save_model
    from vitreous.checkpoint.opening import OpenOptions, open_with_details
    from vitreous.data.config import PreprocessConfig
    from vitreous.data.preprocess import EvalPipeline

    torch.manual_seed(0)
    pipeline = EvalPipeline((16, 16), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3))
    places = {"vitreous": folder / "vitreous" / "model.safetensors"}
    for name, family, file, activation in (
        ("google", "google", "model.npz", "gelu-tanh"),
        ("timm", "timm", "model.safetensors", "gelu"),
        ("huggingface", "huggingface", "model.safetensors", "gelu"),
        ("torchvision", "torchvision", "model.pth", "gelu"),
    ):
        model = create(
            "mu/8", num_classes=3, image_size=16, depth=2, mlp={"activation": activation}, head={"zero": False}
        )
        places["vitreous"].parent.mkdir(exist_ok=True)
        save_model(places["vitreous"], model, ModelInfo(("a", "b", "c"), pipeline, provenance={"seed": 0}))
        opened, _ = adopted(open_with_details(places["vitreous"], OpenOptions()), family)
        places[name] = folder / name
        places[name].mkdir()
        write_files(export(opened, family), places[name] / file)
    legacy = places["torchvision-legacy"] = folder / "torchvision-legacy"
    legacy.mkdir()
    state = torch.load(places["torchvision"] / "model.pth", weights_only=True)
    torch.save(state, legacy / "model.pth", _use_new_zipfile_serialization=False)
    shards = places["shards"] = folder / "shards"
    shards.mkdir()
    _shard(places["huggingface"], shards)
    places["vitreous"] = places["vitreous"].parent
    return places


def _shard(whole: Path, folder: Path) -> None:
    """Write a folder's weights as two files and an index."""
    from safetensors.torch import load_file, save_file

    state = load_file(whole / "model.safetensors")
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    places = {name: parts[i % 2] for i, name in enumerate(state)}
    for part in parts:
        save_file({name: t for name, t in state.items() if places[name] == part}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for name in ("config.json", "preprocessor_config.json"):
        (folder / name).write_bytes((whole / name).read_bytes())


def outcome(read: Callable[[], object], watch: Watch) -> str:
    """Open one input; return `read`, `refused`, or what went wrong."""
    from vitreous.errors import VitreousError

    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    watch.on = True
    try:
        read()
    except VitreousError as error:
        text = str(error)
        return "refused" if "\n" not in text and 0 < len(text) <= LONGEST else f"WRONG message: {text!r:.300}"
    except (Exception, Told, Slow) as error:
        watch.on = False
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"WRONG {type(error).__name__}: {error!s:.200} ({Path(where.filename).name}:{where.lineno})"
    finally:
        watch.on = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return "read"


def work(kind: str, folder: Path, inputs: int, seed: int) -> dict[str, Any]:
    """Open many damaged copies of one format in this process; return the outcomes."""
    from vitreous.checkpoint.opening import open_checkpoint

    def late(signum: int, frame: object) -> None:
        raise Slow(f"{CPU_SECONDS} s of CPU")

    signal.signal(signal.SIGVTALRM, late)
    warnings.simplefilter("ignore")
    source = sources(folder)[kind]
    whole = {file.name: file.read_bytes() for file in sorted(source.iterdir())}
    place, target = folder / "in", folder / "out"
    for each in (place, target):
        each.mkdir()
    _write(place, whole)
    open_checkpoint(place)
    _convert(place, target / "first.safetensors")
    watch = Watch(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + MORE_MEMORY, resource.RLIM_INFINITY))
    chance = random.Random(f"{kind} {seed}")
    counts: collections.Counter[str] = collections.Counter()
    wrong: dict[str, str] = {}
    largest = 0
    for number in range(inputs):
        files, what = mutated(whole, chance)
        largest = max(largest, sum(map(len, files.values())))
        _write(place, files)
        found = outcome(lambda: open_checkpoint(place), watch)
        if found == "read" and counts["read"] % CONVERTERS == 0:
            found = outcome(lambda n=number: _convert(place, target / f"{n}.safetensors"), watch)
            found = "read" if found == "refused" else found  # such as logits that are not finite
        counts["wrong" if found.startswith("WRONG") else found] += 1
        if found.startswith("WRONG"):
            wrong.setdefault(found, f"input {number}, {what}")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"counts": counts, "wrong": wrong, "grown": (after - before) << 10, "largest": largest}


def _write(place: Path, files: dict[str, bytes]) -> None:
    for old in place.iterdir():
        if old.name not in files:
            old.unlink()
    for name, content in files.items():
        (place / name).write_bytes(content)


def _convert(place: Path, target: Path) -> None:
    from vitreous.checkpoint.conversion.convert import convert

    convert(place, target, "vitreous")
    target.unlink()


KINDS = ("vitreous", "google", "timm", "huggingface", "shards", "torchvision", "torchvision-legacy")


def measured(kinds: list[str], inputs: int, seed: int) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Run each format in its own process; if the process dies, that is a failure."""
    for kind in kinds:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, __file__, "--worker", kind, folder, "--inputs", str(inputs), "--seed", str(seed)]
            run = subprocess.run(words, capture_output=True, text=True, check=False)
        if run.returncode or not run.stdout:
            last = run.stderr.strip().splitlines()[-1:] or ["nothing said"]
            died = f"WRONG the process ended with {run.returncode}: {last[0]}"
            yield kind, {"counts": {"wrong": 1}, "wrong": {died: ""}, "grown": 0, "largest": 0}, 0.0
        else:
            yield kind, json.loads(run.stdout.splitlines()[-1]), time.monotonic() - began


def main() -> int:
    """Damage and open every format, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="files of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="TEXT", help="only formats whose name contains this")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(options.worker[0], Path(options.worker[1]), options.inputs, options.seed)))
        return 0
    print("| format | inputs | refused | read | wrong | largest input, KiB | memory grew by, MiB | s |")
    print("|---|---|---|---|---|---|---|---|")
    failed = False
    for kind, found, seconds in measured([k for k in KINDS if options.only in k], options.inputs, options.seed):
        counts = collections.Counter(found["counts"])
        print(
            f"| {kind} | {sum(counts.values()):,} | {counts['refused']:,} | {counts['read']:,} | {counts['wrong']} | "
            f"{found['largest'] / 1024:.0f} | {found['grown'] / 2**20:.1f} | {seconds:.0f} |",
            flush=True,
        )
        for what, where in found["wrong"].items():
            print(f"  {what}: {where}", file=sys.stderr)
        failed |= bool(found["wrong"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
