"""Speed of int8 beside our engines in bf16 and float32, and beside timm in float32, in turn, each in its own process.

    python benchmarks/speed/int8.py --sizes S/16 B/16
    python benchmarks/speed/int8.py --sizes S/16 --profile

Random weights: the values do not change the speed. All OpenVINO rows run through the same engine, which shares a batch
between the cores. `--profile` prints where the time goes on one core, by kind of operation. `--smooth` turns
SmoothQuant on.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring import Apart, header, ratios, serve
from vitreous.accelerate.model import create
from vitreous.engines import openvino_engine
from vitreous.export.openvino_file import core
from vitreous.export.quantisation.calibration import SETTINGS, quantised
from vitreous.export.quantisation.folding import fold
from vitreous.machine.device import computes_bf16
from vitreous.machine.openvino_package import import_openvino

openvino = import_openvino()

SIDE = 224
TIMM = {"Ti/16": "vit_tiny_patch16_224", "S/16": "vit_small_patch16_224", "B/16": "vit_base_patch16_224"}
CPU = torch.device("cpu")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["S/16", "B/16"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--calibration", type=int, default=16)
    parser.add_argument("--smooth", action="store_true")
    parser.add_argument("--no-timm", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--one-of", help=argparse.SUPPRESS)  # folder|row, in a process of its own
    return parser.parse_args()


def crops(count: int) -> list[np.ndarray]:
    """Return random crops of two photographs, normalised: (1, 3, H, W) each."""
    rng, photos = np.random.default_rng(0), load_sample_images().images
    found = []
    for n in range(count):
        photo = Image.fromarray(photos[n % 2])
        side = int(rng.integers(150, min(photo.size)))
        left, top = (int(rng.integers(0, free - side + 1)) for free in photo.size)
        crop = photo.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
        found.append(((np.asarray(crop, np.float32) / 127.5) - 1).transpose(2, 0, 1)[None])
    return found


def write_graphs(size: str, folder: Path, options: argparse.Namespace) -> None:
    """Write the float graph and the int8 graph into folders of their own."""
    torch.manual_seed(0)
    model = create(size, num_classes=1000, init="timm").eval()
    (folder / "float").mkdir()
    openvino_engine.convert(model, (SIDE, SIDE), folder / "float")
    graph = openvino.Core().read_model(folder / "float" / "graph.xml")
    setting = "SmoothQuant on" if options.smooth else "SmoothQuant off"
    (folder / "int8").mkdir()
    found = fold(quantised(graph, crops(options.calibration), SETTINGS[setting]))
    openvino.save_model(found, folder / "int8" / "graph.xml", compress_to_fp16=False)


def measure(size: str, folder: Path, options: argparse.Namespace) -> None:
    """Print the table of one size."""
    keys = [
        "bf16" if computes_bf16(CPU) else "float32",
        "int8",
        "float32",
        *([] if options.no_timm else ["timm float32"]),
    ]
    keys = list(dict.fromkeys(keys))
    with contextlib.ExitStack() as stack:
        same = ("--batch", str(options.batch), "--sizes", size)
        runs = {key: stack.enter_context(Apart(*same, "--one-of", f"{folder}|{key}")) for key in keys}
        for run in runs.values():
            run.seconds(2)
        times: dict[str, list[float]] = {key: [] for key in keys}
        for _ in range(options.rounds):
            for key, run in runs.items():
                times[key].append(run.seconds(options.calls))
    print(f"\n### {size}, batch {options.batch}; {options.rounds} rounds of {options.calls}\n")
    print(f"| | ms, median | fastest | images/s | times faster than {keys[0]} |\n|---|---|---|---|---|")
    for key, taken in times.items():
        median, faster = statistics.median(taken), ratios(times[keys[0]], taken)
        rate = options.batch / median
        print(f"| {key} | {1e3 * median:.1f} | {1e3 * min(taken):.1f} | {rate:.1f} | {faster} |", flush=True)


def serve_row(size: str, folder: Path, key: str, batch: int) -> None:
    """Serve :class:`Apart` in this process."""
    images = torch.randn(batch, 3, SIDE, SIDE)
    if key.startswith("timm"):
        import timm

        model = timm.create_model(TIMM[size]).eval()
        serve(partial(torch.inference_mode()(model), images), CPU)
        return
    precision = "float32" if key == "float32" else "bf16"
    serve(
        partial(openvino_engine.Graph(folder / ("int8" if key == "int8" else "float"), precision, batch), images), CPU
    )


def profile(size: str, folder: Path, batch: int) -> None:
    """Print the milliseconds of each kind of operation on one core, the fastest of ten passes."""
    print(f"\n### {size}, {batch} images on one core: ms by kind of operation")
    for name in ("float", "int8"):
        hints = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERF_COUNT": True}
        compiled = core().compile_model(folder / name / "graph.xml", "CPU", hints)
        request, fastest = compiled.create_infer_request(), defaultdict(lambda: np.inf)
        for _ in range(10):
            request.infer([np.random.default_rng(0).standard_normal((batch, 3, SIDE, SIDE)).astype(np.float32)])
            for each in request.profiling_info:
                key = each.node_type, each.exec_type, each.node_name
                fastest[key] = min(fastest[key], 1e3 * each.real_time.total_seconds())
        kinds: dict[tuple[str, str], float] = defaultdict(float)
        for (kind, how, _), taken in fastest.items():
            kinds[kind, how] += taken
        print(f"\n| {name} | {sum(kinds.values()):.1f} |\n|---|---|")
        for (kind, how), taken in sorted(kinds.items(), key=lambda each: -each[1])[:12]:
            print(f"| {kind}, {how} | {taken:.2f} |")


def main() -> None:
    options = parse()
    if options.one_of:
        folder, key = options.one_of.split("|")
        serve_row(options.sizes[0], Path(folder), key, options.batch)
        return
    print(header(CPU, ("torch", "openvino", "nncf")), flush=True)
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as name:
            write_graphs(size, Path(name), options)
            measure(size, Path(name), options)
            if options.profile:
                profile(size, Path(name), max(1, options.batch // 2))


if __name__ == "__main__":
    main()
