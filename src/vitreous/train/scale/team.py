"""How the processes of a run agree: a process group, and the few exchanges that the run needs.

All exchanges here are of small values on the CPU, over gloo; gradients go over NCCL where the devices are GPUs.
"""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, distributed

from vitreous.errors import TrainingError, VitreousError, first_line
from vitreous.train.scale.heartbeat import Pulse
from vitreous.train.scale.place import Place

__all__ = ["LostPeerError", "Team", "is_lost_connection"]

_ARRIVAL = datetime.timedelta(minutes=10)  # within which all processes must have started
_EXCHANGE = datetime.timedelta(days=7)  # watch.py ends a run long before; the first process may probe for hours

_Value = TypeVar("_Value")


class LostPeerError(TrainingError):
    """Another process is gone: an exchange with it failed."""


def is_lost_connection(error: BaseException) -> bool:
    """Return whether an error of torch says that an exchange between processes failed."""
    words = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "TCPStore")
    networked = isinstance(error, distributed.DistError | RuntimeError) and any(word in str(error) for word in words)
    return isinstance(error, LostPeerError) or networked


class Team:
    """The processes of a run, as one of them sees them; use it as a context."""

    def __init__(self, place: Place, on_cuda: bool) -> None:
        self.place, self.pulse = place, Pulse()
        self.rank, self.world = place.rank, place.world
        for name, value in (("MASTER_ADDR", place.address), ("MASTER_PORT", str(place.port))):
            os.environ.setdefault(name, value)
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # Lightning would choose another number
        try:
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if on_cuda else "gloo", rank=self.rank, world_size=self.world, timeout=_ARRIVAL
            )
            self.group: Any = distributed.new_group(backend="gloo", timeout=_EXCHANGE)
        except (RuntimeError, ValueError) as error:
            raise TrainingError(
                f"process {self.rank} of {self.world} does not reach the others through {place.address}, port "
                f"{place.port}, within {_ARRIVAL.seconds // 60} minutes ({first_line(error)}): check that all have "
                "started, or set MASTER_ADDR and MASTER_PORT"
            ) from error

    @property
    def leads(self) -> bool:
        """Whether this is the first process, which alone writes and prints."""
        return self.rank == 0

    def close(self) -> None:
        """Leave the process group."""
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def largest(self, value: int) -> int:
        """Return the largest of the values of all processes."""
        tensor = torch.tensor([value])
        self._exchange(lambda: distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group=self.group))
        return int(tensor)

    def total(self, tensor: Tensor) -> Tensor:
        """Add up the tensors of all processes, in place. They are on the CPU."""
        self._exchange(lambda: distributed.all_reduce(tensor, group=self.group))
        return tensor

    def from_leader(self, value: _Value) -> _Value:
        """Return the first process's value; those of the others are ignored."""
        values = [value]
        self._exchange(lambda: distributed.broadcast_object_list(values, 0, group=self.group))
        return values[0]

    def of_all(self, value: _Value) -> list[_Value]:
        """Return the values of all processes, by rank."""
        values: list[Any] = [None] * self.world
        self._exchange(lambda: distributed.all_gather_object(values, value, group=self.group))
        return values

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        """Return the tensors of all processes, by rank, in the first one. They are on the CPU and of one shape."""
        tensors = [torch.empty_like(tensor) for _ in range(self.world)] if self.leads else None
        self._exchange(lambda: distributed.gather(tensor, tensors, dst=0, group=self.group))
        return tensors

    def together(self, function: Callable[[], _Value]) -> _Value:
        """Call a function in all processes; an error in any of them ends all, and the first process raises it."""
        result: Any = None
        error: Exception | None = None
        try:
            result = function()
        except Exception as raised:
            error = raised
        texts = self.of_all(None if error is None else f"{error}" or type(error).__name__)
        failed = [rank for rank, text in enumerate(texts) if text is not None]
        if not failed:
            return result
        if not self.leads:
            self.leave(error.exit_code if isinstance(error, VitreousError) else 1)
        if error is not None:
            raise error
        raise TrainingError(f"process {failed[0]} cannot start: {texts[failed[0]]}")

    def lead(self, function: Callable[[], _Value]) -> _Value | None:
        """Call a function in the first process only, while the others wait; an error there ends all."""
        with self.pulse.working("leading"):
            return self.together(function if self.leads else lambda: None)

    def leave(self, code: int) -> NoReturn:
        """End a process other than the first, which says why the run ends."""
        self.pulse.phase = "done"
        raise SystemExit(code)

    def _exchange(self, call: Callable[[], Any]) -> None:
        with self.pulse.waiting():
            try:
                call()
            except RuntimeError as error:
                raise LostPeerError(f"process {self.rank} on {socket.gethostname()} lost another process") from error
