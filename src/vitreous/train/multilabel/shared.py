"""What a run with several labels is assembled from in one of several processes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from vitreous.train.assembly import Kit
from vitreous.train.multilabel.writing import LabelsWriter, ending
from vitreous.train.scale.callbacks import SharedWriter
from vitreous.train.scale.fsdp.saving import ShardedWriter
from vitreous.train.scale.fsdp.sharded import Sharded
from vitreous.train.scale.replicated import Replicated
from vitreous.train.setup import Setup

__all__ = ["shared_kit"]


class _SharedLabelsWriter(SharedWriter, LabelsWriter):
    """Writes in the first process."""


class _ShardedLabelsWriter(ShardedWriter, LabelsWriter):
    """Writes in the first process, with the weights of all."""


def shared_kit(sharing: Replicated, setup: Setup) -> Kit:
    """Return the kit of processes that share a model in this way, with a writer of several labels."""
    writer = partial(_ShardedLabelsWriter, sharing.layout) if isinstance(sharing, Sharded) else None
    return replace(sharing.kit(setup), writer=writer or partial(_SharedLabelsWriter, sharing.team), ending=ending)
