"""A model that stops at its tokens, so that engines, which return features, return every token.

Shapes: B images, T tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from vitreous.accelerate.model import FastVisionTransformer, build
from vitreous.model.config import ViTConfig
from vitreous.model.heads import LinearHead
from vitreous.model.mlp import MlpConfig
from vitreous.model.part import Shape
from vitreous.model.pools import Mean

__all__ = ["tokens_alone", "with_weights_of"]


@dataclass(frozen=True)
class _EveryToken(Mean):
    """No pooling: every token is a feature. Only engines see it, which then return tokens (B, T, D).

    It is no kind that users choose, but a configuration accepts only those and their subclasses.
    """

    kind: ClassVar[str] = "every-token"

    def build(self, shape: Shape, mlp: MlpConfig) -> nn.Module:
        return nn.Identity()


def tokens_alone(model: FastVisionTransformer) -> FastVisionTransformer:
    """Return a copy whose features are all tokens after the last norm, (B, T, D), and that has no head.

    ``model.read_out`` and ``model.head`` go on from there.
    """
    config = replace(model.config, num_classes=0, class_token=model.config.has_class_token, dropout=0.0)
    config = replace(config, pool=_EveryToken(), head=LinearHead())
    return with_weights_of(model, config if config.final_norm == "tokens" else replace(config, final_norm="none"))


def with_weights_of(model: FastVisionTransformer, config: ViTConfig) -> FastVisionTransformer:
    """Return a model of another configuration with the weights of a model, which may have more."""
    copied = build(config)
    names = copied.state_dict().keys()
    copied.load_state_dict({name: value for name, value in model.state_dict().items() if name in names})
    return copied
