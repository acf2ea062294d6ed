"""What `vitreous audit --model` adds: labels that look wrong, by probabilities that are out of sample, and how so.

A model knows the labels it was trained on by heart. So its own probabilities count only for what its training held out;
for all other pictures a classifier is fitted on its frozen features, by cross-validation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.audit.copies import Copies
from vitreous.audit.duplicates import components
from vitreous.audit.findings import Audit, Finding
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.cli.output.terminal import bar
from vitreous.data.sources.listing import many
from vitreous.data.sources.opening import fingerprint_of
from vitreous.errors import DataError
from vitreous.evaluate.confident import FOLDS, cross_validated, suspects
from vitreous.files.text import visible
from vitreous.predictor import Classifier, Failure

__all__ = ["suspected"]

_AGREES = 0.8  # share of labels below which a judge's doubts are more about itself


def suspected(result: Audit, copies: Copies, classifier: Classifier, batch_size: int) -> list[Finding]:
    """Find the labels that look wrong; how they were judged is added to the audit's notes.

    Raises:
        DataError: If there are too few pictures or classes.
        MissingExtraError: If cleanlab is not installed.
    """
    usable = [n for n, picture in enumerate(result.pictures) if not picture.look.reason]
    sizes = Counter(result.pictures[n].label for n in usable)
    judged = [n for n in usable if sizes[result.pictures[n].label] >= FOLDS]
    if len(judged) < len(usable):
        short = many(len(usable) - len(judged), "picture")
        result.notes.append(f"label errors: {short} of classes with under {FOLDS} are not judged")
    held: list[int] = []
    if _trained_on(classifier.info, result, usable):
        known = set(classifier.classes)
        held = [n for n in judged if result.pictures[n].split in ("val", "test") and result.pictures[n].label in known]
    rest = sorted(set(judged) - set(held))
    found: list[Finding] = []
    if held:
        judgement, agreement = _by_the_model(result, classifier, held, batch_size)
        found += judgement
        result.notes.append(
            f"label errors: the model was trained on these pictures; the {len(held):,} that its training held out are "
            f"judged by its own probabilities; {agreement}"
        )
    judgement, agreement = _by_its_features(result, copies, classifier, rest, batch_size)
    how = f"{len(rest):,} are judged by logistic regression on its frozen features, {FOLDS}-fold; {agreement}"
    caution = "; it was trained on their labels, so its features may hide errors that it learned by heart"
    result.notes.append(f"label errors: {how}{caution if held else ''}")
    return sorted([*found, *judgement], key=lambda one: -(one.score or 0))


def _trained_on(info: ModelInfo, result: Audit, usable: Sequence[int]) -> bool:
    """Whether the model was trained on exactly these pictures."""
    data = info.provenance.get("data")
    rows = [result.pictures[n] for n in usable]
    own = fingerprint_of([one.name for one in rows], [one.label for one in rows], [one.look.digest for one in rows])
    return isinstance(data, Mapping) and data.get("fingerprint") == own


def _agreement(probabilities: npt.NDArray[np.float64], labels: Sequence[int]) -> str:
    """How often the judge says what the labels say, and what to think of it where that is seldom."""
    share = float((probabilities.argmax(axis=1) == np.asarray(labels)).mean())
    caution = ": so few that most of the labels it suspects are probably right" if share < _AGREES else ""
    return f"it agrees with {share:.1%} of the labels{caution}".replace("%", " %")


def _by_the_model(
    result: Audit, classifier: Classifier, held: Sequence[int], batch_size: int
) -> tuple[list[Finding], str]:
    """Judge pictures that the model's training held out by what it says of them."""
    rows = _rows(result, held, lambda pictures: classifier.logits_stream(pictures, batch_size))
    scaled = rows.astype(np.float64) / classifier.info.temperature
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    names = sorted({result.pictures[n].label for n in held})
    chosen = weights[:, [classifier.classes.index(name) for name in names]]
    labels = [names.index(result.pictures[n].label) for n in held]
    probabilities = chosen / chosen.sum(axis=1, keepdims=True)
    return _findings(result, held, names, probabilities, labels), _agreement(probabilities, labels)


def _by_its_features(
    result: Audit, copies: Copies, classifier: Classifier, rest: Sequence[int], batch_size: int
) -> tuple[list[Finding], str]:
    """Judge pictures by classifiers fitted on the features of others."""
    names = sorted({result.pictures[n].label for n in rest})
    if len(names) < 2:
        raise DataError("label errors need pictures of at least two classes, five of each")
    rows = _rows(result, rest, lambda pictures: classifier.embed_stream(pictures, batch_size))
    group_of = {n: group[0] for group in _same_scene(result, copies) for n in group}
    labels = [names.index(result.pictures[n].label) for n in rest]
    with bar("label errors: fit") as at:
        probabilities, _ = cross_validated(rows, labels, [group_of.get(n, n) for n in rest], progress=at)
    return _findings(result, rest, names, probabilities, labels), _agreement(probabilities, labels)


def _same_scene(result: Audit, copies: Copies) -> list[list[int]]:
    edges = [(group[0], n) for group in copies.exact for n in group[1:]]
    return components(len(result.pictures), [*edges, *((pair.one, pair.other) for pair in copies.near)])


def _rows(
    result: Audit, positions: Sequence[int], stream: Callable[[Iterable[Any]], Iterable[Any]]
) -> npt.NDArray[np.float32]:
    """A row for each picture: its features or its logits."""
    pictures = (result.pictures[n].path or result.pictures[n].pixels() for n in positions)
    rows = []
    with bar("label errors: model") as at:
        for done, row in enumerate(stream(pictures)):
            if isinstance(row, Failure):
                name = visible(result.pictures[positions[done]].name)
                raise DataError(f"{name}: {row.reason}; it could be read a moment ago")
            rows.append(row if isinstance(row, np.ndarray) else row.vector)
            at(done + 1, len(positions))
    return np.stack(rows)


def _findings(
    result: Audit, positions: Sequence[int], names: Sequence[str], probabilities: Any, labels: Sequence[int]
) -> list[Finding]:
    found = []
    for one in suspects(probabilities, labels):
        label, likely = visible(names[labels[one.position]]), visible(names[one.likely])
        text = f'labelled "{label}" ({one.own:.1%}), looks like "{likely}" ({one.other:.1%})'
        found.append(Finding("suspect", text, (positions[one.position],), score=round(one.other - one.own, 6)))
    return found
