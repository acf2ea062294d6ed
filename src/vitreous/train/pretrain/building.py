"""Builds the objective of a method, from a configuration or from a stored one."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Mapping
from typing import Any, cast

from vitreous.accelerate.model import FastVisionTransformer
from vitreous.data.preprocess import EvalPipeline
from vitreous.train.pretrain import METHODS
from vitreous.train.pretrain.config import PretrainConfig
from vitreous.train.pretrain.objectives.base import Objective
from vitreous.train.pretrain.objectives.views import MultiView

__all__ = ["build_objective", "restore_objective"]


def build_objective(config: PretrainConfig, backbone: FastVisionTransformer, pipeline: EvalPipeline) -> Objective:
    """Build the objective of the configured method around a backbone."""
    return _build(config.method, config, backbone, pipeline)


def restore_objective(stored: Mapping[str, Any], backbone: FastVisionTransformer, pipeline: EvalPipeline) -> Objective:
    """Build an objective from the fields that only a pretraining run has, as plain values, which may be untrusted."""
    default = PretrainConfig()
    groups = {name: value for name, value in stored.items() if isinstance(value, dict)}
    restored = {name: dataclasses.replace(getattr(default, name), **value) for name, value in groups.items()}
    return _build(stored["method"], dataclasses.replace(default, **restored), backbone, pipeline)


def _build(method: str, config: PretrainConfig, backbone: FastVisionTransformer, pipeline: EvalPipeline) -> Objective:
    kind = pkgutil.resolve_name(METHODS[method])
    views = (config.views,) if issubclass(kind, MultiView) else ()
    return cast(Objective, kind(backbone, pipeline, getattr(config, method), *views))
