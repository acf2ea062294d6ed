"""Which rows of a tensor each process holds: rank r has the r-th of equal parts, and the last ones may be smaller.

On the way to a checkpoint and back the parts are on the CPU, as DTensors that know the whole shape.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from vitreous.runs.shards import Part
from vitreous.train.scale.team import Team

__all__ = ["Layout"]


class Layout:
    """The parts of the processes of a team."""

    def __init__(self, team: Team, device: torch.device) -> None:
        self.team = team
        self.mesh: DeviceMesh = init_device_mesh(device.type, (team.world,))

    def rows(self, count: int) -> slice:
        """Return the rows of this process, of so many."""
        each = -(-count // self.team.world)
        return slice(min(self.team.rank * each, count), min((self.team.rank + 1) * each, count))

    def cut(self, whole: Tensor) -> DTensor:
        """Return this process's part of a tensor that it has whole, on the CPU."""
        return self._part(whole[self.rows(len(whole))].clone(), whole.shape)

    def empty(self, part: Part) -> DTensor:
        """Return an empty part of a tensor of a checkpoint, on the CPU."""
        own = self.rows(part.shape[0])
        return self._part(torch.empty((own.stop - own.start, *part.shape[1:]), dtype=part.dtype), part.shape)

    def _part(self, own: Tensor, shape: Any) -> DTensor:
        local, stride = own.to(self.mesh.device_type), torch.empty(shape, device="meta").stride()
        made = DTensor.from_local(local, self.mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride)
        return cast(DTensor, made.cpu())

    def gather(self, tensor: Tensor) -> Tensor:
        """Return a whole tensor on the CPU in the first process, and something else in the others."""
        if not isinstance(tensor, DTensor):
            return tensor
        own, count = tensor.to_local().detach().cpu(), tensor.shape[0]
        each = -(-count // self.team.world)
        padded = own.new_zeros((each, *tensor.shape[1:]))
        padded[: len(own)] = own
        parts = self.team.gather(padded)
        return own if parts is None else torch.cat(parts)[:count]
