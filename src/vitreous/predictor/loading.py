"""Opens a classifier from a model file, a checkpoint of another family, or an exported file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from vitreous.accelerate.merging import merge_tokens as merge
from vitreous.checkpoint.opening import THRESHOLDS_VOID, OpenedCheckpoint, OpenOptions, open_with_details
from vitreous.checkpoint.resize import Resample
from vitreous.engines.names import EngineName, PrecisionName
from vitreous.errors import ConfigError
from vitreous.export.reading import ExportedFile, is_exported, open_exported
from vitreous.model.config import Size2d
from vitreous.predictor.classifier import Classifier
from vitreous.predictor.exported import ExportedClassifier

__all__ = ["load"]


def load(
    source: str | os.PathLike[str],
    device: str | torch.device = "auto",
    image_size: Size2d | None = None,
    resample: Resample | None = None,
    *,
    engine: EngineName = "auto",
    precision: PrecisionName = "float32",
    merge_tokens: int = 0,
    tta: bool = False,
    ignore_thresholds: bool = False,
    trust_code: bool = False,
    tell: Callable[[str], None] | None = None,
) -> Classifier:
    """Load a classifier; :class:`Classifier` describes device, engine, precision, tta and tell in full.

    Args:
        source: A ``model.safetensors`` or run directory; or a file, folder or hub id of a Vision Transformer of Google,
            timm, Hugging Face or torchvision (:mod:`vitreous.checkpoint.opening`); or a .onnx, .xml or .pt2 file of
            ``vitreous export``, which fixes image size, engine, precision and device.
        device: Where to compute.
        image_size: Input height and width in pixels, multiples of the patch size; position embeddings are resampled.
            None: the size that the model was trained at.
        resample: Whose resampling of position embeddings: `google`, `timm`, `huggingface`, `torchvision` or `dinov2`.
            None: that of the model's family.
        engine: What computes; ``torch`` in ``float32`` is the reference for all others.
        precision: Number format of the computation.
        merge_tokens: Tokens to merge in each block, trading accuracy for speed (:mod:`vitreous.accelerate.merging`).
        tta: Test-time augmentation.
        ignore_thresholds: Ignore what ``vitreous calibrate`` stored: no prediction is unsure or has a set.
        trust_code: Run the machine code in a file of ``vitreous export --aot``, with your rights; else it is refused.
        tell: Receives notices.

    Raises:
        CheckpointError: If the file cannot be used.
        ConfigError: If the device does not exist, the patches do not tile the image size, tokens cannot be merged, or
            the engine does not support the device.
        MissingExtraError: If the engine is not installed, or the source is a hub id and huggingface_hub is not.
    """
    if is_exported(source):
        fixed = {"image_size": image_size, "resample": resample, "merge_tokens": merge_tokens, "tta": tta}
        exported = _open_exported(source, device, engine, precision, fixed=fixed, trust_code=trust_code)
        return ExportedClassifier(exported, ignore_thresholds=ignore_thresholds)
    opened = open_with_details(source, OpenOptions(image_size=image_size, resample=resample))
    model, info = opened.model, opened.info.without_thresholds() if ignore_thresholds else opened.info
    merge(model, merge_tokens)
    if tell is not None and not ignore_thresholds:
        for line in _threshold_notes(opened, merge_tokens=merge_tokens, tta=tta, bf16=precision != "float32"):
            tell(line)
    return Classifier(model, info, device, engine=engine, precision=precision, tta=tta, tell=tell)


def _threshold_notes(opened: OpenedCheckpoint, **changes: bool | int) -> Iterator[str]:
    """Yield what the user should know about the thresholds of a model that is used in another way than calibrated."""
    if THRESHOLDS_VOID in opened.reasons:
        yield THRESHOLDS_VOID
    used = [name.replace("_", " ") for name, value in changes.items() if value]
    if used and (opened.info.abstention or opened.info.conformal):
        yield (
            f"the thresholds were fitted without {' and '.join(used)}: their promises may not hold; "
            "`vitreous evaluate` with the same options measures what they do"
        )


def _open_exported(
    source: str | os.PathLike[str],
    device: str | torch.device,
    engine: EngineName,
    precision: PrecisionName,
    *,
    fixed: dict[str, Any],
    trust_code: bool,
) -> ExportedFile:
    """Open an exported file; refuse options that its graph cannot follow."""
    name = os.fspath(source)
    if changed := [option.replace("_", " ") for option, value in fixed.items() if value]:
        raise ConfigError(f"'{name}' is an exported graph, which fixes {', '.join(changed)}: give the model file")
    if str(device) not in ("auto", "cpu"):
        raise ConfigError(f"'{name}' is an exported graph, which runs on the CPU here, not on {device}")
    exported = open_exported(source, trust_code)
    if engine not in ("auto", exported.engine):
        raise ConfigError(f"'{name}' runs in {exported.engine}, not in {engine}: omit the engine")
    if precision == "bf16" and exported.precision != "bf16":
        raise ConfigError(f"'{name}' is a graph in {exported.precision}, not in bf16: omit the precision")
    return exported
