"""Compare the confusion matrix of every dataset size from 1 to 4 batches + 1 in 1 to 4 processes with that of one.

    python benchmarks/scale/evaluation.py --batch 7 [--strategy fsdp]

The images and the model's weights are random; the loop is Lightning's, as at the end of `vitreous train`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import lightning
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from scale.ranks import fork, wait
from vitreous.accelerate.model import build
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.batches.dataset import MemoryDataset
from vitreous.data.batches.loaders import BatchLoader
from vitreous.data.batches.sampler import OrderedSampler, Share
from vitreous.data.config import AugmentConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import Split
from vitreous.model.config import ViTConfig
from vitreous.train.config import OptimConfig
from vitreous.train.loop.module import VitModule
from vitreous.train.loop.silence import silence_lightning
from vitreous.train.loop.trainer import build_trainer
from vitreous.train.scale.fsdp.layout import Layout
from vitreous.train.scale.fsdp.module import ShardedStrategy, ShardedVitModule
from vitreous.train.scale.place import find_place
from vitreous.train.scale.replicated import trainer_arguments
from vitreous.train.scale.shares import SharedVitModule
from vitreous.train.scale.team import Team

CLASSES = 4
MODEL = ViTConfig(
    image_size=8, patch_size=4, in_channels=1, num_classes=CLASSES, width=16, depth=1, heads=2, mlp_dim=32
)


def matrices(folder: Path, batch: int, world: int, strategy: str) -> int:
    """Evaluate every size in this process and its peers; the first one saves the confusion matrices."""
    torch.manual_seed(0)
    model = build(MODEL)
    torch.nn.init.normal_(model.head.weight)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4 * batch + 1, 8, 8, 1), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, 4 * batch + 1)
    pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.5,), std=(0.25,)))
    arguments = model, OptimConfig(), BatchAugment(AugmentConfig(), pipeline, CLASSES, 0), pipeline
    team, device = (Team(find_place(1, 1), False) if world > 1 else None), torch.device("cpu")
    options, module = None, VitModule(*arguments)
    if team is not None and strategy == "fsdp":
        options = trainer_arguments(team, device, ShardedStrategy)
        module = ShardedVitModule(Layout(team, device), False, *arguments)
        module.shard(in_bf16=False)
    elif team is not None:
        options, module = trainer_arguments(team, device), SharedVitModule(team, *arguments)
    found = []
    with silence_lightning():
        trainer = build_trainer(folder, device, "float32", (), [], strategy=options)
        for size in range(1, 4 * batch + 2):
            share = Share(team.rank, team.world) if team is not None else None
            split = Split(labels[:size], tuple(map(str, range(size))), arrays=images[:size])
            loader = BatchLoader(MemoryDataset(split, pipeline), OrderedSampler(size, batch, share), 0)
            trainer.test(module, dataloaders=loader, verbose=False)
            pairs = module.labels * CLASSES + module.logits.argmax(1)
            assert len(pairs) == size
            found.append(torch.bincount(pairs, minlength=CLASSES**2))
    if team is None or team.leads:
        torch.save(torch.stack(found), folder / f"{world}.pt")
    return 0


def main() -> None:
    """Compare all sizes and numbers of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=7)
    parser.add_argument("--strategy", default="ddp", choices=["ddp", "fsdp"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for world in range(1, 5):
            codes = wait(fork(lambda world=world: matrices(folder, asked.batch, world, asked.strategy), world))
            if any(codes):
                raise SystemExit(f"{world} processes ended with {codes}")
        one = torch.load(folder / "1.pt")
        for world in range(2, 5):
            same = (torch.load(folder / f"{world}.pt") == one).all(1)
            print(f"{world} processes: {int(same.sum())} of {len(same)} sizes have the matrix of one process")


if __name__ == "__main__":
    lightning.seed_everything(0, verbose=False)
    main()
