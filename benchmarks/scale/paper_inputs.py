"""What the calculations on paper start from: each value with its unit, its source, and how it is known.

`read` values stand in the named source, `computed` ones follow from such values, `measured` ones were measured by this
project, and `judged` ones are estimates. `scale_simulation.py --set NAME=VALUE` replaces any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DATASETS", "INPUTS", "STEPS", "Dataset", "Input", "Step", "values"]

_TIMM = "card of the dataset timm/imagenet-w21-webp-wds"
_VIT5 = "benchmarks page of NVIDIA's nvSubquadratic: ViT-5-Small, bf16, compiled, one H100"
_NEMO = "NeMo user guide, Vision Transformer, Performance: ViT g/14, one DGX H100"
_LLAMA = "arXiv 2407.21783, table 5, as reported by datacenterdynamics.com: 419 in 54 days on 16,384 H100"
_S3 = "Amazon S3 user guide, performance guidelines"
_S3_PRICE = "S3 Standard, us-east-1, as quoted by devnotes.tech in 2025"
_RENT = "mercatus-ai.com, May 2026: 2.50 to 3.50 dollars at specialised providers"


@dataclass(frozen=True)
class Input:
    """A value that a calculation starts from."""

    value: float
    unit: str
    label: str  # read, computed, measured or judged
    source: str


@dataclass(frozen=True)
class Dataset:
    """A dataset to train on."""

    title: str
    images: int
    classes: int
    epochs: int
    source: str


@dataclass(frozen=True)
class Step:
    """A published training step of one GPU, to which the model of step times is fitted."""

    size: str
    images: float
    seconds: float
    source: str


DATASETS = {
    "imagenet-21k": Dataset(
        "ImageNet-21k",
        13_151_276,
        19_167,
        90,
        f"images and classes of the winter 2021 release read in the {_TIMM}; epochs judged after arXiv 2010.11929",
    ),
    "jft": Dataset(
        "JFT size",
        300_000_000,
        18_000,
        7,
        "size and classes of JFT-300M read in arXiv 2010.11929, section 4.1; epochs judged after the same paper",
    ),
}

STEPS = (
    Step("S/16", 256, 0.0332, _VIT5),
    Step("g/14", 64, 64 * 8 / 1428, f"{_NEMO}, 1,428 images/s, 64 images per GPU"),
)
"""The exchange of gradients between 8 GPUs is part of the second one, so the fitted rate is a little too low."""

INPUTS = {
    "image_bytes": Input(87_700, "bytes", "computed", f"645.65 GB of WebP, 56 % of the JPEGs, / images: {_TIMM}"),
    "gpus_per_machine": Input(8, "", "read", _NEMO),
    "cores_per_gpu": Input(12, "", "judged", "two processors of 48 cores for 8 GPUs"),
    "decode": Input(
        0.0022, "s", "measured", "JPEG of 500 x 400 to 224 pixels, CPU time on one Xeon core, 5 rounds of 50 images"
    ),
    "jitter": Input(0.02, "", "judged", "standard deviation of the logarithm of a GPU's time for a step"),
    "slow_per_gpu_day": Input(0.005, "1/day", "judged", "a GPU that clocks down, for instance"),
    "slow_factor": Input(1.3, "", "judged", "how much longer steps take meanwhile"),
    "slow_seconds": Input(3600, "s", "judged", "how long it lasts"),
    "bus_within": Input(400e9, "bytes/s", "judged", "all-reduce within a machine: 450 GB/s of NVLink, 90 % of it"),
    "bus_across": Input(300e9, "bytes/s", "judged", "between machines: 8 x 400 Gbit/s, 75 % of it"),
    "bus_latency": Input(40e-6, "s", "judged", "an all-reduce of one number, times log2 of the GPUs"),
    "bucket": Input(25 * 2**20, "bytes", "read", "torch's DistributedDataParallel, bucket_cap_mb"),
    "capture_rate": Input(10e9, "bytes/s", "judged", "the copy of a state into main memory; training waits"),
    "write_rate": Input(1e9, "bytes/s", "judged", "one process to a shared file system; training continues"),
    "store_latency": Input(
        0.15, "s", "read", "100 to 200 ms to the first byte, as lucaraveri.com quotes Amazon; the middle"
    ),
    "in_flight": Input(
        5718 / 8 * 0.15,
        "",
        "computed",
        "requests of a loader at a time, after LitData's README: 5,718 JPEGs/s, 8 loaders, S3",
    ),
    "store_requests": Input(5500 * 16, "1/s", "judged", f"5,500 per prefix ({_S3}), 16 prefixes"),
    "store_rate": Input(5e9, "bytes/s", "judged", "from the store to one machine: 40 Gbit/s"),
    "shard_bytes": Input(64 * 2**20, "bytes", "read", "chunks of LitData's README"),
    "cache_bytes": Input(10 * 2**30, "bytes", "judged", "cache of shards on each machine"),
    "failures_per_gpu_day": Input(419 / 54 / 16384, "1/day", "computed", _LLAMA),
    "hangs": Input(0.1, "", "judged", "share of the failures in which all processes still run"),
    "preemptions_per_machine_day": Input(0.2, "1/day", "judged", "spot machines only"),
    "notice": Input(
        120, "s", "read", "before a spot machine is taken: 30 s to 2 min, computespec.pages.dev; the longer"
    ),
    "replace": Input(600, "s", "judged", "until another machine is found for one that was taken"),
    "requeue": Input(120, "s", "judged", "until a scheduler has started the command again"),
    "start": Input(120, "s", "judged", "from the command to the first step: imports, NCCL, compilation"),
    "gpu_hour": Input(3.0, "$", "read", f"{_RENT}; the middle"),
    "spot_discount": Input(0.5, "", "judged", "50 to 65 % in January 2026, digiterialabs.com"),
    "storage": Input(0.023, "$/GB/month", "read", _S3_PRICE),
    "request": Input(0.4e-6, "$", "read", f"GET, {_S3_PRICE}"),
}


def values(**replaced: float) -> dict[str, float]:
    """Return the values of all inputs, some of them replaced."""
    if unknown := sorted(set(replaced) - set(INPUTS)):
        raise ValueError(f"unknown input {', '.join(unknown)}: choose from {', '.join(INPUTS)}")
    return {name: each.value for name, each in INPUTS.items()} | replaced
