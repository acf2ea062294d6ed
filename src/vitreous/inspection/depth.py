"""What a linear classifier reads from the tokens at each depth of a model (arXiv 1610.01644).

Shapes: n images, L blocks, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.evaluate.features.labelled import labelled
from vitreous.evaluate.features.logistic import probe_linear
from vitreous.inspection.layer_features import LayerFeatures, Token, layer_features
from vitreous.inspection.passes import BATCH_SIZE, Images
from vitreous.machine.threads import one_thread_with_blas

__all__ = ["STRENGTHS", "DepthProbe", "probe_by_depth", "probe_layer_features"]

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
"""Values of C. Those beyond hardly change the accuracy on standardised features, and take most of the time."""


@dataclass(frozen=True)
class DepthProbe:
    """Accuracy of a linear probe at every depth.

    Attributes:
        accuracy: Top-1 on the scored images, L + 1 values in [0, 1]; mAP where an image may have several labels. Depth
            0 is the input of the first block.
        train_accuracy: The same on the images that the probe was fitted to.
        strengths: C that a fifth of the training images chose, at each depth.
        token: The token that was probed, `class` or `patches` (their mean).
        train_images: Number of images that the probes were fitted to.
        scored_images: Number of scored images.
        measure: What `accuracy` has: `accuracy` or `mean_ap`.
    """

    accuracy: tuple[float, ...]
    train_accuracy: tuple[float, ...]
    strengths: tuple[float, ...]
    token: Token
    train_images: int
    scored_images: int
    measure: str = "accuracy"

    @property
    def margin(self) -> float:
        """Half the width of a 95 % interval of an accuracy of one half, the widest (normal approximation)."""
        return float(0.98 / np.sqrt(self.scored_images))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            self.measure: list(self.accuracy),
            f"train_{self.measure}": list(self.train_accuracy),
            "strengths": list(self.strengths),
            "token": self.token,
            "train_images": self.train_images,
            "scored_images": self.scored_images,
        }


def probe_by_depth(
    model: Any,
    train_images: Images,
    train_labels: npt.ArrayLike,
    scored_images: Images,
    scored_labels: npt.ArrayLike,
    *,
    token: Token | None = None,
    strengths: Sequence[float] = STRENGTHS,
    batch_size: int = BATCH_SIZE,
) -> DepthProbe:
    """Fit a linear probe on the tokens of every depth, and score it on other images.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        train_images: Normalised images to fit to, (n, C, H, W), or batches of them.
        train_labels: Their classes, (n,) integers, or several labels of each, (n, K) of 0 and 1.
        scored_images: Normalised images to score, or batches of them.
        scored_labels: Their classes.
        token: As in :func:`probe_layer_features`.
        strengths: Likewise.
        batch_size: Images per pass.

    Raises:
        ConfigError: If the model has no class token and ``token`` is `class`, is in training mode, or images do not
            fit.
        DataError: If there are no images, labels do not match them, or there are fewer than two classes.
    """
    train, scored = (layer_features(model, images, batch_size) for images in (train_images, scored_images))
    return probe_layer_features(train, train_labels, scored, scored_labels, token=token, strengths=strengths)


def probe_layer_features(
    train: LayerFeatures,
    train_labels: npt.ArrayLike,
    scored: LayerFeatures,
    scored_labels: npt.ArrayLike,
    *,
    token: Token | None = None,
    strengths: Sequence[float] = STRENGTHS,
) -> DepthProbe:
    """Fit a linear probe on features of every depth that are already computed, and score it on other images.

    Args:
        train: Features to fit to.
        train_labels: Their classes, (n,) integers, or several labels of each, (n, K) of 0 and 1.
        scored: Features to score.
        scored_labels: Their classes.
        token: `class` or `patches`; None: the class token, or the patches without one.
        strengths: Values of C to choose from, as in :func:`~vitreous.evaluate.features.logistic.probe_linear`.

    Raises:
        ConfigError: As :func:`probe_by_depth`.
        DataError: Likewise.
    """
    y, y_scored = np.asarray(train_labels), np.asarray(scored_labels)
    probes, on_train = [], []
    for depth, (x, x_scored) in enumerate(zip(train.of(token), scored.of(token), strict=True)):
        fitted, judged = labelled(x, y, f"train (depth {depth})"), labelled(x_scored, y_scored, f"scored ({depth})")
        classes = y.shape[1] if fitted.several else 1 + int(max(fitted.labels.max(), judged.labels.max()))
        with one_thread_with_blas():
            probe = probe_linear(fitted, {"val": judged}, classes, strengths=strengths)
        probes.append(probe)
        on_train.append(probe.model.accuracy(fitted))
    return DepthProbe(
        accuracy=tuple(probe.accuracy["val"] for probe in probes),
        train_accuracy=tuple(on_train),
        strengths=tuple(probe.strength for probe in probes),
        token=token or ("patches" if train.class_token is None else "class"),
        train_images=len(y),
        scored_images=len(y_scored),
        measure="mean_ap" if y.ndim == 2 else "accuracy",
    )
