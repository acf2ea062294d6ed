"""Closed forms for a run on many GPUs: bytes, requests, the time of a step, checkpoints, failures, money.

Shares of batches and the interval of checkpoints are the program's own. Times are in seconds, money is in dollars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from scale.paper_inputs import DATASETS, STEPS, Dataset, values
from vitreous.accelerate.cost import cost
from vitreous.data.batches.sampler import Share, TrainSampler
from vitreous.model.sizes import config_of
from vitreous.train.config import RunConfig, parse_duration

__all__ = ["LAYOUTS", "Case", "StepModel", "Work", "fit", "published", "work_of"]

DAY = 86_400.0
LAYOUTS = ("disk", "shards", "images")
"""Where images come from: a copy on each machine's disk; shards in a store, of which each machine caches all that it
needs; or a request to the store for each image."""
_NAME_BYTES = 79  # of "n01440764/n01440764_10026.JPEG" as a str of Python 3.11; later versions take 8 less


class Work(NamedTuple):
    """What a model asks of a GPU."""

    parameters: int
    flops: float  # of training, per image: 3 times those of the forward pass, 2 for each multiply-add


class StepModel(NamedTuple):
    """The time of a step on one GPU: a part for each step, and a part for each unit of work."""

    overhead: float
    per_unit: float


@cache
def work_of(size: str, classes: int) -> Work:
    """Count the parameters and operations of a model."""
    counted = cost(config_of(size, num_classes=classes))
    return Work(counted.parameters, 3.0 * counted.flops)


def fit(points: Sequence[tuple[float, float]]) -> StepModel:
    """Fit the time of a step to (work, seconds) by least squares; one point is taken as proportional."""
    works, times = [work for work, _ in points], [seconds for _, seconds in points]
    if len(points) == 1:
        return StepModel(0.0, times[0] / works[0])
    mean, middle = math.fsum(works) / len(works), math.fsum(times) / len(times)
    spread = math.fsum((work - mean) ** 2 for work in works)
    if not spread:
        raise ValueError("steps with different numbers of images are needed to fit their time")
    slope = math.fsum((work - mean) * (time - middle) for work, time in points) / spread
    if slope <= 0:
        raise ValueError("steps with more images do not take longer: measure them again on an idle machine")
    if slope * mean > middle:  # a fixed part below zero is noise
        return StepModel(0.0, math.fsum(work * time for work, time in points) / math.fsum(work**2 for work in works))
    return StepModel(middle - slope * mean, slope)


@cache
def published() -> StepModel:
    """Return the step model, by operations, of one H100 after the published steps."""
    return fit([(each.images * work_of(each.size, 1000).flops, each.seconds) for each in STEPS])


@dataclass(frozen=True)
class Case:
    """A run to calculate.

    Attributes:
        dataset: What to train on.
        gpus: Number of processes.
        work: What the model asks of a GPU.
        step: Time of a step on one GPU against its images.
        batch: Images per step of all processes; the recipe's, so it does not grow with the number of GPUs.
        layout: Where images come from, one of LAYOUTS.
        spot: Whether machines can be taken away, at a discount.
        given: Values of the inputs.
    """

    dataset: Dataset
    gpus: int
    work: Work
    step: StepModel
    batch: int = 4096
    layout: str = "shards"
    spot: bool = False
    given: Mapping[str, float] = field(default_factory=values)

    @classmethod
    def of(cls, dataset: str, size: str, gpus: int, **others: Any) -> Case:
        """Return the case of a known dataset and size, with the published step times unless others are given."""
        work = work_of(size, DATASETS[dataset].classes)
        if "step" not in others:
            model = published()
            others["step"] = StepModel(model.overhead, model.per_unit * work.flops)
        return cls(DATASETS[dataset], gpus, work, **others)

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"{self.gpus} GPUs: give at least 1")
        if self.batch < 2 * self.gpus:
            raise ValueError(f"batch {self.batch} is below 2 images for each of {self.gpus} GPUs: use a larger --batch")

    @property
    def machines(self) -> int:
        """Number of machines."""
        return -(-self.gpus // int(self.given["gpus_per_machine"]))

    @property
    def steps(self) -> int:
        """Steps of the run; the images that do not fill the last step of an epoch are left out."""
        return TrainSampler(self.dataset.images, self.batch).steps * self.dataset.epochs

    def shares(self) -> list[int]:
        """Return the number of images that each process gets of a step."""
        return [len(Share(rank, self.gpus).of_batch(self.batch)) for rank in range(self.gpus)]

    # Time of a step

    @property
    def ideal(self) -> float:
        """A step whose work is spread evenly, without anything else."""
        return self.step.per_unit * self.batch / self.gpus

    @property
    def computing(self) -> float:
        """A step of the process with the most images, alone."""
        return self.step.overhead + self.step.per_unit * max(self.shares())

    @property
    def exchange(self) -> float:
        """Exchange of gradients, float32, that backward does not hide, and the two exchanges of one number.

        A ring moves 2 (n - 1) / n of the gradients. The backward pass takes two thirds of the work and hides all but
        the last bucket.
        """
        if self.gpus == 1:
            return 0.0
        given, gradients = self.given, 4 * self.work.parameters
        rate = given["bus_within"] if self.machines == 1 else given["bus_across"]
        moved = 2 * (self.gpus - 1) / self.gpus * gradients / rate
        hidden = 2 / 3 * self.step.per_unit * min(self.shares())
        last = min(1.0, given["bucket"] / gradients) * moved
        return max(last, moved - hidden) + 2 * given["bus_latency"] * math.log2(self.gpus)

    # Bytes and requests

    @property
    def bytes(self) -> float:
        """The dataset."""
        return self.dataset.images * self.given["image_bytes"]

    @property
    def images_per_shard(self) -> float:
        """Images in a shard."""
        return self.given["shard_bytes"] / self.given["image_bytes"]

    @property
    def touched(self) -> float:
        """Fraction of the shards of an epoch that one machine needs, if each image goes to any machine."""
        return 1.0 - (1.0 - 1.0 / self.machines) ** self.images_per_shard

    @property
    def bytes_per_epoch(self) -> float:
        """Bytes that the store sends in an epoch."""
        copies = {"disk": 0.0, "images": 1.0, "shards": self.machines * self.touched}
        return copies[self.layout] * self.bytes

    @property
    def requests_per_epoch(self) -> float:
        """Requests to the store in an epoch."""
        if self.layout == "images":
            return float(self.dataset.images)
        return self.bytes_per_epoch / self.given["shard_bytes"]

    @property
    def list_bytes(self) -> float:
        """Memory of one process for the list of images: a name, a pointer to it, a label, and an epoch's order."""
        return self.dataset.images * (_NAME_BYTES + 8 + 8 + 8)

    # Checkpoints, failures and money

    @property
    def every(self) -> float:
        """Interval of checkpoints."""
        return parse_duration(RunConfig().checkpoint_every)

    @property
    def state_bytes(self) -> float:
        """A checkpoint: weights and two moments of AdamW, float32."""
        return 12.0 * self.work.parameters

    @property
    def capture(self) -> float:
        """Time for which training waits at a checkpoint."""
        return self.state_bytes / self.given["capture_rate"]

    @property
    def write(self) -> float:
        """Time that writing a checkpoint takes beside training."""
        return self.state_bytes / self.given["write_rate"]

    @property
    def failures_per_day(self) -> float:
        """Expected failures of the whole run per day."""
        return self.gpus * self.given["failures_per_gpu_day"]

    def failure_cost(self, detection: float) -> float:
        """Expected time that one failure costs: until it is noticed, a new start, and the work since the checkpoint."""
        return detection + self.given["requeue"] + self.given["start"] + self.every / 2 + self.capture + self.write

    def price(self, seconds: float) -> float:
        """Money for a run of so many seconds: GPUs, storage and requests."""
        given = self.given
        rent = self.gpus * seconds / 3600 * given["gpu_hour"] * (1 - self.spot * given["spot_discount"])
        kept = self.bytes / 1e9 * given["storage"] * seconds / (30 * DAY)
        return rent + kept + self.dataset.epochs * self.requests_per_epoch * given["request"]
