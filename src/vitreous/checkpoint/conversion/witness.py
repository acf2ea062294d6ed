"""Runs written checkpoints with the library of their family, if it is installed, as an independent reference."""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
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

__all__ = ["reference_outputs", "run_huggingface"]


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
    if name in ("ViTModel", "DeiTModel"):
        arguments["add_pooling_layer"] = config.head.kind == "mlp"
        arguments["use_mask_token"] = any(key.endswith("mask_token") for key in read_tensors(weights))
    if name == "IJepaModel":
        arguments["add_pooling_layer"] = False
    if name.startswith("ViTMAE"):
        arguments["mask_ratio"] = 0.0
    model, found = getattr(transformers, name).from_pretrained(weights.parent, **arguments)
    problems = {key: sorted(map(str, found[key])) for key in ("missing_keys", "unexpected_keys") if found[key]}
    if problems:
        raise CheckpointError(f"transformers reports {problems} in the written files")
    return run_huggingface((model.vit if name == "ViTMAEForPreTraining" else model).eval(), images)


def run_huggingface(model: Any, images: Tensor) -> Tensor:
    """Return the output of one of transformers' models that this package's model computes too: logits or features."""
    arguments: dict[str, Any] = {"pixel_values": images}
    stated = getattr(model.config, "image_size", None)
    own_size = stated is not None and tuple(images.shape[2:]) == pair(
        tuple(stated) if isinstance(stated, list) else stated
    )
    if "interpolate_pos_encoding" in inspect.signature(model.forward).parameters and not own_size:
        arguments["interpolate_pos_encoding"] = True
    if model.config.model_type.startswith("siglip2"):
        arguments = _patches(images, getattr(model.config, "vision_config", model.config).patch_size)
    result = model(**arguments)
    for name in ("logits", "image_embeds", "pooler_output"):
        if getattr(result, name, None) is not None and "MAE" not in type(model).__name__:
            return cast(Tensor, getattr(result, name))
    tokens = cast(Tensor, result.last_hidden_state)
    return tokens.mean(1) if model.config.model_type == "ijepa" else tokens[:, 0]


def _patches(images: Tensor, patch: int) -> dict[str, Any]:
    """Return the arguments of a model that takes flattened patches, (B, N, P P C), and their grid."""
    rows, columns = images.shape[2] // patch, images.shape[3] // patch
    x = images.unflatten(3, (columns, patch)).unflatten(2, (rows, patch))  # (B, C, h, P, w, P)
    flat = x.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (B, h w, P P C)
    return {
        "pixel_values": flat,
        "pixel_attention_mask": torch.ones(flat.shape[:2], dtype=torch.long),
        "spatial_shapes": torch.tensor([[rows, columns]] * len(images)),
    }


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
