"""How many workers a command has on a cluster, and what each of them asks Ray for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitreous.cluster.address import cluster_resources
from vitreous.errors import UsageError

__all__ = ["Room", "room_for"]


@dataclass(frozen=True)
class Room:
    """The workers of a command.

    Attributes:
        workers: How many.
        threads: Processors of each.
        on_gpu: Whether each has a GPU.
    """

    workers: int
    threads: int
    on_gpu: bool

    @property
    def resources(self) -> dict[str, float]:
        """What a worker asks Ray for."""
        return {"num_cpus": self.threads, "num_gpus": int(self.on_gpu)}

    def compare_with_free(self, ray: Any) -> str:
        """Return what was asked for and what is free, for a command that waits."""
        asked = f"{self.workers} workers of {self.threads} CPUs{' and a GPU' if self.on_gpu else ''}"
        free = ray.available_resources()
        left = f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs"
        return f"the command has asked for {asked}, and {left} are free"


def room_for(ray: Any, workers: int | None, device: str) -> Room:
    """Return the workers of a command.

    Args:
        ray: The module, connected to the cluster.
        workers: How many; None: one per GPU, or else per machine, but two where there are two processors.
        device: The device that the user asked for.

    Raises:
        UsageError: If the cluster has no such device, or Ray is to choose it.
    """
    nodes, cores, gpus = cluster_resources(ray)
    kind, _, index = device.partition(":")
    if index:
        raise UsageError(f"--device is '{device}', but Ray chooses the GPU of each worker: use --device {kind}")
    if kind == "cuda" and not gpus:
        raise UsageError("--device is 'cuda', but the cluster has no GPU: omit --device, or add machines with GPUs")
    on_gpu = gpus > 0 and kind in ("auto", "cuda")
    count = workers or (gpus if on_gpu else max(nodes, min(2, cores)))
    largest = max(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
    return Room(count, max(1, min(cores // count, largest)), on_gpu)
