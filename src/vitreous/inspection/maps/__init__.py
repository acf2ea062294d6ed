"""The methods that map a class score to patches. A new one is a file here and its name in ``MAPS``."""

from __future__ import annotations

from vitreous.inspection.maps.attention import RawAttention
from vitreous.inspection.maps.base import ClassMaps, MapMethod
from vitreous.inspection.maps.grad_cam import GradCam
from vitreous.inspection.maps.gradient_attention import GradientAttention
from vitreous.inspection.maps.integrated_gradients import IntegratedGradients
from vitreous.inspection.maps.legrad import LeGrad
from vitreous.inspection.maps.occlusion import Occlusion
from vitreous.inspection.maps.random_control import RandomControl
from vitreous.inspection.maps.rollout import Rollout

__all__ = ["MAPS", "ClassMaps", "MapMethod"]

MAPS: tuple[type[MapMethod], ...] = (
    GradientAttention,
    LeGrad,
    GradCam,
    IntegratedGradients,
    Occlusion,
    Rollout,
    RawAttention,
    RandomControl,
)
"""Every method of `vitreous.explain`, in the order of the report."""
