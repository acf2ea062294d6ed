"""What the outputs of an exported file should be: by Pillow and PyTorch in float32, independently of the graph.

Shapes: B batch, h x w pixels of the images, C channels, H x W pixels of the model's input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.evaluate.trust.conformal import ConformalSets
from vitreous.evaluate.trust.thresholds import is_unsure
from vitreous.export.graph.core import CLASS_MAP, PIXELS, Core, output_names, tap_names
from vitreous.export.graph.mapped import class_map, class_map_rounding
from vitreous.export.verification.bounds import ROUNDINGS
from vitreous.model.vit import VisionTransformer

__all__ = ["Expected", "Reference"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Expected:
    """The outputs for a batch, and which decisions are too close to a threshold to be compared."""

    outputs: dict[str, Array]
    close: dict[str, Array]  # by output, of the same shape: True where either decision is right
    rounding: dict[str, Array] = field(default_factory=dict)  # by output, (B,): what float32 can give, where known

    def bounds(self, output: str, bound: float) -> Array:
        """Return the bound of an output for each image, (B,)."""
        rounding = self.rounding.get(output, np.zeros(len(self.outputs[output])))
        return np.maximum(bound, ROUNDINGS * rounding)


class Reference:
    """A model in float32 with the rules of its model file."""

    def __init__(self, model: VisionTransformer, info: ModelInfo, with_map: bool = False) -> None:
        self.model, self.info, self.with_map = model, info, with_map
        self.outputs = output_names(info, with_map)

    def pixels(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the pixels (B, C, H, W) that the evaluation pipeline makes of images (B, h, w, C)."""
        pipeline = self.info.pipeline
        pillow = [Image.fromarray(image[:, :, 0] if pipeline.channels == 1 else image) for image in images]
        return np.stack([pipeline.pixels(image) for image in pillow]).transpose(0, 3, 1, 2)

    def expected(self, images: npt.NDArray[np.uint8], margin: float) -> Expected:
        """Return the outputs for images (B, h, w, C); scores within `margin` of a threshold are close.

        So are the class maps of images whose two most probable classes are: either may be explained.
        """
        expected = self._expected(images, margin)
        if self.with_map:
            x = self.info.pipeline.normalise(torch.from_numpy(np.ascontiguousarray(self.pixels(images))))
            expected.outputs[CLASS_MAP] = class_map(self.model, self.info, x).numpy()
            expected.rounding[CLASS_MAP] = class_map_rounding(self.model, self.info, x).numpy()
            best = np.sort(expected.outputs["probabilities"], axis=1)[:, ::-1]
            tied = best[:, 0] - best[:, 1] <= 2 * margin if best.shape[1] > 1 else np.zeros(len(best), bool)
            expected.close[CLASS_MAP] = tied
        return expected

    @torch.inference_mode()
    def _expected(self, images: npt.NDArray[np.uint8], margin: float) -> Expected:
        x = self.info.pipeline.normalise(torch.from_numpy(np.ascontiguousarray(self.pixels(images))))
        features = self.model(x, "features")
        if not self.info.classes:
            return Expected({"features": features.numpy()}, {})
        logits = self.model.head(features)
        probabilities = self.info.probabilities(logits)
        outputs = {
            "probabilities": probabilities.numpy(),
            "logits": logits.numpy(),
            "features": features.numpy(),
        }
        decisions, close = self._decisions(logits, margin)
        return Expected(outputs | decisions, close)

    def _decisions(self, logits: Tensor, margin: float) -> tuple[dict[str, Array], dict[str, Array]]:
        calibrated = logits.double() / self.info.temperature
        decisions, close = dict[str, Array](), dict[str, Array]()
        if (rule := self.info.abstention) is not None:
            decisions["unsure"] = is_unsure(rule, calibrated)
            score = rule.score(calibrated)
            close["unsure"] = abs(score - rule.threshold) <= margin * np.maximum(1, abs(score))
        if (sets := self.info.conformal) is not None:
            probs = calibrated.softmax(1)
            decisions["sets"] = sets.sets(probs)
            close["sets"] = _close_scores(sets, probs.numpy(), margin)
        if (labels := self.info.multilabel) is not None:
            probs = labels.probabilities(logits.double())
            decisions["labels"] = labels.present(logits).numpy()
            close["labels"] = abs(probs.numpy() - np.array(labels.thresholds)) <= margin
        return decisions, close

    @torch.inference_mode()
    def layers(self, pixels: Array) -> dict[str, Array]:
        """Return the outputs and the values after each layer, by name, for pixels (B, C, H, W)."""
        core = Core(self.model, self.info).eval()
        values = core(torch.from_numpy(np.ascontiguousarray(pixels)))
        names = [*output_names(self.info), *tap_names(self.model)]
        return {PIXELS: pixels} | dict(zip(names, (each.numpy() for each in values), strict=True))


def _close_scores(rule: ConformalSets, probs: Array, margin: float) -> Array:
    """Return which scores are close to their threshold, (B, K), for probabilities that may differ by `margin`."""
    gap = abs(rule.scores(probs) - np.array(rule.thresholds))
    if rule.method == "lac":
        return gap <= margin
    # If a class is about as probable as another, their order may differ, and so which is counted first.
    order = np.argsort(probs, axis=1)
    steps = np.diff(np.take_along_axis(probs, order, axis=1), axis=1, prepend=-1, append=2)
    tied = np.empty(probs.shape, bool)
    np.put_along_axis(tied, order, np.minimum(steps[:, 1:], steps[:, :-1]) <= margin, axis=1)
    return gap <= margin * rule.classes + tied * (probs + rule.penalty)
