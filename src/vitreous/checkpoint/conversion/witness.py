"""Files that were written, run by the library that they were written for, where it is installed."""

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
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoint.untrusted.tensors import read_tensors
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair

__all__ = ["witness"]


def witness(family: str, weights: Path, config: ViTConfig, images: Tensor) -> tuple[str, Tensor] | None:
    """Return the library's name with version and its outputs for a batch, or None where it is not installed.

    Args:
        family: `timm`, `huggingface` or `torchvision`; Google's code is no package that could be installed.
        weights: The file of weights, with its documents beside it.
        config: What it must be: torchvision's files do not say.
        images: Normalised, B x C x H x W.

    Raises:
        CheckpointError: If the library refuses the files, or finds tensors missing or left over.
    """
    run = {"timm": _timm, "huggingface": _huggingface, "torchvision": _torchvision}.get(family)
    package = {"huggingface": "transformers"}.get(family, family)
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    if run is None:
        return None
    try:
        with _quiet(), torch.inference_mode():
            output = run(weights, config, images)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError, AssertionError) as error:
        raise CheckpointError(f"{package} {version} does not load what was written: {error}") from error
    return f"{package} {version}", output


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep libraries' chatter and progress bars off the terminal, and the hub out of it."""
    logging.disable(logging.ERROR)
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _timm(weights: Path, config: ViTConfig, images: Tensor) -> Tensor:
    import timm

    model = timm.create_model(f"local-dir:{weights.parent}", pretrained=True).eval()
    output: Tensor = model(images)
    return output


def _huggingface(weights: Path, config: ViTConfig, images: Tensor) -> Tensor:
    import transformers

    name = json.loads((weights.parent / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    arguments: dict[str, Any] = {"output_loading_info": True}
    if name == "ViTModel":
        arguments["add_pooling_layer"] = config.head == "mlp"
        arguments["use_mask_token"] = any(key.endswith("mask_token") for key in read_tensors(weights))
    model, found = getattr(transformers, name).from_pretrained(weights.parent, **arguments)
    problems = {key: sorted(map(str, found[key])) for key in ("missing_keys", "unexpected_keys") if found[key]}
    if problems:
        raise CheckpointError(f"transformers finds {problems} in what was written")
    result = model.eval()(images)
    if name.endswith("ForImageClassification"):
        output: Tensor = result.logits
    elif config.head == "mlp":
        output = result.pooler_output
    else:
        output = result.last_hidden_state[:, 0]
    return output


def _torchvision(weights: Path, config: ViTConfig, images: Tensor) -> Tensor:
    from torchvision.models import VisionTransformer

    hidden = (config.head_hidden or config.width) if config.head == "mlp" else None
    model = VisionTransformer(
        image_size=pair(config.image_size)[0],
        patch_size=pair(config.patch_size)[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_dim,
        num_classes=config.num_classes,
        representation_size=hidden,
    )
    model.load_state_dict(read_tensors(weights))  # strict
    output: Tensor = model.eval()(images)
    return output
