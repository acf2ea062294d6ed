"""Compare inference with other libraries, and `vitreous predict` with a transformers pipeline.

    pip install timm transformers vit-pytorch 'vitreous[openvino,onnx]'
    python benchmarks/speed/inference.py models
    python benchmarks/speed/inference.py models --sizes S/16 --batches 16 --rounds 9 --merge-tokens 13
    python benchmarks/speed/inference.py whole-path --data flowers/val --sizes B/16
    python benchmarks/speed/inference.py costs

`models`: one forward pass at 224 pixels from normalised float32 images to logits. Other libraries are built as their
documentation says and run in inference mode, in float32 and with bfloat16 weights. * marks the engine that `auto`
chooses for many images. "Slower by" is a variant's time over the default's in the same round. Every variant runs in its
own process, so that spinning threads of one do not slow another.

`whole-path`: paths of JPEG files to labels: `Classifier.predict_stream`, which is the work of `vitreous predict`,
against transformers' image-classification pipeline with the same converted weights at its fastest batch size, in
float32 and in bf16.

`costs`: the time to convert, open and check an engine, and the number of images that repays it. The constants of
`vitreous.engines.choose` come from here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from measuring import DTYPES, Apart, header, precisions, ratios, serve
from peers.libraries import of_huggingface, of_timm, of_torchvision, of_vit_pytorch
from vitreous.accelerate.model import create
from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.finding import find_images
from vitreous.engines.base import Engine
from vitreous.engines.cache import cache_folder
from vitreous.engines.names import Precision
from vitreous.engines.opening import CONVERTERS, Opener, installed
from vitreous.predictions import Failure
from vitreous.predictor import Classifier, load

Run = Callable[[Tensor], object]
SIZES = ("Ti/16", "S/16", "B/16")
PEERS = {"timm": of_timm, "Hugging Face": of_huggingface, "torchvision": of_torchvision, "vit-pytorch": of_vit_pytorch}
WHO = ("ours", "pipeline")  # the programs that whole-path compares
CPU = torch.device("cpu")
MANY = 1_000_000  # images, enough for `auto` to convert and open any engine
PACKAGES = ("torch", "torchvision", "timm", "transformers", "vit-pytorch", "openvino", "onnxruntime")


def model_file(size: str, folder: Path) -> Path:
    """Write a model file with random weights and 1,000 classes."""
    torch.manual_seed(0)
    model = create(size, num_classes=1000, init="timm")
    half = PreprocessConfig("squash", 1.0, "bilinear", (0.5,) * 3, (0.5,) * 3)
    pipeline = EvalPipeline((224, 224), 3, half)
    file = folder / "model.safetensors"
    save_model(file, model, ModelInfo(tuple(f"class {n}" for n in range(1000)), pipeline))
    return file


def variants(size: str, file: Path, batch: int, merged: list[int]) -> tuple[str, list[str]]:
    """Return our default for many images, and all variants: `program, precision` or `merged, tokens`."""
    default = load(file, "cpu", precision="auto").prepare(MANY, batch)
    engines = ["torch", *filter(installed, CONVERTERS)]
    able = [f"{who}, {p}" for who in engines for p in precisions(CPU) if (who, p) != ("onnxruntime", "bf16")]
    others = [f"{who}, {p}" for who in PEERS for p in precisions(CPU) if who != "torchvision" or size == "B/16"]
    return f"{default.name}, {default.precision}", [*able, *(f"merged, {count}" for count in merged), *others]


def variant(key: str, file: Path, batch: int) -> tuple[str, Run]:
    """Return the table name and the forward pass of a variant; timm has our weights."""
    who, how = key.split(", ")
    if who == "merged":
        engine = load(file, "cpu", precision="auto", merge_tokens=int(how)).prepare(MANY, batch)
        return f"ours, {engine.name}, {engine.precision}, {how} tokens merged in each block", engine
    if who not in PEERS:
        return f"ours, {key}", load(file, "cpu", engine=who, precision=how).prepare(MANY, batch)
    plain = load(file, "cpu", engine="torch", precision="float32").model
    model = PEERS[who](plain.config)
    if who == "timm":
        model.load_state_dict(plain.state_dict())
    return key, _inference(model.eval().to(DTYPES[how]), DTYPES[how])


def _inference(model: nn.Module, dtype: torch.dtype) -> Run:
    @torch.inference_mode()
    def run(images: Tensor) -> object:
        return model(images.to(dtype))

    return run


def measure_models(size: str, batch: int, options: argparse.Namespace) -> None:
    """Print the table of one size and batch."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        default, keys = variants(size, model_file(size, folder), batch, options.merge_tokens)
        runs = {
            key: stack.enter_context(Apart("models", "--batches", str(batch), "--one-of", f"{folder}|{key}"))
            for key in keys
        }
        for run in runs.values():
            run.seconds(2)
        latencies: dict[str, list[list[float]]] = {key: [] for key in keys}
        for _ in range(options.rounds):
            for key, run in runs.items():
                latencies[key].append([run.seconds(1) for _ in range(options.calls)])
        names = {key: _answer(folder, key).read_text() for key in keys}
    base = [statistics.median(each) for each in latencies[default]]
    print(f"\n### {size} at 224 px, batch {batch}; {options.rounds} rounds of {options.calls}\n")
    print("| | p50, ms | p95, ms | img/s | slower by |\n|---|---|---|---|---|")
    for key, taken in latencies.items():
        every = sorted(second for each in taken for second in each)
        p50, p95 = statistics.median(every), every[math.ceil(0.95 * len(every)) - 1]
        slower = ratios([statistics.median(each) for each in taken], base)
        mark = " *" if key == default else ""
        print(f"| {names[key]}{mark} | {1e3 * p50:.1f} | {1e3 * p95:.1f} | {batch / p50:.1f} | {slower} |", flush=True)


