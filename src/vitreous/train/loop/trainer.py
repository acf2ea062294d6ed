"""The Lightning Trainer of a run, and its loggers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger

from vitreous.errors import MissingExtraError
from vitreous.train.loop.silence import lower_log_levels

__all__ = ["build_trainer", "make_loggers"]


def build_trainer(
    folder: Path,
    device: torch.device,
    precision: str,
    callbacks: Sequence[Callback],
    loggers: list[Logger],
    *,
    strategy: Mapping[str, Any] | None = None,
) -> lightning.Trainer:
    """Build a Trainer that runs until a callback stops it and prints nothing.

    With precision `bf16` the weights stay float32 (autocast). Callbacks are called in the given order. `strategy` are
    the Trainer's arguments for several processes; without them it uses one device.
    """
    lower_log_levels()
    one_device = {
        "devices": 1 if device.index is None else [device.index],
        "plugins": [LightningEnvironment()],  # that of Slurm would requeue the job from Lightning's checkpoints
    }
    return lightning.Trainer(
        **(strategy or one_device),
        accelerator={"cuda": "gpu"}.get(device.type, device.type),
        precision="bf16-mixed" if precision == "bf16" else "32-true",
        max_epochs=-1,
        callbacks=list(callbacks),
        logger=loggers or False,
        default_root_dir=folder,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def make_loggers(names: Sequence[str], folder: Path) -> list[Logger]:
    """Build Lightning's loggers by name."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        extras = ",".join(missing)
        raise MissingExtraError(f"{' and '.join(missing)} not installed: pip install 'vitreous[{extras}]'")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow would report its use to its makers
    from lightning.pytorch import loggers  # imports every logger package that is installed

    mlflow_uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute() / 'mlflow.db'}"
    make: dict[str, Any] = {
        "tensorboard": lambda: loggers.TensorBoardLogger(folder, name="", version="tensorboard"),
        "wandb": lambda: loggers.WandbLogger(name=folder.name, project="vitreous", save_dir=folder),
        "mlflow": lambda: loggers.MLFlowLogger("vitreous", folder.name, tracking_uri=mlflow_uri),
    }
    return [make[name]() for name in names]
