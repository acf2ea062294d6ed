"""Compare one training step with other libraries and with tutorial models of the same shape.

    pip install timm transformers vit-pytorch labml-nn 'labml<0.5'
    python benchmarks/speed/train_step.py --device cpu
    python benchmarks/speed/train_step.py --device cuda

Prints a Markdown table for each shape. "Ours" is the model, precision, clipping and optimiser of `vitreous train`
without its loop; "ours, trainer" includes the loop: uint8 images, schedule and check for non-finite values. The other
libraries train as speed/steps.py says, in float32 and under torch's bfloat16 autocast.

On a CPU each runs in its own process and alternates with ours. "Ours is faster by" divides their time by ours in the
same rounds, median and range, with ours in the precision that `vitreous train` chooses; "at equal precision" divides
the medians at the same precision. "Of peak" is 3 times the products of the forward pass over the time, as a share of
the fastest square matrix product in that dtype in the same run: first for the published model
(`vitreous.accelerate.cost.cost`), then for the products actually computed, fewer where the head reads one token. Memory
is that of the variant in its own process, with weights and optimiser, without libraries and images.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from measuring import (
    DTYPES,
    MIB,
    Apart,
    header,
    in_subprocess,
    in_turn,
    matmul_peak,
    peak_memory,
    precisions,
    ratios,
    serve,
)
from peers.libraries import PACKAGES, of_huggingface, of_labml, of_timm, of_torchvision, of_vit_pytorch
from peers.tutorials import EinsumReluViT, FusedEinsumViT, SequenceFirstViT
from speed.steps import Batch, Step, of_others, ours_alone, ours_in_trainer
from vitreous.accelerate.cost import cost
from vitreous.accelerate.model import build
from vitreous.machine.device import choose_precision
from vitreous.model.config import ViTConfig, pair
from vitreous.model.sizes import config_of

OURS = "ours"
REPEAT = 2  # consecutive steps on a CPU, since the first finds cold caches
PEERS: dict[str, Callable[[ViTConfig], nn.Module]] = {
    "timm": of_timm,
    "Hugging Face": of_huggingface,
    "torchvision": of_torchvision,
    "vit-pytorch": of_vit_pytorch,
    "labml-nn": of_labml,
}


@dataclass(frozen=True)
class Shape:
    """One comparison: our configuration, images per step, the models of others that match it, and precisions."""

    config: ViTConfig
    batch: int
    others: dict[str, Callable[[ViTConfig], nn.Module]]
    precisions: tuple[str, ...]


def shapes(on_cpu: bool, dropout: float) -> dict[str, Shape]:
    """Return the shapes by name; dropout applies to the tutorials' shapes on both sides."""
    batch = {"small": 128, "b": 64, "S": 32, "B": 16} if on_cpu else dict.fromkeys(("small", "b", "S", "B"), 256)
    both = precisions(torch.device("cpu" if on_cpu else "cuda"))
    peers_in = both if on_cpu else ("bf16",)
    plain = PEERS | {"timm, plain attention": partial(of_timm, fused=False)} if on_cpu else PEERS
    annotated = partial(of_labml, hidden=2048, activation=nn.ReLU(), dropout=dropout)
    found = {}
    for depth in (6, 24):
        others = {"tutorial (a)": lambda config: SequenceFirstViT(config.depth, 10, dropout)}
        found[f"a{depth}"] = Shape(SequenceFirstViT.ours(depth, 10, dropout), batch["small"], others, both)
    others = {"tutorial (b)": lambda _: EinsumReluViT(10, dropout), "labml-nn": annotated}
    found["b"] = Shape(EinsumReluViT.ours(10, dropout), batch["b"], others, both)
    found["c"] = Shape(FusedEinsumViT.ours(1000), batch["B"], {"tutorial (c)": lambda _: FusedEinsumViT(1000)}, both)
    for depth in (6, 24):
        config = config_of(f"256x{depth}/4", num_classes=10)
        found[f"256x{depth}"] = Shape(config, batch["small"], plain, peers_in)
    found["S/16"] = Shape(config_of("S/16"), batch["S"], plain, peers_in)
    found["B/16"] = Shape(config_of("B/16"), batch["B"], plain, peers_in)
    return found


