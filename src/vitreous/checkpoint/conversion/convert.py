"""Converting a checkpoint: open, map, write aside, read again, compare, and only then put it in its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from vitreous.checkpoint.adapters.common import few
from vitreous.checkpoint.conversion.placing import Destination
from vitreous.checkpoint.conversion.witness import witness
from vitreous.checkpoint.conversion.writing import adopted, export, write_files
from vitreous.checkpoint.model_file import save_model
from vitreous.checkpoint.opening import Opened, OpenOptions, open_fully
from vitreous.data.images.reading import read_picture
from vitreous.errors import CheckpointError
from vitreous.model.config import pair
from vitreous.model.vit import VisionTransformer

__all__ = ["Comparison", "Conversion", "Family", "convert"]

Family = Literal["google", "timm", "huggingface", "torchvision", "vitreous"]
BOUND = 1e-5
HYBRID_BOUND = 3e-5  # its group norms add up in another order
"""Largest difference of two logits that a conversion may make, relative to the largest logit."""


@dataclass(frozen=True)
class Comparison:
    """The largest difference of two logits, relative to the largest logit.

    Args:
        by: Who computed the outputs of what was written.
        picture: On a fixed photograph, prepared by the model's evaluation pipeline.
        noise: On noise from N(0, 1).
    """

    by: str
    picture: float
    noise: float


@dataclass(frozen=True)
class Conversion:
    """What was done.

    Args:
        files: What was written.
        reasons: What was recognised, why, and what was changed.
        notes: Constants that the family replaces by its own.
        comparisons: Of what was written with the source.
    """

    files: list[Path]
    reasons: list[str]
    notes: list[str]
    comparisons: list[Comparison]

    def to_dict(self) -> dict[str, Any]:
        """The proof as plain JSON values; each comparison has `by`, `picture` and `noise`."""
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
    """Convert a checkpoint, and prove it.

    Args:
        source: A file, a folder or a hub id of any family.
        destination: A folder, or for google, torchvision and vitreous a file.
        to: The family to write.
        options: What may be changed, dropped or added on the way.
        overwrite: Replace what lies at the destination.
        tell: Is given a line for people as soon as it is known.

    Raises:
        CheckpointError: If the source cannot be used, the family cannot express it, or what was written does not give
            the source's logits. Nothing is left at the destination then.
        UsageError: If the destination exists, is read by this conversion, or is a folder with other files in it.
        OutputError: If the destination cannot be written.
    """
    place = Destination(to, destination, source, overwrite)
    opened = open_fully(source, options or OpenOptions())
    for reason in opened.reasons:
        tell(reason)
    used, notes = adopted(opened, to)
    for note in notes:
        tell(note)
    with place.aside() as weights:
        files = _write(used, to, weights)
        comparisons = _compare(opened, used, to, weights, tell)
        return Conversion(place.install(files), opened.reasons, notes, comparisons)


def _write(opened: Opened, to: str, weights: Path) -> list[Path]:
    if to == "vitreous":
        save_model(weights, opened.model, opened.info)
        return [weights]
    return write_files(export(opened, to), to, weights)


def _compare(source: Opened, used: Opened, to: Family, weights: Path, tell: Callable[[str], None]) -> list[Comparison]:
    """Read what was written, by this package and by its own library, and compare tensors and logits."""
    again = open_fully(weights, OpenOptions(heads=used.model.config.heads, source_size=used.model.config.image_size))
    _same_tensors(used, again)
    picture, noise = _inputs(used)
    wanted = _run(used.model, picture), _run(used.model, noise)
    bound = HYBRID_BOUND if used.model.config.stem == "resnet" else BOUND
    found = [Comparison("vitreous", *_apart(wanted, (_run(again.model, picture), _run(again.model, noise))))]
    del again  # its library needs the room: twice the model, to read it and to run it
    results = [witness(to, weights, used.model.config, images) for images in (picture, noise)]
    if results[0] is not None and results[1] is not None:
        found.append(Comparison(results[0][0], *_apart(wanted, (results[0][1], results[1][1]))))
    for each in found:
        tell(f"read again by {each.by}: largest difference {each.picture:.1e} on a picture, {each.noise:.1e} on noise")
    if used.model is not source.model:
        before = _run(source.model, picture), _run(source.model, noise)
        moved = Comparison("the source's own constants", *_apart(before, wanted))
        tell(f"against {moved.by}: {moved.picture:.1e} on a picture, {moved.noise:.1e} on noise")
        found.append(moved)
    wrong = [each for each in found[: 1 + (results[0] is not None)] if not max(each.picture, each.noise) <= bound]
    if wrong:
        raise CheckpointError(
            f"what was written gives other logits, read by {wrong[0].by}: largest difference "
            f"{max(wrong[0].picture, wrong[0].noise):.1e} of the largest logit, above {bound:g}; nothing was kept"
        )
    return found


def _same_tensors(used: Opened, again: Opened) -> None:
    """Hold that every tensor came back to the last bit."""
    before, after = used.model.state_dict(), again.model.state_dict()
    differ = [name for name in before if name not in after or not torch.equal(before[name], after[name])]
    differ += [name for name in after if name not in before]
    differ += [
        name for name in used.kept if name not in again.kept or not torch.equal(used.kept[name], again.kept[name])
    ]
    if differ:
        raise CheckpointError(f"what was written does not come back the same: {few(differ)}; nothing was kept")


def _inputs(opened: Opened) -> tuple[Tensor, Tensor]:
    """A fixed photograph as the pipeline prepares it, and two pictures of noise."""
    config = opened.model.config
    photograph = opened.info.pipeline(read_picture(load_sample_image("china.jpg")))[None]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, config.in_channels, *pair(config.image_size), generator=generator)
    return photograph, noise


@torch.inference_mode()
def _run(model: VisionTransformer, images: Tensor) -> Tensor:
    output: Tensor = model(images)
    return output


def _apart(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """The largest difference of each pair, relative to the largest value of the first; infinite where shapes differ."""
    apart = []
    for x, y in zip(a, b, strict=True):
        scale = max(float(x.abs().max()), torch.finfo(torch.float32).tiny)
        apart.append(float((x - y).abs().max()) / scale if x.shape == y.shape else float("inf"))
    return apart[0], apart[1]
