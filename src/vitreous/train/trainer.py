"""The Lightning Trainer of a run: how it is set up, and kept from talking over the run's own lines."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger

from vitreous.errors import MissingExtraError

__all__ = ["build_trainer", "make_loggers", "quiet"]


def build_trainer(
    folder: Path, device: torch.device, precision: str, callbacks: Sequence[Callback], loggers: list[Logger]
) -> lightning.Trainer:
    """Build a Trainer that runs until a callback stops it, on one device, with nothing of its own on the terminal.

    Args:
        folder: Of the run.
        device: Where to train.
        precision: `bf16` (autocast; weights stay float32) or `float32`.
        callbacks: In the order in which they are called.
        loggers: None at all is fine.
    """
    return lightning.Trainer(
        accelerator={"cuda": "gpu"}.get(device.type, device.type),
        devices=1,
        precision="bf16-mixed" if precision == "bf16" else "32-true",
        max_epochs=-1,
        callbacks=list(callbacks),
        logger=loggers or False,
        default_root_dir=folder,
        plugins=[LightningEnvironment()],  # under Slurm its own would requeue the job, from checkpoints of its own
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def make_loggers(names: Sequence[str], folder: Path) -> list[Logger]:
    """Build Lightning's loggers by name.

    Raises:
        MissingExtraError: If a logger's package is not installed.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        extras = ",".join(missing)
        raise MissingExtraError(f"{' and '.join(missing)} not installed: pip install 'vitreous[{extras}]'")
    from lightning.pytorch import loggers  # here: it imports what it finds of them

    make: dict[str, Any] = {
        "tensorboard": lambda: loggers.TensorBoardLogger(folder, name="", version="tensorboard"),
        "wandb": lambda: loggers.WandbLogger(name=folder.name, project="vitreous", save_dir=folder),
        "mlflow": lambda: loggers.MLFlowLogger("vitreous", folder.name, tracking_uri=_mlflow_store(folder)),
    }
    return [make[name]() for name in names]


def _mlflow_store(folder: Path) -> str:
    """The server that the user's environment names, as MLflow itself has it; else a database in the run's folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute() / 'mlflow.db'}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within, Lightning logs errors only, and its advice on workers, log intervals and the like is not shown."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero", "lightning_utilities")
    logs = [logging.getLogger(name) for name in names]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning(\.|$)")
            warnings.filterwarnings("ignore", category=UserWarning, message=".*(lightning|Lightning|Trainer).*")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