def variants(shape: Shape, batch: Batch) -> dict[tuple[str, str], Callable[[], Step]]:
    """Return the builder of each variant's step, by name and precision."""
    chosen = choose_precision("auto", batch.device)
    config = shape.config
    found: dict[tuple[str, str], Callable[[], Step]] = {
        (OURS, precision): partial(ours_alone, config, precision, batch)
        for precision in sorted({chosen, *shape.precisions}, key=lambda p: p != chosen)
    }
    found[f"{OURS}, trainer", chosen] = partial(ours_in_trainer, config, chosen, batch)
    if batch.device.type == "cuda":
        found[f"{OURS}, compiled", chosen] = partial(ours_alone, config, chosen, batch, mode="default")
        found[f"{OURS}, CUDA graphs", chosen] = partial(ours_alone, config, chosen, batch, mode="reduce-overhead")
        # CUDA graphs are kept by thread, and inductor's refuse any but the main one, where no Trainer runs here.
        found[f"{OURS}, trainer, compiled", chosen] = partial(ours_in_trainer, config, chosen, batch, mode="default")
    for name, make in shape.others.items():
        for precision in shape.precisions:
            kind = partial(of_others, precision=precision, batch=batch, like_huggingface=name == "Hugging Face")
            found[name, precision] = lambda kind=kind, make=make: kind(make(config))
            if batch.device.type == "cuda" and name == "timm":
                found["timm, compiled", precision] = lambda kind=kind, build=build: kind(build(config), compiled=True)
    return found


def syncs_per_step(step: Step, count: int = 32) -> float:
    """Count the GPU synchronisations of a step, by CUDA's debug mode."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(count):
                step()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return sum("synchroniz" in str(warning.message) for warning in caught) / count


def busy_share(step: Step, count: int = 10) -> float:
    """Return the share of time in which the GPU computes."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            step()
        torch.cuda.synchronize()
    kernels = [e for e in profile.events() if e.device_type.name == "CUDA" and not e.is_user_annotation]
    spans = sorted((kernel.time_range.start, kernel.time_range.end) for kernel in kernels)
    busy, until = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy / (until - spans[0][0])


