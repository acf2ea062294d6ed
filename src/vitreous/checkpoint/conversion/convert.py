"""Converts a checkpoint to another family: open, convert, write to a temporary folder, read back, compare, install."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from vitreous.checkpoint.adapters.common import DECODER, has_decoder, join_first
from vitreous.checkpoint.conversion.destination import Destination
from vitreous.checkpoint.conversion.witness import reference_outputs
from vitreous.checkpoint.conversion.writing import adopted, export, write_files
from vitreous.checkpoint.licence import recorded_licence
from vitreous.checkpoint.model_card import CARD, card_of
from vitreous.checkpoint.model_file import save_model
from vitreous.checkpoint.opening import (
    THRESHOLDS_OMITTED,
    OpenedCheckpoint,
    OpenOptions,
    open_with_details,
)
from vitreous.data.images.reading import read_image
from vitreous.errors import CheckpointError
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.model.config import pair
from vitreous.model.vit import VisionTransformer

__all__ = ["Comparison", "Conversion", "Family", "convert"]

Family = Literal["google", "timm", "huggingface", "torchvision", "facebookresearch", "vitreous"]
"""The families that `vitreous convert --to` writes."""
BOUND = 1e-5
HYBRID_BOUND = 3e-5  # for a ResNet stem, whose group norms sum in another order
"""Largest difference of two logits that a conversion may cause, relative to the largest logit."""
_RULE_OMITTED = "thresholds and calibration of the labels are left out: transformers takes the sigmoid of each logit"
_TEMPERATURE_OMITTED = "the format has no place for the fitted temperature: it is left out"


@dataclass(frozen=True)
class Comparison:
    """The largest differences of two models' logits, relative to the largest logit."""

    by: str  # program that computed the second model's logits
    image: float  # on a fixed photograph, prepared by the model's evaluation pipeline
    noise: float  # on noise from N(0, 1)


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion."""

    files: list[Path]
    reasons: list[str]  # what was recognised or assumed in the source and why, and what was changed
    notes: list[str]  # constants of the model that the family fixes at other values, calibration that is left out
    comparisons: list[Comparison]  # of the written model with the source

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; each comparison has `by`, `image` and `noise`."""
        return {**asdict(self), "files": [str(file) for file in self.files]}


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    to: Family,
    options: OpenOptions | None = None,
    *,
    overwrite: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Conversion:
    """Convert a checkpoint (file, folder or hub id) to another family's format and verify the result.

    The destination is a folder; for google, torchvision, facebookresearch and vitreous also a file. An error leaves it
    untouched. A folder of another family has the licence, if it is known, in its model card. `tell` gets each line for
    the user as soon as it is known.
    """
    target = Destination(to, destination, source, overwrite)
    opened = open_with_details(source, options or OpenOptions())
    if to not in ("vitreous", "huggingface"):
        opened.info.require_one_class(f"--to {to}")
    for reason in opened.reasons:
        tell(reason)
    used, notes = adopted(opened, to)
    written = None if to == "vitreous" else export(used, to)  # refuses what the family cannot express, before the notes
    rule = opened.info.multilabel
    if to != "vitreous" and rule is not None and rule != LabelRule.plain(rule.labels):
        notes = [*notes, _RULE_OMITTED]
    if to != "vitreous" and opened.info.temperature != 1:
        notes = [*notes, _TEMPERATURE_OMITTED]
    if to != "vitreous" and (opened.info.abstention or opened.info.conformal):
        notes = [*notes, THRESHOLDS_OMITTED]
    for note in notes:
        tell(note)
    with target.temporary() as weights:
        if written is None:
            decoder = {name: tensor for name, tensor in used.kept.items() if name.startswith(DECODER)}
            save_model(weights, used.model, used.info, kept=decoder)
            files = [weights]
        else:
            files = write_files(written, weights)
            del written  # frees memory for the comparison
            if target.is_folder and (licence := recorded_licence(used.info.provenance)) is not None:
                files.append(weights.with_name(CARD))
                files[-1].write_text(card_of(licence), encoding="utf-8")
        comparisons = _compare(opened, used, to, weights, tell)
        return Conversion(target.install(files), opened.reasons, notes, comparisons)


