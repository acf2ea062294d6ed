"""Small models for the tests of engines."""

from __future__ import annotations

import torch

from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer

PIPELINE = EvalPipeline((32, 32), 3, PreprocessConfig(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.1)))


def model_of(seed: int = 0, **changes: object) -> VisionTransformer:
    """Make a small model in which no weight is zero."""
    small = {"image_size": 32, "patch_size": 8, "num_classes": 5, "width": 32, "depth": 1, "heads": 2, "mlp_dim": 64}
    torch.manual_seed(seed)
    model = build(ViTConfig(**{**small, "init": "timm", **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        if model.config.num_classes:
            model.head.weight.mul_(10)
    return model


def info_of(model: VisionTransformer) -> ModelInfo:
    return ModelInfo(tuple("abcde"[: model.config.num_classes]), PIPELINE, temperature=1.5)
