"""Converts evaluation pipelines from and to timm's pretrained_cfg and Hugging Face's preprocessor_config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
# Beginnings of the names of transformers' image processors, and of models that have one by default.
_SHORTEST_EDGE = ("CLIP", "Bit", "Dinov2", "Siglip")  # a size of one number is that of the shorter side
_CENTRED = ("CLIP", "Bit", "Dinov2", "DeiT")  # the centre is cut unless the document says otherwise


def from_timm(document: dict[str, Any], config: ViTConfig, name: str, reasons: list[str]) -> EvalPipeline:
    """Read a pretrained_cfg; missing entries take timm's defaults (crop, 0.875, bilinear, ImageNet mean and std).

    What the pipeline leaves out is appended to `reasons`, the lines for the user.
    """
    interpolation = document.get("interpolation", "bilinear")
    mode = document.get("crop_mode") or "center"
    fit, kept = _TIMM_FITS.get(mode, "crop"), document.get("crop_pct") or 0.875
    if fit != "crop" and kept < 1:
        reasons.append(f"crop_pct {kept:g} is ignored: with crop_mode {mode}, whole images are used, not their centre")
    values = {
        "fit": fit,
        "crop_ratio": kept if fit == "crop" else 1.0,
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


def from_huggingface(
    document: dict[str, Any], config: ViTConfig, name: str, model: str, reasons: list[str]
) -> EvalPipeline:
    """Read a preprocessor_config.json: squash to a height and width, or resize and center crop.

    Args:
        document: Its content.
        config: That of the model.
        name: The checkpoint's, for messages.
        model: Beginning of the model's class names, which decides if the document names no image processor.
        reasons: Lines for the user; what the pipeline leaves out is appended.
    """
    if _EXACT in document:
        return EvalPipeline.from_dict(document[_EXACT])
    processor = str(document.get("image_processor_type") or document.get("feature_extractor_type") or model)
    is_cut = document.get("do_center_crop")
    is_cut = processor.startswith(_CENTRED) if is_cut is None else is_cut
    size = _sides(document.get("size"), is_edge=processor.startswith(_SHORTEST_EDGE))
    crop = _sides(document.get("crop_size")) if is_cut else {}
    target = pair(config.image_size)
    window = int(crop.get("height", min(target)))
    edge = int(size.get("shortest_edge", size.get("height", window)))
    values: dict[str, Any] = {
        "fit": "squash",
        "interpolation": _PIL.get(document.get("resample", 2), "bilinear"),
        **_statistics(document),
    }
    if "shortest_edge" in size or (crop and window < edge):
        values |= {"fit": "crop", "crop_ratio": _ratio(min(window, edge), edge)}
    if values["fit"] == "crop" and "shortest_edge" not in size:
        reasons.append(f"images keep their aspect ratio: {processor} squashes them before it cuts the centre")
    if document.get("do_resize") is False:
        reasons.append("images are resized to the model's size, though preprocessor_config.json has do_resize false")
    return _pipeline(target, config, values, name)


def _sides(size: Any, *, is_edge: bool = False) -> dict[str, Any]:
    """Return a size as newer files write it; in older ones it is a number, or a height and a width."""
    if not isinstance(size, int | list):
        return size or {}
    if isinstance(size, int) and is_edge:
        return {"shortest_edge": size}
    height, width = (size, size) if isinstance(size, int) else size
    return {"height": height, "width": width}


def _statistics(document: dict[str, Any]) -> dict[str, Any]:
    """Return mean and std for pixels in [0, 1]; a preprocessor_config.json states them for pixels that it rescaled."""
    is_rescaled, is_normalised = (document.get(name) is not False for name in ("do_rescale", "do_normalize"))
    largest = 255 * (document.get("rescale_factor") or 1 / 255) if is_rescaled else 255  # of the pixels after rescaling
    mean, std = (0.0,) * 3, (1.0,) * 3
    if is_normalised:
        mean, std = document.get("image_mean") or _HALF, document.get("image_std") or _HALF
    return {"mean": tuple(m / largest for m in mean), "std": tuple(s / largest for s in std)}


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


def of_facebookresearch(config: ViTConfig, name: str, prepared: Mapping[str, Any]) -> EvalPipeline:
    """Return a pipeline of facebookresearch's: cropped, bicubic, ImageNet mean and std, but for what is `prepared`."""
    values = {"fit": "crop", "mean": _IMAGENET[0], "std": _IMAGENET[1], **prepared}
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