def measure(name: str, shape: Shape, device: torch.device, options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Return the times of every variant of a shape, and on CUDA also synchronisations and utilisation."""
    if device.type == "cpu":
        return measure_apart(name, shape, options)
    batch = Batch(shape.config, shape.batch, device)
    steps = {}
    for key, make in chosen(shape, batch, options).items():
        torch.manual_seed(0)
        steps[key] = make()
    times = in_turn(steps, device, options.rounds, warm_up=12, repeat=10)
    return {
        key: {"seconds": times[key], "syncs": syncs_per_step(step), "busy": busy_share(step)}
        for key, step in steps.items()
    }


def chosen(shape: Shape, batch: Batch, options: argparse.Namespace) -> dict[str, Callable[[], Step]]:
    """Return the builders of the selected steps, by `name|precision`, with our reference first."""
    found = {f"{name}|{precision}": build for (name, precision), build in variants(shape, batch).items()}
    first = next(iter(found))
    wanted = [key for key in found if all(word in key for word in options.only)]
    if not wanted:
        raise SystemExit(f"--only {' '.join(options.only)}: this shape has {', '.join(found)}")
    return {key: found[key] for key in dict.fromkeys([first, *wanted])}


def measure_apart(name: str, shape: Shape, options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """On a CPU: alternate ours with each of the others, each in its own process."""
    first, *rest = chosen(shape, Batch(shape.config, shape.batch, torch.device("cpu")), options)
    settings = settings_of(shape, options)
    found: dict[str, dict[str, object]] = {first: {"seconds": []}}
    with Apart("--steps-of", f"{name}|{first}", *settings) as ours:
        ours.seconds(2)
        for key in rest:
            try:
                with Apart("--steps-of", f"{name}|{key}", *settings) as other:
                    other.seconds(2)
                    rounds = [[each.seconds(REPEAT) for each in (ours, other)] for _ in range(options.rounds)]
            except ChildProcessError as error:
                print(f"left out: {error}", file=sys.stderr)
                continue
            mine, theirs = (list(times) for times in zip(*rounds, strict=True))
            found[key] = {"seconds": theirs, "ours": mine}
            found[first]["seconds"] += mine
        if len(found) == 1:
            found[first]["seconds"] = [ours.seconds(REPEAT) for _ in range(options.rounds)]
    return found


def settings_of(shape: Shape, options: argparse.Namespace) -> list[str]:
    """Return the arguments of a process for one variant."""
    return ["--device", options.device, "--dropout", str(options.dropout), "--batch", str(shape.batch)]


def forward_operations(config: ViTConfig) -> int:
    """Count the operations in the matrix products of our forward pass for one image, 2 per multiply-add."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        build(config).eval()(torch.empty(1, config.in_channels, *pair(config.image_size)))
    return counter.get_total_flops()


def table(shape: Shape, found: dict[str, dict[str, object]], peaks: dict[str, float], memory: dict[str, str]) -> str:
    """Return the Markdown table of one shape."""
    first = next(iter(found))  # ours, in its default precision
    on_cuda = "syncs" in found[first]
    columns = ["variant", "precision", "img/s", "ms", "ours is faster by", "at equal precision"]
    columns += ["of peak", "computed", "peak MiB"]
    columns += ["syncs a step", "card busy"] * on_cuda
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    published = 3 * cost(shape.config).flops * shape.batch
    computed = 3 * forward_operations(shape.config) * shape.batch
    for key, figures in found.items():
        name, precision = key.split("|")
        times = figures["seconds"]
        middle = statistics.median(times)
        cells = [name, precision, f"{shape.batch / middle:.4g}", f"{1e3 * middle:.4g}"]
        equal = found.get(f"{OURS}|{precision}")
        cells.append("1" if key == first else ratios(times, figures.get("ours", found[first]["seconds"])))
        cells.append(f"{middle / statistics.median(equal['seconds']):.2f}" if equal else "")
        for operations in (published, computed if name.startswith(OURS) else published):
            cells.append(f"{100 * operations / middle / peaks[precision]:.0f} %")
        cells.append(memory.get(key, ""))
        if on_cuda:
            cells += [f"{figures['syncs']:.2g}", f"{100 * figures['busy']:.0f} %"]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def one(shape: Shape, wanted: str, device: torch.device) -> Callable[[], Step]:
    """Return the builder of one variant's step, `name|precision`, in this process."""
    torch.manual_seed(0)
    name, precision = wanted.split("|")
    return variants(shape, Batch(shape.config, shape.batch, device))[name, precision]


def memory_of(shape: Shape, wanted: str, device: torch.device) -> int:
    """Return the bytes that two steps of one variant take in this process."""
    build = one(shape, wanted, device)

    def work() -> None:
        step = build()
        step()
        step()

    return peak_memory(device, work)


def show(name: str, shape: Shape, device: torch.device, options: argparse.Namespace, peaks: dict[str, float]) -> None:
    """Measure a shape and print its table."""
    found = measure(name, shape, device, options)
    memory = {}
    if not options.no_memory:
        for key in found:
            said = in_subprocess("--memory-of", f"{name}|{key}", *settings_of(shape, options))
            memory[key] = f"{int(said) / MIB:,.0f}" if said.isdigit() else said
    if device.type == "cpu":  # the machine may have been slower at the first measurement of the peak
        peaks.update({key: max(peak, matmul_peak(device, DTYPES[key])) for key, peak in peaks.items()})
    config = shape.config
    print(
        f"\n### {name}: width {config.width}, {config.depth} layers, {config.heads} heads, {config.tokens} tokens, "
        f"batch {shape.batch}\n\n{3 * cost(config).flops * shape.batch / 1e9:,.0f} GFLOP a step; peak "
        f"{', '.join(f'{key} {peak / 1e9:,.0f} GFLOP/s' for key, peak in peaks.items())}\n\n"
        f"{table(shape, found, peaks, memory)}",
        flush=True,
    )
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            print(json.dumps({"shape": name, "peaks": peaks, "memory": memory, "variants": found}), file=file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shapes", nargs="+", help=f"a selection of {', '.join(shapes(True, 0))}")
    parser.add_argument("--only", nargs="+", default=[], help="only variants whose name contains all these words")
    parser.add_argument("--batch", type=int, help="images per step, for all shapes")
    parser.add_argument("--dropout", type=float, default=0.0, help="of tutorials (a) and (b), and of ours")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument(
        "--out", type=Path, help="append the times of every round to this file, one JSON line per shape"
    )
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--steps-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = torch.device(options.device)
    known = shapes(options.device == "cpu", options.dropout)
    if options.batch:
        known = {name: replace(shape, batch=options.batch) for name, shape in known.items()}
    if options.memory_of:
        name, wanted = options.memory_of.split("|", 1)
        print(memory_of(known[name], wanted, device))
        return
    if options.steps_of:
        name, wanted = options.steps_of.split("|", 1)
        serve(one(known[name], wanted, device)(), device)
        return
    if unknown := set(options.shapes or ()) - set(known):
        parser.error(f"no shape {', '.join(sorted(unknown))}: {', '.join(known)}")
    print(f"{header(device, PACKAGES)}; {options.rounds} rounds in turn, dropout {options.dropout:g}", flush=True)
    peaks = {key: matmul_peak(device, DTYPES[key]) for key in precisions(device)}
    for name in options.shapes or known:
        show(name, known[name], device, options, peaks)


if __name__ == "__main__":
    main()
