"""The class token and the mean patch token of every depth, for measures that compare depths.

Shapes: n images, B images of a batch, L blocks, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from vitreous.errors import ConfigError
from vitreous.inspection.passes import BATCH_SIZE, Images, passes

__all__ = ["LayerFeatures", "Token", "layer_features"]

Token = Literal["class", "patches"]
"""Which token to measure: [CLS], or the mean of the patch tokens."""


@dataclass(frozen=True, eq=False)
class LayerFeatures:
    """Features of images at every depth. Depth 0 is the input of the first block, depth l the output of block l.

    Attributes:
        class_token: (L + 1, n, D) in float32; None if the model has no class token.
        mean_patch: Mean of the patch tokens, (L + 1, n, D) in float32.
    """

    class_token: npt.NDArray[np.float32] | None
    mean_patch: npt.NDArray[np.float32]

    def of(self, token: Token | None = None) -> npt.NDArray[np.float32]:
        """Return the features of a token, (L + 1, n, D). None: the class token, or the patches without one.

        Raises:
            ConfigError: If the model has no class token.
        """
        if token not in (None, "class", "patches"):
            raise ConfigError(f"token is '{token}', it must be class or patches")
        if token == "patches" or (token is None and self.class_token is None):
            return self.mean_patch
        if self.class_token is None:
            raise ConfigError("the model has no class token: use token patches")
        return self.class_token


def layer_features(model: Any, images: Images, batch_size: int = BATCH_SIZE) -> LayerFeatures:
    """Return the features of images at every depth, before the final norm.

    They take 8 (L + 1) n D bytes: 147 MB for 3,670 images of a model with 12 blocks of width 384.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised, (n, C, H, W), or batches of them.
        batch_size: Images per pass. The result does not depend on it.

    Raises:
        ConfigError: If the model is in training mode or merges tokens, or the images do not fit.
        DataError: If there are no images.
    """
    class_tokens, patches = [], []
    for values in passes(model, images, batch_size):
        P = values.prefix_tokens
        depths = [values.layers[0].before, *(layer.after for layer in values.layers)]  # (B, T, D) each
        patches.append(torch.stack([z[:, P:].float().mean(1) for z in depths]).cpu().numpy())  # (L + 1, B, D)
        class_tokens.append(torch.stack([z[:, 0].float() for z in depths]).cpu().numpy())
    has_class_token = model.config.has_class_token
    return LayerFeatures(np.concatenate(class_tokens, 1) if has_class_token else None, np.concatenate(patches, 1))
