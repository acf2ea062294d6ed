"""Small models to export."""

from __future__ import annotations

from pathlib import Path

import torch

from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.evaluate.trust.abstention import AbstentionRule
from vitreous.evaluate.trust.conformal import ConformalSets
from vitreous.evaluate.trust.selective import SelectionScore
from vitreous.model.config import ViTConfig

CLASSES = ("daisy", "Löwenzahn", 'a\x1b[31m "quoted" <b>')


def thresholds(classes: int) -> dict[str, object]:
    """Rules whose decisions differ between images."""
    score = SelectionScore("max_logit_p_norm", 3.0)
    return {
        "abstention": AbstentionRule(score, 0.8, 0.9, 0.95, 0.5, 0.92),
        "conformal": ConformalSets("raps", 0.9, (0.6,), classes, penalty=0.01, free_ranks=1, include_top=True),
    }


def saved(
    folder: Path, fit: str = "crop", interpolation: str = "bicubic", rules: bool = True, **changes: object
) -> Path:
    """Save a model whose weights are all non-zero; `changes` are fields of its configuration."""
    small = {"image_size": (32, 48), "patch_size": 8, "num_classes": 3, "width": 32, "depth": 1, "heads": 2}
    torch.manual_seed(0)
    config = ViTConfig(**{**small, "mlp_dim": 64, "init": "timm", **changes})
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    channels = config.in_channels
    constants = PreprocessConfig(
        fit=fit,
        interpolation=interpolation,
        mean=(0.5, 0.4, 0.3)[:channels],
        std=(0.2, 0.3, 0.1)[:channels],
        crop_ratio=0.9,
    )
    names = CLASSES[: config.num_classes]
    found = thresholds(len(names)) if rules and names else {}
    provenance = {"recipe": "folder", "license": "CC-BY-4.0"}
    info = ModelInfo(names, EvalPipeline((32, 48), channels, constants), 1.7, provenance, **found)
    save_model(folder / "model.safetensors", model, info)
    return folder / "model.safetensors"