def serve_model(folder: Path, key: str, batch: int) -> None:
    """Serve :class:`Apart` in this process, after writing the variant's name."""
    name, run = variant(key, folder / "model.safetensors", batch)
    _answer(folder, key).write_text(name)
    serve(partial(run, torch.randn(batch, 3, 224, 224)), CPU)


def _answer(folder: Path, who: str) -> Path:
    """Return the file in which a process reports to its parent."""
    return folder / f"{who}.answer"


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_whole_path(size: str, data: Path, options: argparse.Namespace) -> None:
    """Print the table of `predict` and the pipeline on a folder of images, each in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        convert(model_file(size, folder), folder / "theirs", "huggingface")
        print(f"\n### {size} at 224 px, {options.images} JPEGs to labels; {options.rounds} rounds\n")
        print("| | img/s | their time / ours | same label |\n|---|---|---|---|")
        for precision in options.precisions:
            same = ("whole-path", "--data", str(data), "--images", str(options.images), "--precisions", precision)
            with contextlib.ExitStack() as stack:
                both = [stack.enter_context(Apart(*same, "--one-of", f"{folder}|{who}")) for who in WHO]
                for each in both:
                    each.seconds(1)
                rounds = [[each.seconds(1) for each in both] for _ in range(options.rounds)]
            mine, theirs = (list(times) for times in zip(*rounds, strict=True))
            (own, labels), (rival, others) = (json.loads(_answer(folder, who).read_text()) for who in WHO)
            equal = statistics.mean(a == b for a, b in zip(labels, others, strict=True))
            print(f"| {own} | {len(labels) / statistics.median(mine):.1f} | | |")
            speed = len(labels) / statistics.median(theirs)
            print(f"| {rival} | {speed:.1f} | {ratios(theirs, mine)} | {equal:.0%} |", flush=True)


def serve_whole_path(folder: Path, who: str, data: Path, count: int, precision: str) -> None:
    """Serve :class:`Apart` in this process, after writing the variant's name and the predicted labels."""
    found = find_images(data)[0]
    paths = [str(path) for path in found[:: max(1, len(found) // count)]][:count]
    if who == WHO[0]:
        classifier = load(folder / "model.safetensors", "cpu", precision=precision)
        name = f"ours, {classifier.prepare(MANY).name}, {precision}"
        work = partial(_labels, classifier, paths)
    else:
        name, work = _fastest_pipeline(folder / "theirs", precision, paths)
    _answer(folder, who).write_text(json.dumps([name, work()]))
    serve(work, CPU)


def _labels(classifier: Classifier, paths: list[str]) -> list[str]:
    found = list(classifier.predict_stream(paths))
    assert not any(isinstance(each, Failure) for each in found)
    return [each.label for each in found]  # type: ignore[union-attr]


def _fastest_pipeline(folder: Path, precision: str, paths: list[str]) -> tuple[str, Callable[[], list[str]]]:
    """transformers' pipeline at the batch size that is fastest on a part of the images."""
    import transformers

    pipe = transformers.pipeline("image-classification", model=str(folder), dtype=DTYPES[precision], device="cpu")

    def run(some: list[str], batch_size: int) -> list[str]:
        return [each[0]["label"] for each in pipe(some, batch_size=batch_size)]

    part = paths[:32]
    run(part[:8], 8)
    seconds = {size: min(_timed(lambda size=size: run(part, size)) for _ in range(2)) for size in (1, 4, 8, 16, 32)}
    best = min(seconds, key=lambda size: seconds[size])
    return f"transformers' pipeline, batch {best}, {precision}", lambda: run(paths, best)


def measure_costs(size: str) -> None:
    """Print the cost of engines and the number of images that repays it."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        classifier = load(model_file(size, Path(folder)), "cpu", engine="torch", precision="float32")
        for precision in precisions(CPU):
            for name in filter(installed, CONVERTERS):
                if (name, precision) != ("onnxruntime", "bf16"):
                    print(
                        f"| {size} | {name}, {precision} {_costs(classifier, name, precision)}",
                        flush=True,
                    )
                    shutil.rmtree(cache_folder())


def _costs(classifier: Classifier, name: str, precision: Precision) -> str:
    """Return the cells of an engine's row."""
    engines: dict[str, Engine] = {}

    def new() -> Opener:
        return Opener(classifier.model, classifier.pipeline, 1.0, lambda line: None)

    def open_graph(opener: Opener, convert: bool) -> None:
        opened = opener.graph(name, precision, 8, convert)
        assert opened is not None
        engines["engine"] = opened.engine

    first, again = new(), new()
    costs = {
        "reference": _timed(lambda: (first.reference, again.reference)) / 2,
        "compared": _timed(lambda: engines.update(torch=first.torch(precision))),
        "converted": _timed(lambda: open_graph(first, convert=True)),
        "opened": _timed(lambda: open_graph(again, convert=False)),
    }
    images = first.images[:1].expand(8, -1, -1, -1).contiguous()
    plain, fast, other = (_per_image(each, images) for each in (first.plain, engines["torch"], engines["engine"]))
    few = f"{(costs['reference'] + costs['compared']) / (plain - fast):.1f}" if precision == "bf16" else ""
    cells = [f"{costs[key]:.2f}" for key in ("reference", "compared", "opened", "converted")]
    cells += [f"{1e3 * each:.1f}" for each in (plain, fast, other)]
    cells += [
        f"{1 - other / fast:.0%}",
        few,
        *(f"{costs[key] / (fast - other):.0f}" for key in ("opened", "converted")),
    ]
    return "".join(f"| {cell} " for cell in cells) + "|"


def _per_image(engine: Engine, images: Tensor) -> float:
    """Return the median seconds per image in a batch."""
    engine(images)
    return statistics.median(_timed(lambda: engine(images)) for _ in range(3)) / len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("models", "whole-path", "costs"))
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 16))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=3, help="calls timed in each round")
    parser.add_argument(
        "--merge-tokens",
        nargs="*",
        type=int,
        default=[],
        help="also our default with these merged",
    )
    parser.add_argument("--data", type=Path, help="a folder of JPEGs, for whole-path")
    parser.add_argument("--images", type=int, default=128, help="number of JPEG files")
    parser.add_argument("--precisions", nargs="+", default=precisions(CPU), help="for whole-path")
    parser.add_argument("--one-of", help=argparse.SUPPRESS)  # variant of this process, and its folder
    options = parser.parse_args()
    if options.part == "whole-path" and options.data is None:
        parser.error("whole-path needs --data, a folder of JPEGs")
    warnings.filterwarnings("ignore")
    if options.one_of:
        folder, who = options.one_of.split("|")
        if options.part == "models":
            serve_model(Path(folder), who, options.batches[0])
        else:
            serve_whole_path(Path(folder), who, options.data, options.images, options.precisions[0])
        return
    print(header(CPU, PACKAGES), flush=True)
    if options.part == "costs":
        print(
            "\nSeconds, then milliseconds an image at batch 8, then from how many images on each has paid.\n\n"
            "| size | engine | reference | torch compared | opened | converted | torch float32, ms | torch, ms | "
            "engine, ms | saved | bf16 pays | opening pays | converting pays |\n" + "|---" * 13 + "|"
        )
    for size in options.sizes:
        if options.part == "models":
            for batch in options.batches:
                measure_models(size, batch, options)
        elif options.part == "whole-path":
            measure_whole_path(size, options.data, options)
        else:
            measure_costs(size)


if __name__ == "__main__":
    main()
