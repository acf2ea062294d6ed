"""Compare shards with the folder they were made from: images per second, and the wait after a resume.

    python benchmarks/speed/shards.py --data flowers/
    python benchmarks/speed/shards.py --data flowers/ --s3     # also from an S3 server on loopback with faults

Loads an epoch of random resized crops in alternation, folder, shards, folder, shards, with worker processes and files
in the page cache, and prints the ratio round by round. Then it resumes at positions of an epoch, each with new workers,
and prints the seconds until the first batch. With --s3 (moto and s3fs must be installed) the store refuses one request
in 20, cuts off one in 13 and delays one in 7 by 0.3 s, and each position begins with an empty cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from measuring import header, in_turn
from vitreous.data.batches.data_module import ImageDataModule
from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.shards.remote import open_folder
from vitreous.data.shards.writing.destination import Destination, LocalDestination
from vitreous.data.shards.writing.remote_destination import RemoteDestination
from vitreous.data.shards.writing.writer import write_shards
from vitreous.data.sources.opening import open_source

TESTS = Path(__file__).resolve().parents[2] / "tests" / "data"
SERVER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from s3_server import s3_server
with s3_server(remembers=True) as (address, faults):
    faults.refuse, faults.cut, faults.slow = 20, 13, 7
    print(address, flush=True)
    sys.stdin.read()
"""


def loading(source: str, options: argparse.Namespace) -> ImageDataModule:
    """Loaders of a source that decode every batch from its files."""
    pipeline = EvalPipeline((options.size, options.size), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.25,) * 3))
    augment = AugmentConfig(resized_crop=0.25)
    data = open_source(DataConfig(source))
    return ImageDataModule(data, pipeline, augment, batch_size=64, memory_gb=0, workers=options.workers)


def epoch(module: ImageDataModule) -> None:
    """Load a whole epoch."""
    for _ in module.train_dataloader():
        pass


def waits(source: str, options: argparse.Namespace) -> list[float]:
    """Return the seconds until the first batch at positions of an epoch, each in a loader of its own."""
    found = []
    module = loading(source, options)
    batches = len(module.train_sampler)
    for position in [batches * n // options.positions for n in range(options.positions)]:
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="vitreous-cache-")
        open_folder.cache_clear()
        module.train_sampler.seek(0, position)
        started = time.perf_counter()
        batch = iter(module.train_dataloader())
        next(batch)
        found.append(time.perf_counter() - started)
        del batch
    return found


def pack(options: argparse.Namespace, destination: Destination) -> None:
    """Write the shards."""
    write_shards(DataConfig(options.data), destination, shard_bytes=options.shard_mib << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a folder of images")
    parser.add_argument("--size", type=int, default=128, help="side of a crop in pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--positions", type=int, default=5, help="at which an epoch is resumed")
    parser.add_argument("--shard-mib", type=int, default=4)
    parser.add_argument("--s3", action="store_true", help="also from an S3 server with faults")
    options = parser.parse_args()
    print(header(torch.device("cpu"), ("torch",)))
    with tempfile.TemporaryDirectory() as work:
        shards = os.path.join(work, "shards")
        pack(options, LocalDestination(Path(shards)))
        modules = {name: loading(source, options) for name, source in (("folder", options.data), ("shards", shards))}
        works = {name: lambda module=module: epoch(module) for name, module in modules.items()}
        times = in_turn(works, torch.device("cpu"), options.rounds, warm_up=1)
        count = len(modules["folder"].train_sampler) * 64
        ratios = sorted(a / b for a, b in zip(times["folder"], times["shards"], strict=True))
        for name, seconds in times.items():
            print(f"{name}: {count / statistics.median(seconds):.0f} images/s")
        print(f"shards / folder: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")
        print("first batch, shards:", " ".join(f"{seconds:.2f}" for seconds in waits(shards, options)), "s")
    if options.s3:
        command = [sys.executable, "-c", SERVER, str(TESTS)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, text=True, **pipes) as server:
            os.environ |= {"AWS_ENDPOINT_URL": server.stdout.readline().strip(), "AWS_ACCESS_KEY_ID": "someone"}
            os.environ |= {"AWS_SECRET_ACCESS_KEY": "something", "AWS_DEFAULT_REGION": "us-east-1"}
            subprocess.run(
                [sys.executable, "-c", "import boto3; boto3.client('s3').create_bucket(Bucket='photos')"], check=True
            )
            pack(options, RemoteDestination("s3://photos/shards"))
            found = waits("s3://photos/shards", options)
            print("first batch, S3 with faults:", " ".join(f"{seconds:.2f}" for seconds in found), "s")
            server.stdin.close()


if __name__ == "__main__":
    main()
