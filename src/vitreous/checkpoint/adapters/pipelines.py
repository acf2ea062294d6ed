"""Converts evaluation pipelines from and to timm's pretrained_cfg and Hugging Face's preprocessor_config.json."""

from __future__ import annotations

import math
from typing import Any

from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.model.config import ViTConfig, pair

__all__ = ["from_huggingface", "from_timm", "from_torchvision", "of_facebookresearch", "to_huggingface", "to_timm"]

_HALF = (0.5, 0.5, 0.5)
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_TIMM_FITS = {"center": "crop", "squash": "squash", "border": "pad"}
_PIL = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # PIL.Image.Resampling, as transformers writes it
_EXACT = "vitreous_pipeline"  # key of a pipeline that the family's format cannot express


def from_timm(document: dict[str, Any], config: ViTConfig, name: str) -> EvalPipeline:
    """Read a pretrained_cfg; missing entries take timm's defaults (crop, 0.875, bilinear, ImageNet mean and std)."""
    interpolation = document.get("interpolation", "bilinear")
    values = {
        "fit": _TIMM_FITS.get(document.get("crop_mode") or "center", "crop"),
        "crop_ratio": document.get("crop_pct") or 0.875,
        "interpolation": interpolation if interpolation in _PIL.values() else "bicubic",
        "mean": tuple(document.get("mean") or _IMAGENET[0]),
        "std": tuple(document.get("std") or _IMAGENET[1]),
    }
    return _pipeline(pair(config.image_size), config, values, name)


def to_timm(pipeline: EvalPipeline) -> dict[str, Any]:
    """Return the pipeline's entries of a pretrained_cfg."""
    c = pipeline.config
    return {
        "crop_mode": {ours: theirs for theirs, ours in _TIMM_FITS.items()}[c.fit],
        "crop_pct": c.crop_ratio if c.fit == "crop" else 1.0,
        "interpolation": c.interpolation,
        "mean": list(c.mean),
        "std": list(c.std),
    }


def from_huggingface(document: dict[str, Any], config: ViTConfig, name: str) -> EvalPipeline:
    """Read a preprocessor_config.json: squash to a height and width, or resize and center crop."""
    if _EXACT in document:
        return EvalPipeline.from_dict(document[_EXACT])
    size, crop = document.get("size"), document.get("crop_size")
    values: dict[str, Any] = {
        "fit": "squash",
        "interpolation": _PIL.get(document.get("resample", 2), "bilinear"),
        "mean": tuple(document.get("image_mean") or _HALF),
        "std": tuple(document.get("image_std") or _HALF),
    }
    target = pair(config.image_size)
    if isinstance(size, dict) and "shortest_edge" in size:
        edge = int(size["shortest_edge"])
        window = crop.get("height", edge) if isinstance(crop, dict) else crop or min(target)
        values |= {"fit": "crop", "crop_ratio": _ratio(min(int(window), edge), edge)}
    elif isinstance(size, dict) and document.get("do_center_crop") and isinstance(crop, dict):
        values |= {"fit": "crop", "crop_ratio": _ratio(min(int(crop["height"]), size["height"]), size["height"])}
    return _pipeline(target, config, values, name)


def to_huggingface(pipeline: EvalPipeline) -> dict[str, Any]:
    """Return a preprocessor_config.json; a pipeline that it cannot express is added under a key of its own."""
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
    is_exact = c.fit == "squash"
    if c.fit == "crop":
        edge = int(min(height, width) / c.crop_ratio)
        is_exact = height == width and _ratio(height, edge) == c.crop_ratio
        document["size"] = {"shortest_edge": edge}
        document |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    else:
        document["size"] = {"height": height, "width": width}
    if not is_exact:
        document[_EXACT] = pipeline.to_dict()
    return document


def of_facebookresearch(config: ViTConfig, name: str, *, crop_ratio: float) -> EvalPipeline:
    """Return the pipeline of facebookresearch's DINOv2, DINOv3 and MAE: bicubic, ImageNet mean and std."""
    values = {"fit": "crop", "crop_ratio": crop_ratio, "mean": _IMAGENET[0], "std": _IMAGENET[1]}
    return _pipeline(pair(config.image_size), config, values, name)


def from_torchvision(config: ViTConfig, name: str) -> EvalPipeline:
    """Return the pipeline of torchvision's ImageNet weights (torchvision.models, ``ViT_*_Weights``).

    Most resize to 256 pixels, those of L/16 to 242, with bilinear interpolation, and crop 224. Those of SWAG (384 or
    512 pixels, patches of 14, or so named) resize to their own size with bicubic interpolation.
    """
    size, patch = pair(config.image_size), pair(config.patch_size)
    values: dict[str, Any] = {"fit": "crop", "mean": _IMAGENET[0], "std": _IMAGENET[1]}
    if not ("swag" in name.lower() or size in ((384, 384), (512, 512)) or patch == (14, 14)):
        values |= {
            "crop_ratio": _ratio(224, 242 if (config.width, patch) == (1024, (16, 16)) else 256),
            "interpolation": "bilinear",
        }
    return _pipeline(size, config, values, name)


def _ratio(window: int, edge: int) -> float:
    """Return window / edge, rounded so that window / ratio truncates to the same edge."""
    ratio = window / edge
    return ratio if int(window / ratio) == edge else math.nextafter(ratio, 0.0)


def _pipeline(size: tuple[int, int], config: ViTConfig, values: dict[str, Any], name: str) -> EvalPipeline:
    """Build the pipeline; models with fewer channels take the first values of mean and std."""
    for key in ("mean", "std"):
        values[key] = tuple(values[key])[: config.in_channels]
    try:
        return EvalPipeline(size, config.in_channels, PreprocessConfig(**values))
    except (TypeError, ValueError) as error:  # a ConfigError is a ValueError
        raise CheckpointError(f"the evaluation pipeline beside '{name}' cannot be used: {error}") from error
