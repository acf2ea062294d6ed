"""The work of `vitreous doctor`: the facts of an installation, and a test of each engine that is installed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch

from vitreous.checkpoint.licence import describe_licence
from vitreous.checkpoint.shipped import LICENCE, shipped_file
from vitreous.engines.cache import cache_folder
from vitreous.engines.check import TOLERANCE, check_images
from vitreous.engines.names import EngineName
from vitreous.engines.opening import CONVERTERS, installed
from vitreous.errors import pluralize
from vitreous.machine.device import describe_machine, installed_versions, versions
from vitreous.predictor.loading import load

__all__ = ["EngineTest", "examine_engines", "facts"]

_OPTIONAL = ("openvino", "onnxruntime", "nncf", "peft", "fastapi", "pyarrow", "timm", "transformers", "cleanlab")
_SIDE = 64  # pixels of the images that are embedded


@dataclass(frozen=True)
class EngineTest:
    """The result of one engine."""

    name: str
    passed: bool
    result: str  # how well it agrees, or why it failed


def facts() -> Sequence[tuple[str, str]]:
    """Return what a bug report needs, as labels and texts."""
    found = versions()
    machine = describe_machine()
    memory = "" if machine.memory_gib is None else f", {machine.memory_gib:g} GiB"
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    optional = [f"{name} {version}" for name, version in installed_versions(_OPTIONAL).items()]
    file = shipped_file()
    return (
        ("vitreous", f"{found.pop('vitreous')}, Python {found.pop('python')}, {found.pop('platform')}"),
        ("packages", ", ".join(f"{name} {version}" for name, version in found.items())),
        ("optional", ", ".join(optional) or "none"),
        ("CPU", f"{machine.cpu}, {pluralize(machine.cores, 'core')}{memory}, bf16 {'yes' if machine.bf16 else 'no'}"),
        ("GPU", ", ".join(gpus) or machine.gpu or "none that PyTorch can use"),
        ("cache", _cache()),
        ("backbone", f"{file}, {file.stat().st_size / 1e6:.1f} MB, {describe_licence(LICENCE)}"),
    )


def _cache() -> str:
    """Return where converted graphs are kept, and the space that is free there."""
    try:
        cache = cache_folder()
    except OSError as error:  # there is no home folder
        return f"none: {error.strerror}"
    home = next((folder for folder in (cache, *cache.parents) if folder.is_dir()), cache)
    return f"{cache}, {shutil.disk_usage(home).free / 2**30:,.1f} GiB free"


def examine_engines() -> list[EngineTest]:
    """Embed check images with the shipped backbone, which verifies its checksum, and compare engines with PyTorch."""
    images = [image.permute(1, 2, 0).numpy() for image in check_images(3, (_SIDE, _SIDE))]
    tests: list[EngineTest] = []
    reference: np.ndarray | None = None
    names = [name for name in get_args(EngineName) if name == "torch" or name in CONVERTERS]
    for name in names:
        if name != "torch" and not installed(name):
            tests.append(EngineTest(name, True, "not installed"))
            continue
        try:
            vectors = load(shipped_file(), device="cpu", engine=name).embed(images)
        except Exception as error:  # the examination goes on, and reports it
            tests.append(EngineTest(name, False, f"{type(error).__name__}: {error}"))
            continue
        reference = vectors if reference is None else reference
        scale = np.abs(reference).max(axis=1)
        difference = float((np.abs(vectors - reference).max(axis=1) / scale).max())
        passed = bool(np.isfinite(vectors).all()) and difference <= TOLERANCE["float32"].features
        tests.append(EngineTest(name, passed, f"{len(images)} images, differs from PyTorch by {difference:.1e}"))
    return tests
