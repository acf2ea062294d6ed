"""Resolves what a fine-tuning starts from before it is opened: a short name of the table, or the choice of a row."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import yaml  # type: ignore[import-untyped,unused-ignore]

from vitreous.checkpoint.hub import answers, cached_commit
from vitreous.checkpoint.pretrained import ROWS, Row, find_row
from vitreous.checkpoint.shipped import IMAGE_SIZE, SHIPPED
from vitreous.data.sources.opening import ImageData
from vitreous.files.locating import expand_home
from vitreous.machine.free_memory import memory_left
from vitreous.machine.speed import training_rate
from vitreous.model.config import Size2d
from vitreous.runs.folder import changed_settings
from vitreous.runs.folder_content import read_report
from vitreous.train.config import AUTO, RunConfig, parse_duration
from vitreous.train.console import Display, duration
from vitreous.train.finetune.choice import Situation, choose, is_eligible
from vitreous.train.recipe_file import recipe_text

__all__ = ["choice_to_resume", "choose_start", "expand_short_name", "free_memory", "situation_of"]

_FEWEST_EPOCHS = 5  # in a budget; fewer passes leave a new head behind the frozen features' probe
_OPEN = ("model.", "preprocess.", "distil.", "tune.source ", "tune.probe ", "select ")
"""Settings that the source, the teacher or the data decide, as the comparison of two recipes names them."""

Resolved = tuple[RunConfig, Collection[str]]


def expand_short_name(config: RunConfig, explicit: Collection[str]) -> Resolved:
    """Replace a short name by its full id, and use the image size to fine-tune that model at unless the user set one.

    `shipped` stays as it is.
    """
    name = config.tune.source or ""
    row = find_row(name)
    if (name != SHIPPED and row is None) or Path(name).exists():
        return config, explicit
    if row is None:
        return _at_size(IMAGE_SIZE, config, explicit)
    return _start_from(row, row.image_size, config, explicit)


def choose_start(
    config: RunConfig,
    explicit: Collection[str],
    data: ImageData,
    device: torch.device,
    *,
    precision: str,
    view: Display,
) -> Resolved:
    """Choose a row for this machine and these images, and say which and why before anything is downloaded.

    If the hub does not answer, the rows in its cache come first.
    """
    offline = not answers()
    cached = [row for row in ROWS if is_eligible(row) and cached_commit(row.hub_id, row.revision)]
    situation = situation_of(config, data, training_rate(device, precision), free_memory(device), explicit)
    choice = choose(cached if offline and cached else ROWS, situation, cached)
    row = choice.row
    size = "in the cache" if row in cached else f"{row.download()} to download"
    view.line("start", f"{row.name}: {row.full_id}, {row.parameters / 1e6:.3g} M parameters, {row.licence}, {size}")
    what = [*(() if row in cached else ("download",)), "features" if config.tune.mode == AUTO else "training"]
    takes = f"{' and '.join(what)} {'takes' if what == ['training'] else 'take'}"
    view.line("", f"{choice.reason}; {takes} about {duration(choice.seconds)}. Another: --from NAME")
    if offline and not cached:
        view.line("", "the hub is out of reach: --from shipped is the small backbone in this package")
    return _start_from(row, choice.image_size, config, explicit)


def choice_to_resume(config: RunConfig, explicit: Collection[str]) -> Resolved:
    """Return the choice of the run to resume: of the one in `config.out`, or else of one on the same images.

    A recipe does not say whether its model was chosen or named. Runs with the settings of this command therefore come
    first, then runs that are not finished, then the newest. Without any, the choice stays open.
    """
    folders = [expand_home(config.out)] if config.out is not None else list(Path("runs").glob("*"))
    begun = [found for folder in folders if (found := _read_start(folder, config)) is not None]
    if not begun:
        return config, explicit
    latest = max(begun, key=lambda each: each.rank)
    return _at_size(latest.image_size, replace(config, tune=replace(config.tune, source=latest.source)), explicit)


class _Start(NamedTuple):
    """What a run began from; `rank` is higher for one that is resumed before others."""

    rank: tuple[bool, bool, float]
    source: str
    image_size: Size2d


def _read_start(folder: Path, config: RunConfig) -> _Start | None:
    """Return what a run on the images of `config` began from; None if a folder has none that began from a row."""
    file = folder / "recipe.yaml"
    try:
        written, text = file.stat().st_mtime, file.read_text(encoding="utf-8")
        stored = yaml.safe_load(text)
        source, size, data = stored["tune"]["source"], stored["model"]["image_size"], stored["data"]["source"]
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError, RecursionError):
        return None
    if data not in (config.data.source, os.path.abspath(os.path.expanduser(config.data.source))):
        return None
    if not isinstance(source, str) or all(row.full_id != source for row in ROWS):
        return None
    has_settings = all(line.startswith(_OPEN) for line in changed_settings(text, recipe_text(config)))
    rank = has_settings, read_report(folder) is None, written
    return _Start(rank, source, tuple(size) if isinstance(size, list) else size)


def situation_of(
    config: RunConfig, data: ImageData, rate: float, memory: int | None, explicit: Collection[str] = ()
) -> Situation:
    """Return what the choice depends on; of the sizes of images and patches, those that the user set."""
    images = len(data.splits["train"])
    budget = parse_duration(config.budget) if config.budget is not None else None
    if config.tune.mode == AUTO:
        seen = images
    elif budget is not None:
        seen = _FEWEST_EPOCHS * images
    else:
        seen = config.epochs * images if config.steps is None else config.steps * config.batch_size
    sizes = [getattr(config.model, name) if name in explicit else None for name in ("image_size", "patch_size")]
    return Situation(rate, memory, budget, seen, max(data.median_size), config.tune.mode, *sizes)


def _start_from(row: Row, image_size: Size2d, config: RunConfig, explicit: Collection[str]) -> Resolved:
    return _at_size(image_size, replace(config, tune=replace(config.tune, source=row.full_id)), explicit)


def _at_size(image_size: Size2d, config: RunConfig, explicit: Collection[str]) -> Resolved:
    if "image_size" in explicit:
        return config, explicit
    return replace(config, model=replace(config.model, image_size=image_size)), {*explicit, "image_size"}


def free_memory(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if it is not known."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else memory_left()
