"""Makes the backbone that the package contains: its images, and its file from a finished run.

    python benchmarks/training/backbone.py images TINY_IMAGENET CIFAR10 tiny
    vitreous train tiny --recipe backbone --budget 80m --data.memory_gb 3 --out runs/backbone
    vitreous finetune tiny --recipe backbone --from runs/backbone --tune full --no-probe --batch-size 512 --seed 1 \\
        --budget 75m --data.memory_gb 3 --out runs/backbone-2
    vitreous finetune tiny --recipe backbone --from runs/backbone-2 --model.image_size 64 --tune full --no-probe \\
        --batch-size 512 --augment.mix_chance 0.5 --seed 2 --budget 92m --data.memory_gb 3 --out runs/backbone-3
    vitreous finetune tiny --recipe backbone --from runs/backbone-3 --model.image_size 64 --tune full --no-probe \\
        --batch-size 512 --augment.mix_chance 0.5 --optim.lr 0.0015 --optim.muon_lr 0.008 --augment.small_first 0.75 \\
        --augment.small_until 0.35 --seed 3 --budget 64m --data.memory_gb 3 --out runs/backbone-4
    python benchmarks/training/backbone.py pack runs/backbone-4

TINY_IMAGENET has folders train/CLASS and val/CLASS with images of ImageNet at 64 px; CIFAR10 is torchvision's folder.
CIFAR-10's test split is not read: of each class, 100 images of the train split are for validation. Images of
TINY_IMAGENET are hard links. `pack` removes the head and rounds the weights to float16.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

from torchvision.datasets import CIFAR10

from vitreous.accelerate.model import build as build_model
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.checkpoint.shipped import LICENCE, shipped_file
from vitreous.model.heads import LinearHead

_HELD_OUT = 100  # images of each CIFAR-10 class for validation
_SOURCE = "runs/backbone-3"  # the run from which the last one starts


def link_tree(source: Path, destination: Path) -> int:
    """Link all files of a folder with subfolders; return their number."""
    count = 0
    for path in sorted(source.rglob("*.png")):
        target = destination / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
        count += 1
    return count


def write_cifar(folder: Path, destination: Path) -> int:
    """Write CIFAR-10's train split as PNG files, in classes of their own; return their number."""
    dataset, seen = CIFAR10(str(folder), train=True), Counter[int]()
    for image, label in dataset:
        split = "val" if seen[label] < _HELD_OUT else "train"
        target = destination / split / f"cifar_{dataset.classes[label]}" / f"{seen[label]:04}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        image.save(target, compress_level=1)
        seen[label] += 1
    return sum(seen.values())


def build(args: argparse.Namespace) -> None:
    """Build the folder of images."""
    print(f"{link_tree(args.tiny_imagenet, args.destination):,} images of ImageNet linked")
    print(f"{write_cifar(args.cifar10, args.destination):,} images of CIFAR-10 written")


def pack(args: argparse.Namespace) -> None:
    """Write the file of the package."""
    trained, info = load_model(args.run)
    model = build_model(replace(trained.config, num_classes=0, head=LinearHead()))
    state = {name: tensor for name, tensor in trained.state_dict().items() if not name.startswith("head.")}
    model.load_state_dict(state)
    found, source = info.provenance, {"source": "tiny"}  # without the folders of the machine that trained it
    config = {**found["config"], "out": None, "data": {**found["config"]["data"], **source}}
    provenance = {**found, "config": config, "data": {**found["data"], **source}}
    if "finetuned_from" in found:
        config["tune"] = {**config["tune"], "source": _SOURCE}
        provenance["finetuned_from"] = {**found["finetuned_from"], "name": _SOURCE}
    provenance["versions"] = {name: text for name, text in found["versions"].items() if name != "platform"}
    provenance |= {"licence": LICENCE, "classes": len(info.classes)}
    packed = ModelInfo((), info.pipeline, provenance=provenance, scores=info.scores)
    save_model(args.destination, model.half(), packed)
    print(f"{args.destination}: {args.destination.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(required=True)
    images = steps.add_parser("images", help="build the folder of images")
    for name in ("tiny_imagenet", "cifar10", "destination"):
        images.add_argument(name, type=Path)
    images.set_defaults(run_step=build)
    packing = steps.add_parser("pack", help="write the model file of the package")
    packing.add_argument("run", type=Path)
    packing.add_argument("destination", type=Path, nargs="?", default=shipped_file())
    packing.set_defaults(run_step=pack)
    args = parser.parse_args()
    args.run_step(args)


if __name__ == "__main__":
    main()
