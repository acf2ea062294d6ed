"""Which of the processes of a run this one is: from torchrun, SLURM, Kubernetes, or our own launcher (launch.py).

Imports no torch: the command that only starts the processes stays fast.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from vitreous.errors import UsageError

__all__ = ["STARTED", "Place", "find_place", "is_rank"]

STARTED = "VITREOUS_STARTED_MS"
"""The variable by which our launcher says when it started, in milliseconds of the machine's ``time.monotonic()``."""

_NODE_RANKS = ("NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "RANK")
_PORT = 29_400  # on the first machine of several, if MASTER_PORT does not name one


@dataclass(frozen=True)
class Place:
    """The place of a process among all of a run, or of a command that starts those of its machine."""

    devices: int  # processes on each machine
    nodes: int
    node: int  # this machine, counted from 0
    address: str  # of the first machine
    port: int  # 0: any free one
    local_rank: int | None = None  # of this process on its machine; None for a command that starts the processes
    launched: float | None = None  # time.monotonic() when the command on this machine started, if ours did

    @property
    def world(self) -> int:
        """Number of processes on all machines."""
        return self.devices * self.nodes

    @property
    def rank(self) -> int:
        """The number of this process, from 0, on all machines."""
        return self.node * self.devices + (self.local_rank or 0)


def is_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun or our launcher has started this process as one of several."""
    return {"RANK", "LOCAL_RANK", "WORLD_SIZE"} <= environ.keys() and environ["WORLD_SIZE"] != "1"


def find_place(devices: int, nodes: int, environ: Mapping[str, str] = os.environ) -> Place:
    """Return the place of this process in a run with so many processes on each of so many machines.

    Raises:
        UsageError: If the environment contradicts these numbers, or does not say which of several machines this is.
    """
    if is_rank(environ):
        return _place_of_rank(devices, nodes, environ)
    tasks = _number(environ, "SLURM_NTASKS")
    if nodes > 1 and tasks is not None and "SLURM_PROCID" in environ:
        return _place_in_slurm(devices, nodes, tasks, environ)
    if nodes == 1:
        return Place(devices, 1, 0, "127.0.0.1", 0)
    node = next((found for name in _NODE_RANKS if (found := _number(environ, name)) is not None), None)
    address = environ.get("MASTER_ADDR") or environ.get("PET_MASTER_ADDR")
    if node is None or not address:
        missing = " and ".join(
            [name for name, value in (("NODE_RANK", node), ("MASTER_ADDR", address)) if value in (None, "")]
        )
        raise UsageError(
            f"nodes {nodes} needs to know which machine this is: set {missing} (0 to {nodes - 1}, and the address of "
            "machine 0), or use torchrun or srun"
        )
    if not 0 <= node < nodes:
        raise UsageError(f"this is machine {node}, but nodes is {nodes}: machines are counted from 0 to {nodes - 1}")
    port = _number(environ, "MASTER_PORT") or _number(environ, "PET_MASTER_PORT") or _PORT
    return Place(devices, nodes, node, address, port, None if devices > 1 else 0)


def _place_of_rank(devices: int, nodes: int, environ: Mapping[str, str]) -> Place:
    rank, world, local = (_number(environ, name) or 0 for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    each = _number(environ, "LOCAL_WORLD_SIZE") or (devices if devices > 1 else world)
    if devices * nodes not in (1, world) or world % each:
        raise UsageError(
            f"devices {devices} on nodes {nodes} are {devices * nodes} processes, but WORLD_SIZE is {world}: omit "
            "--devices and --nodes, or make them agree"
        )
    address, port = environ.get("MASTER_ADDR", "127.0.0.1"), _number(environ, "MASTER_PORT") or _PORT
    milliseconds = _number(environ, STARTED)
    launched = None if milliseconds is None else milliseconds / 1000
    return Place(each, world // each, rank // each, address, port, local, launched)


def _place_in_slurm(devices: int, nodes: int, tasks: int, environ: Mapping[str, str]) -> Place:
    """Read SLURM's variables: srun starts one task per process, or one per machine, which then starts the others."""
    if tasks not in (nodes, nodes * devices):
        raise UsageError(
            f"devices {devices} on nodes {nodes} are {nodes * devices} processes, but srun has started {tasks} tasks: "
            f"use --ntasks-per-node={devices}, or 1"
        )
    address = environ.get("MASTER_ADDR") or _first_host(environ.get("SLURM_NODELIST", ""))
    job = _number(environ, "SLURM_JOB_ID") or 0
    port = _number(environ, "MASTER_PORT") or 15_000 + job % 10_000  # two jobs of one machine rarely meet
    node = _number(environ, "SLURM_NODEID") or 0
    if tasks == nodes and devices > 1:
        return Place(devices, nodes, node, address, port)
    return Place(devices, nodes, node, address, port, _number(environ, "SLURM_LOCALID") or 0)


def _first_host(hosts: str) -> str:
    """Return the first of SLURM's list of hosts, such as ``gpu[03-07,12],cpu1``."""
    try:
        found = subprocess.run(
            ["scontrol", "show", "hostnames", hosts], capture_output=True, text=True, check=True, timeout=20
        )
        return found.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        name, bracket, numbers = hosts.partition("[")
        if not bracket:
            return name.split(",")[0] or socket.gethostname()
        first = numbers.partition("]")[0].split(",")[0].split("-")[0]
        return name.rpartition(",")[2] + first


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() and text.isascii() else None
