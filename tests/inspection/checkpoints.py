"""Small models of four families, as files in the layouts of their own libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision.models
from timm.models import save_for_hf

from vitreous.checkpoint.opening import OpenOptions, open_checkpoint
from vitreous.model.vit import VisionTransformer

sys.path.append(str(Path(__file__).resolve().parents[1] / "checkpoint" / "adapters"))
from google_files import FLAX, google, save
from reference_models import randomise


def of_timm(folder: Path, **more: Any) -> Path:
    options = {"depth": 2, "num_classes": 7, "embed_dim": 64, "num_heads": 2, "img_size": (224, 160), **more}
    model = randomise(timm.create_model("vit_tiny_patch16_224", **options))
    save_for_hf(model, folder, model_args=options, safe_serialization=True)
    return folder


def of_huggingface(folder: Path, registers: int = 0, size: int = 98) -> Path:
    import transformers as hf

    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 5, "image_size": size}
    if registers:
        config = hf.Dinov2WithRegistersConfig(**shape, patch_size=14, mlp_ratio=2, num_register_tokens=registers)
        model = hf.Dinov2WithRegistersForImageClassification(config)
    else:
        model = hf.ViTForImageClassification(hf.ViTConfig(**shape, patch_size=14, intermediate_size=96))
    randomise(model).save_pretrained(folder)
    return folder


def of_torchvision(folder: Path, patch: int) -> Path:
    shape = {"image_size": 96, "num_layers": 2, "num_heads": 2, "hidden_dim": 128, "mlp_dim": 96, "num_classes": 6}
    folder.mkdir()
    torch.save(
        randomise(torchvision.models.VisionTransformer(**shape, patch_size=patch)).state_dict(), folder / "a.pth"
    )
    return folder / "a.pth"


def of_google(folder: Path, **more: Any) -> Path:
    folder.mkdir()
    return save(folder / "a.npz", google(**more), "params/" if more.get("names") is FLAX else "")


FAMILIES: dict[str, tuple[Callable[[Path], Path], tuple[int, int] | None]] = {
    "timm cls 16, 224 x 160": (of_timm, None),
    "timm cls 8, 224 x 160": (lambda f: of_timm(f, patch_size=8), None),
    "timm mean 32": (lambda f: of_timm(f, patch_size=32, global_pool="avg"), None),
    "timm mean of prefix 32": (lambda f: of_timm(f, patch_size=32, global_pool="avg", pool_include_prefix=True), None),
    "timm map 16": (lambda f: of_timm(f, global_pool="map", class_token=False), None),
    "timm map beside registers 32": (lambda f: of_timm(f, global_pool="map", reg_tokens=2, patch_size=32), None),
    "timm registers, QK norm 16": (lambda f: of_timm(f, reg_tokens=4, no_embed_class=True, qk_norm=True), None),
    "huggingface cls 14": (of_huggingface, None),
    "huggingface cls-mean with registers 14": (lambda f: of_huggingface(f, registers=3), None),
    "huggingface cls-mean 14, 224 x 154": (lambda f: of_huggingface(f, registers=2), (224, 154)),
    "torchvision cls 8": (lambda f: of_torchvision(f, 8), None),
    "torchvision cls 32, 224 x 160": (lambda f: of_torchvision(f, 32), (224, 160)),
    "google cls 8": (of_google, None),
    "google cls 8 with pre_logits, 64 x 40": (lambda f: of_google(f, representation=48), (64, 40)),
    "google mean 8": (lambda f: of_google(f, cls=False), None),
    "google map 8": (
        lambda f: of_google(f, names=FLAX, position="pos_embedding", cls=False, pool="MAPHead_0/"),
        None,
    ),
}
"""How a file is made in a new folder, and the image size at which it is opened; None is its own."""


def opened(name: str, folder: Path) -> VisionTransformer:
    """A fast model in float32, in evaluation mode."""
    make, size = FAMILIES[name]
    return open_checkpoint(make(folder / "model"), OpenOptions(image_size=size))[0]
