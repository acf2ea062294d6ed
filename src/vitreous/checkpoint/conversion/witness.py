"""Runs written checkpoints with the library of their family, if it is installed, as an independent reference."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from vitreous.checkpoint.untrusted.tensors import read_tensors
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair

__all__ = ["reference_outputs"]


def reference_outputs(family: str, weights: Path, config: ViTConfig, images: Tensor) -> tuple[str, Tensor] | None:
    """Load written files with their family's library and return its name and version, and its outputs.

    `config` is for torchvision, whose files do not contain it; the images are normalised, (B, C, H, W). Returns None
    if the family has no installable library, or it is not installed.
    """
    run = {"timm": _timm, "huggingface": _huggingface, "torchvision": _torchvision}.get(family)
    if run is None:
        return None
    package = "transformers" if family == "huggingface" else family
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    try:
        with _quiet(), torch.inference_mode():
            output = run(weights, config, images)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError, AssertionError) as error:
        raise CheckpointError(f"{package} {version} cannot load the written files: {error}") from error
    return f"{package} {version}", output


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the libraries' logs, warnings and progress bars, and keep them off the network."""
    logging.disable(logging.ERROR)
    hub_offline = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        if hub_offline is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = hub_offline


def _timm(weights: Path, config: ViTConfig, images: Tensor) -> Any:
    import timm

    return timm.create_model(f"local-dir:{weights.parent}", pretrained=True).eval()(images)


def _huggingface(weights: Path, config: ViTConfig, images: Tensor) -> Any:
    import transformers

    name = json.loads((weights.parent / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    arguments: dict[str, Any] = {"output_loading_info": True}
    if name == "ViTModel":
        arguments["add_pooling_layer"] = config.head.kind == "mlp"
        arguments["use_mask_token"] = any(key.endswith("mask_token") for key in read_tensors(weights))
    model, found = getattr(transformers, name).from_pretrained(weights.parent, **arguments)
    problems = {key: sorted(map(str, found[key])) for key in ("missing_keys", "unexpected_keys") if found[key]}
    if problems:
        raise CheckpointError(f"transformers reports {problems} in the written files")
    return run_huggingface(model.eval(), images)


def run_huggingface(model: Any, images: Tensor) -> Tensor:
    """Return the output of one of transformers' models that this package's model computes too: logits or features."""
    result = model(images)
    if hasattr(result, "logits"):
        return cast(Tensor, result.logits)
    pooled = getattr(result, "pooler_output", None)
    return cast(Tensor, result.last_hidden_state[:, 0] if pooled is None else pooled)


def _torchvision(weights: Path, config: ViTConfig, images: Tensor) -> Any:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=pair(config.image_size)[0],
        patch_size=pair(config.patch_size)[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_dim,
        num_classes=config.num_classes,
        representation_size=config.features if config.head.kind == "mlp" else None,
    )
    model.load_state_dict(read_tensors(weights))
    return model.eval()(images)
