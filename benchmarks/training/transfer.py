"""Measure transfer on CIFAR-10: train on seven classes, fine-tune on the other three at a higher resolution.

    python benchmarks/training/transfer.py --data-dir ~/data --work runs/transfer

For each seed, trains a model on seven classes. On the three unseen classes it then compares k nearest neighbours and a
linear probe on the frozen features, fine-tuning by each protocol, and training from scratch with as many images, epochs
and pixels. Each of the three classes gives --per-class training images. Prints a Markdown table of top-1 on their test
images, mean and standard deviation over the seeds.

`vitreous finetune` probes on the validation split; this benchmark scores the probes on the test split as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path

import numpy as np
from PIL import Image

from vitreous.cli.verbs.finetune import configure
from vitreous.data.config import DataConfig
from vitreous.data.sources.opening import ImageData, open_source
from vitreous.evaluate.features.probes import probe_report
from vitreous.predictor import load
from vitreous.recipes import recipe
from vitreous.train.config import RunConfig
from vitreous.train.run import RunResult, run

APART = ("cat", "horse", "truck")  # two animals and a vehicle; the source has seen dog, deer, automobile


def write_folders(data: ImageData, folder: Path, per_class: int, source_per_class: int) -> tuple[Path, Path]:
    """Write CIFAR-10 as PNG files: `source-N` with N training images of seven classes, `target-N` of the others."""
    most = source_per_class, per_class
    places = folder / f"source-{source_per_class}", folder / f"target-{per_class}"
    if all(place.with_name(f"{place.name}.done").exists() for place in places):
        return places
    for split in ("train", "val", "test"):
        images = data.splits[split]
        taken = dict.fromkeys(data.classes, 0)
        for n, (label, pixels) in enumerate(zip(images.labels, images.arrays, strict=True)):
            name = data.classes[label]
            taken[name] += 1
            limit = most[name in APART]
            if split != "test" and taken[name] > (limit if split == "train" else limit // 4):
                continue
            place = places[name in APART] / split / name
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{n:05}.png", compress_level=1)
    for place in places:
        place.with_name(f"{place.name}.done").touch()
    return places


def source_config(place: Path, options: argparse.Namespace, seed: int) -> RunConfig:
    """Return the recipe cifar10 at a size that two CPU cores train in minutes."""
    config = recipe("cifar10")
    model = dataclasses.replace(
        config.model, width=options.width, depth=options.depth, heads=4, mlp_dim=2 * options.width
    )
    return dataclasses.replace(
        config, data=DataConfig(source=str(place)), model=model, epochs=options.source_epochs, seed=seed,
        out=str(options.work / f"source-{seed}"),
    )  # fmt: skip


def scratch_config(place: Path, options: argparse.Namespace, seed: int, epochs: int) -> RunConfig:
    """Return the same recipe and size for the target alone, at its resolution and without layer-wise rates."""
    config = source_config(place, options, seed)
    model = dataclasses.replace(config.model, image_size=options.image_size)
    out = options.work / f"scratch-{options.per_class}-{seed}"
    return dataclasses.replace(config, model=model, epochs=epochs, batch_size=64, out=str(out))


def once(config: RunConfig, given: frozenset[str] = frozenset()) -> tuple[float, Path]:
    """Run and return the test top-1, or read it from a finished run in the same folder."""
    report = Path(str(config.out)) / "report.json"
    if not report.exists():
        result: RunResult = run(config, explicit=given)
        return result.test.top1, result.folder
    return json.loads(report.read_text())["scores"]["test"]["top1"], report.parent


def probe(source: Path, data: ImageData, image_size: int) -> tuple[float, float]:
    """Return the test top-1 of k nearest neighbours and of the linear probe, both chosen on val."""
    classifier = load(source, image_size=image_size, precision="float32")
    features = {name: classifier.embed(list(split.paths)) for name, split in data.splits.items()}
    labels = {name: np.asarray(split.labels) for name, split in data.splits.items()}
    report = probe_report(
        features["train"], labels["train"], features["val"], labels["val"],
        test=(features["test"], labels["test"]), shots=(),
    )  # fmt: skip
    return report.best_knn.accuracy["test"], report.linear.accuracy["test"]


def transfer(options: argparse.Namespace, places: tuple[Path, Path], seed: int) -> dict[str, float]:
    """Return all rows of the table for one seed."""
    _, source = once(source_config(places[0], options, seed))
    rows: dict[str, float] = {}
    rows["k-NN on frozen features"], rows["linear probe on frozen features"] = probe(
        source, open_source(DataConfig(source=str(places[1]))), options.image_size
    )
    for name in ("modern", "paper"):
        words = [str(places[1]), "--from", str(source), "--image-size", str(options.image_size), "--seed", str(seed)]
        words += ["--protocol", name, "--out", str(options.work / f"{name}-{options.per_class}-{seed}")]
        steps = options.epochs * max(1, len(APART) * options.per_class // 64)
        words += (
            ["--epochs", str(options.epochs)] if name == "modern" else ["--steps", str(steps), "--batch-size", "64"]
        )
        config, given, _ = configure(words)
        rows[f"fine-tuned, {name}"], _ = once(config, given)
    rows["from scratch, as many epochs"], _ = once(scratch_config(places[1], options, seed, options.epochs))
    return rows


def main() -> None:
    """Run all seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="~/.cache/vitreous", help="where cifar-10-batches-py is")
    parser.add_argument("--work", type=Path, default=Path("runs/transfer"), help="where images and runs go")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="to run seeds side by side")
    parser.add_argument("--source-epochs", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=20, help="epochs of fine-tuning and from scratch")
    parser.add_argument("--per-class", type=int, default=400, help="training images of each of the three classes")
    parser.add_argument("--source-per-class", type=int, default=5000, help="training images of each source class")
    parser.add_argument("--image-size", type=int, default=48, help="pixels for fine-tuning; the source trains at 32")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=6)
    options = parser.parse_args()
    began = time.monotonic()
    data = open_source(DataConfig(source="cifar10", dir=options.data_dir, val_fraction=0.1))
    places = write_folders(data, options.work, options.per_class, options.source_per_class)
    every = [transfer(options, places, seed) for seed in range(options.first_seed, options.first_seed + options.seeds)]
    print(f"\n{options.per_class} training images of each of {', '.join(APART)}; {options.image_size} pixels; ", end="")
    print(f"{options.seeds} seeds; {time.monotonic() - began:.0f} s in all\n")
    print("| | top-1 on 3,000 test images |\n|---|---|")
    for name in every[0]:
        scores = [100 * rows[name] for rows in every]
        spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        print(f"| {name} | {statistics.mean(scores):.1f}{spread} % |")


if __name__ == "__main__":
    main()
