"""Evaluation pipelines in other families' words: timm's pretrained_cfg, Hugging Face's preprocessor_config.json."""

from __future__ import annotations

import math
from typing import Any

from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair

__all__ = [
    "pipeline_from_huggingface",
    "pipeline_from_timm",
    "pipeline_from_torchvision",
    "pipeline_to_huggingface",
    "pipeline_to_timm",
]

_HALF = (0.5, 0.5, 0.5)
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_TIMM_FITS = {"center": "crop", "squash": "squash", "border": "pad"}
_PIL = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # PIL.Image.Resampling, as transformers writes it
EXACT = "vitreous_pipeline"
"""Key for a pipeline that the family's own words cannot say."""


def pipeline_from_timm(given: dict[str, Any], config: ViTConfig, name: str) -> EvalPipeline:
    """Read a pretrained_cfg; what it leaves out is timm's default (crop, 0.875, bilinear, ImageNet's mean and std)."""
    interpolation = given.get("interpolation", "bilinear")
    values = {
        "fit": _TIMM_FITS.get(given.get("crop_mode") or "center", "crop"),
        "crop_ratio": given.get("crop_pct") or 0.875,
        "interpolation": interpolation if interpolation in _PIL.values() else "bicubic",
        "mean": tuple(given.get("mean") or _IMAGENET[0]),
        "std": tuple(given.get("std") or _IMAGENET[1]),
    }
    return _pipeline(pair(config.image_size), config, values, name)


def pipeline_to_timm(pipeline: EvalPipeline) -> dict[str, Any]:
    """Write the fields of a pretrained_cfg."""
    c = pipeline.config
    return {
        "crop_mode": {ours: theirs for theirs, ours in _TIMM_FITS.items()}[c.fit],
        "crop_pct": c.crop_ratio if c.fit == "crop" else 1.0,
        "interpolation": c.interpolation,
        "mean": list(c.mean),
        "std": list(c.std),
    }


def pipeline_from_huggingface(given: dict[str, Any], config: ViTConfig, name: str) -> EvalPipeline:
    """Read a preprocessor_config.json: a size of height and width squashes, a shortest edge and a crop size crop."""
    if EXACT in given:
        return EvalPipeline.from_dict(given[EXACT])
    size, crop = given.get("size"), given.get("crop_size")
    values: dict[str, Any] = {
        "fit": "squash",
        "interpolation": _PIL.get(given.get("resample", 2), "bilinear"),
        "mean": tuple(given.get("image_mean") or _HALF),
        "std": tuple(given.get("image_std") or _HALF),
    }
    target = pair(config.image_size)
    if isinstance(size, dict) and "shortest_edge" in size:
        edge = int(size["shortest_edge"])
        window = crop.get("height", edge) if isinstance(crop, dict) else crop or min(target)
        values |= {"fit": "crop", "crop_ratio": _ratio(min(int(window), edge), edge)}
    elif isinstance(size, dict) and given.get("do_center_crop") and isinstance(crop, dict):
        values |= {"fit": "crop", "crop_ratio": _ratio(min(int(crop["height"]), size["height"]), size["height"])}
    return _pipeline(target, config, values, name)


def pipeline_to_huggingface(pipeline: EvalPipeline) -> dict[str, Any]:
    """Write a preprocessor_config.json; one that it has no words for goes in whole under a key of ours."""
    c, (height, width) = pipeline.config, pipeline.size
    document: dict[str, Any] = {
        "image_processor_type": "BitImageProcessor" if c.fit == "crop" else "ViTImageProcessor",
        "do_resize": True,
        "resample": {ours: theirs for theirs, ours in _PIL.items()}[c.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(c.mean),
        "image_std": list(c.std),
    }
    same = c.fit == "squash"
    if c.fit == "crop":
        edge = int(min(height, width) / c.crop_ratio)
        same = height == width and _ratio(height, edge) == c.crop_ratio
        document["size"] = {"shortest_edge": edge}
        document |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    else:
        document["size"] = {"height": height, "width": width}
    if not same:
        document[EXACT] = pipeline.to_dict()
    return document


def pipeline_from_torchvision(config: ViTConfig, name: str) -> EvalPipeline:
    """The pipeline of torchvision's ImageNet weights: resize to 256 for 224, bilinear, the middle, ImageNet's mean."""
    values = {
        "fit": "crop",
        "crop_ratio": 0.875,
        "interpolation": "bilinear",
        "mean": _IMAGENET[0],
        "std": _IMAGENET[1],
    }
    return _pipeline(pair(config.image_size), config, values, name)


def _ratio(window: int, edge: int) -> float:
    """The share that is kept, rounded so that the edge comes back as the same whole number."""
    ratio = window / edge
    return ratio if int(window / ratio) == edge else math.nextafter(ratio, 0.0)


def _pipeline(size: tuple[int, int], config: ViTConfig, values: dict[str, Any], name: str) -> EvalPipeline:
    for key in ("mean", "std"):  # one channel of three that are alike, for grey models
        values[key] = tuple(values[key])[: config.in_channels]
    try:
        return EvalPipeline(size, config.in_channels, PreprocessConfig(**values))
    except (TypeError, ValueError) as error:  # a ConfigError is a ValueError
        raise CheckpointError(f"the evaluation pipeline beside '{name}' cannot be used: {error}") from error