def _compare(
    source: OpenedCheckpoint, used: OpenedCheckpoint, to: Family, weights: Path, tell: Callable[[str], None]
) -> list[Comparison]:
    """Read the written files back, with this package and the family's library, and compare tensors and logits.

    `used` is the source with the constants that the family fixes.
    """
    again = open_with_details(
        weights,
        OpenOptions(
            heads=used.model.config.heads,
            source_size=used.model.config.image_size,
            keep=("decoder",) if to != "vitreous" and has_decoder(used.kept) else (),
        ),
    )
    _check_tensors(used, again)
    inputs = _inputs(used)
    expected = _logits(used.model, inputs)
    bound = HYBRID_BOUND if used.model.config.stem.kind == "resnet" else BOUND
    comparisons = [Comparison("vitreous", *_differences(expected, _logits(again.model, inputs)))]
    del again  # frees memory for the library, which needs twice the model to read and run it
    results = [reference_outputs(to, weights, used.model.config, images) for images in inputs]
    outputs = [result[1] for result in results if result is not None]
    if results[0] is not None:
        comparisons.append(Comparison(results[0][0], *_differences(expected, outputs)))
    for each in comparisons:
        tell(f"read back by {each.by}: largest difference {each.image:.1e} on an image, {each.noise:.1e} on noise")
    wrong = [each for each in comparisons if not max(each.image, each.noise) <= bound]
    if used.model is not source.model:
        change = Comparison("the source's own constants", *_differences(_logits(source.model, inputs), expected))
        tell(f"against {change.by}: {change.image:.1e} on an image, {change.noise:.1e} on noise")
        comparisons.append(change)
    if wrong:
        raise CheckpointError(
            f"the written files give other logits, read by {wrong[0].by}: largest difference "
            f"{max(wrong[0].image, wrong[0].noise):.1e} of the largest logit, above {bound:g}; nothing was kept"
        )
    return comparisons


def _check_tensors(used: OpenedCheckpoint, again: OpenedCheckpoint) -> None:
    """Check that every tensor was read back bit for bit."""
    before, after = used.model.state_dict(), again.model.state_dict()
    differ = [name for name in before if name not in after or not torch.equal(before[name], after[name])]
    differ += [  # some families have one more dimension
        name
        for name, tensor in used.kept.items()
        if name not in again.kept or not torch.equal(tensor.flatten(), again.kept[name].flatten())
    ]
    differ += sorted(after.keys() - before.keys())
    if differ:
        raise CheckpointError(f"the written files do not read back the same: {join_first(differ)}; nothing was kept")


def _inputs(opened: OpenedCheckpoint) -> tuple[Tensor, Tensor]:
    """Return a photograph as the pipeline prepares it, 1 x C x H x W, and two images of noise, 2 x C x H x W."""
    config = opened.model.config
    photograph = opened.info.pipeline(read_image(load_sample_image("china.jpg")))[None]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, config.in_channels, *pair(config.image_size), generator=generator)
    return photograph, noise


@torch.inference_mode()
def _logits(model: VisionTransformer, batches: Iterable[Tensor]) -> list[Tensor]:
    return [model(images) for images in batches]


def _differences(expected: list[Tensor], outputs: list[Tensor]) -> Iterator[float]:
    """Yield the largest difference of each pair relative to the largest expected value; infinity if shapes differ."""
    for x, y in zip(expected, outputs, strict=True):
        scale = max(float(x.abs().max()), torch.finfo(torch.float32).tiny)
        yield float((x - y).abs().max()) / scale if x.shape == y.shape else float("inf")
