"""Several processes of one small run, forked (forked.py) with the environment that a launcher gives them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

from forked import Forked
from vitreous.train.scale.launch import rank_environment
from vitreous.train.scale.place import Place

WORDS = (
    *("train", "digits", "--device", "cpu", "--precision", "float32", "--optim.name", "muon", "--ema", "0.9"),
    *("--model.width", "16", "--model.depth", "1", "--model.heads", "2", "--model.mlp_dim", "32", "--epochs", "2"),
    *("--augment.mixup", "0.2", "--augment.cutmix", "1.0", "--batch_size", "256", "--checkpoint_every", "1h"),
    *("--model.block.checkpoint", "true", "--model.block.drop_path", "0.2"),
)
"""Trains a tiny model of the digits, whose checkpoints are saved only at the end."""


@contextlib.contextmanager
def processes(folder: Path, world: int, *words: str, code: str = "", **environment: str) -> Iterator[list[Forked]]:
    """Run the command, or `code` with these words, in so many processes; kill what is left of them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = Place(world, 1, 0, "127.0.0.1", probe.getsockname()[1])
    words = words if code else (*WORDS, *words)
    started = [
        Forked(folder, *words, code=code, **(rank_environment(place, place.port, rank) | environment))
        for rank in range(world)
    ]
    try:
        yield started
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
