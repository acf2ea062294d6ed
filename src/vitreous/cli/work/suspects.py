"""Suspicious labels for `vitreous audit --model`, found from out-of-sample probabilities.

A model may have memorised the labels it was trained on, so its own probabilities are used only for held-out images. For
all other images, logistic regression on its frozen features is fitted by cross-validation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vitreous.audit.copies import Copies
from vitreous.audit.duplicates import components
from vitreous.audit.findings import Audit, Finding
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.cli.output.terminal import progress_bar
from vitreous.cli.work.evaluating.scoring import is_trained_on, stack_results
from vitreous.data.sources.opening import fingerprint_of
from vitreous.errors import DataError, pluralize
from vitreous.evaluate.features.confident import FOLDS, cross_validated, suspects
from vitreous.files.text import visible
from vitreous.predictor import Classifier

__all__ = ["find_suspects"]

_MIN_GAIN = 0.5  # share of the pairs that the commoner answers get wrong
_MIN_AGREEMENT = 0.8  # share of labels; a classifier that agrees with fewer is probably wrong itself


def find_suspects(result: Audit, copies: Copies, classifier: Classifier, batch_size: int) -> list[Finding]:
    """Find suspicious labels, and add a note on the method to the audit."""
    usable = [n for n, image in enumerate(result.images) if image.has_label and not image.facts.reason]
    if not usable:
        raise DataError(f"label errors need images with a label, and {result.name} has none: omit --model")
    if usable and result.images[usable[0]].labels is not None:
        return _of_several(result, copies, classifier, usable, batch_size)
    sizes = Counter(result.images[n].label for n in usable)
    judged = [n for n in usable if sizes[result.images[n].label] >= FOLDS]
    if len(judged) < len(usable):
        skipped = pluralize(len(usable) - len(judged), "image")
        result.notes.append(f"label errors: {skipped} of classes with fewer than {FOLDS} are not checked")
    held_out: list[int] = []
    if _trained_on(classifier.info, result, usable):
        known = set(classifier.classes)
        unseen = [n for n in judged if result.images[n].split in ("val", "test")]
        held_out = [n for n in unseen if result.images[n].label in known]
    others = sorted(set(judged) - set(held_out))
    findings: list[Finding] = []
    if held_out:
        findings, agreement = _from_model(result, classifier, held_out, batch_size)
        result.notes.append(
            f"label errors: the model was trained on these images; the {len(held_out):,} held-out images are checked "
            f"with its own probabilities; {agreement}"
        )
    more, agreement = _from_features(result, copies, classifier, others, batch_size)
    method = f"{len(others):,} are checked by logistic regression on its frozen features, {FOLDS}-fold; {agreement}"
    caution = "; it was trained on their labels, so its features may hide memorised errors" if held_out else ""
    result.notes.append(f"label errors: {method}{caution}")
    return sorted([*findings, *more], key=lambda finding: -(finding.score or 0))


def _trained_on(info: ModelInfo, result: Audit, usable: Sequence[int]) -> bool:
    """Whether the model was trained on exactly these images."""
    rows = [result.images[n] for n in usable]
    digests = [row.facts.digest for row in rows]
    return is_trained_on(info, fingerprint_of([row.name for row in rows], [row.label for row in rows], digests))


def _agreement(probabilities: npt.NDArray[np.float64], labels: Sequence[int]) -> str:
    """Describe how many labels the classifier agrees with, with a caution if they are few."""
    share = float((probabilities.argmax(axis=1) == np.asarray(labels)).mean())
    caution = ": so few that most of the labels it suspects are probably right" if share < _MIN_AGREEMENT else ""
    return f"it agrees with {share:.1%} of the labels{caution}".replace("%", " %")


def _agreement_of_several(chances: npt.NDArray[np.float64], has: npt.NDArray[np.int64]) -> str:
    """Describe with how many pairs the classifier agrees, with a caution if nearly as many need no image.

    Args:
        chances: Probabilities of the labels, (n, K).
        has: Whether an image has a label, 0 or 1, (n, K).
    """
    share = float(((chances >= 0.5) == has).mean())
    blind = float(np.maximum(has.mean(0), 1 - has.mean(0)).mean())  # of each label's commoner answer for all images
    text = f"it agrees with {share:.1%} of the pairs of image and label"
    if share - blind < _MIN_GAIN * (1 - blind):
        text += f", and each label's commoner answer, given to all images, with {blind:.1%}"
        text += ": so few more that most of the labels it suspects are probably right"
    return text.replace("%", " %")


def _from_model(
    result: Audit, classifier: Classifier, held_out: Sequence[int], batch_size: int
) -> tuple[list[Finding], str]:
    """Check held-out images with the probabilities of the model itself."""
    rows = _rows(result, held_out, lambda images: classifier.logits_stream(images, batch_size))
    scaled = rows.astype(np.float64) / classifier.info.temperature
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    names = sorted({result.images[n].label for n in held_out})
    chosen = weights[:, [classifier.classes.index(name) for name in names]]
    labels = [names.index(result.images[n].label) for n in held_out]
    probabilities = chosen / chosen.sum(axis=1, keepdims=True)
    return _findings(result, held_out, names, probabilities, labels), _agreement(probabilities, labels)


def _from_features(
    result: Audit, copies: Copies, classifier: Classifier, positions: Sequence[int], batch_size: int
) -> tuple[list[Finding], str]:
    """Check images with classifiers fitted on the features of other images; duplicates stay in one fold."""
    names = sorted({result.images[n].label for n in positions})
    if len(names) < 2:
        raise DataError("label errors need images of at least two classes, five of each")
    labels = [names.index(result.images[n].label) for n in positions]
    probabilities = _out_of_fold(result, copies, classifier, positions, labels, batch_size=batch_size)
    return _findings(result, positions, names, probabilities, labels), _agreement(probabilities, labels)


def _of_several(
    result: Audit, copies: Copies, classifier: Classifier, positions: Sequence[int], batch_size: int
) -> list[Finding]:
    """Find images that have, or lack, a label against all appearance: each label is judged by itself.

    All are checked with classifiers fitted on the features of other images, whatever the model was trained on.
    """
    sizes, n = Counter(name for at in positions for name in result.images[at].classes), len(positions)
    names = sorted(name for name, size in sizes.items() if FOLDS <= size <= n - FOLDS)
    if not names:
        raise DataError(f"label errors need a label that {FOLDS} images have, and as many do not")
    if len(names) < len(sizes):
        left_out = pluralize(len(sizes) - len(names), "label")
        result.notes.append(f"label errors: {left_out} that fewer than {FOLDS} images have, or lack, are not checked")
    has = np.asarray([[name in result.images[at].classes for name in names] for at in positions], np.int64)
    chances = _out_of_fold(result, copies, classifier, positions, has, batch_size=batch_size)
    findings = []
    for k, name in enumerate(names):
        for suspect in suspects(np.stack([1 - chances[:, k], chances[:, k]], 1), has[:, k]):
            is_given, chance = bool(has[suspect.position, k]), chances[suspect.position, k]
            verb, looks = ("has", "seems to lack") if is_given else ("lacks", "seems to have")
            text = f'{verb} the label "{visible(name)}", which it {looks} ({chance:.1%})'
            margin = round(suspect.other - suspect.own, 6)
            findings.append(Finding("suspect", text, (positions[suspect.position],), score=margin))
    agreement = _agreement_of_several(chances, has)
    trained = "; it was trained on their labels, so its features may hide memorised errors"
    caution = trained if _trained_on(classifier.info, result, positions) else ""
    result.notes.append(
        f"label errors: {n:,} images are checked label by label by logistic regression on the model's frozen features, "
        f"{FOLDS}-fold; {agreement}{caution}"
    )
    return sorted(findings, key=lambda finding: -(finding.score or 0))


def _out_of_fold(
    result: Audit,
    copies: Copies,
    classifier: Classifier,
    positions: Sequence[int],
    labels: npt.ArrayLike,
    *,
    batch_size: int,
) -> npt.NDArray[np.float64]:
    """Return probabilities (n, K) of classifiers fitted on the features of other images; duplicates stay together."""
    rows = _rows(result, positions, lambda images: classifier.embed_stream(images, batch_size))
    group_of = {n: group[0] for group in _same_scene(result, copies) for n in group}
    with progress_bar("label errors: fit") as update:
        probabilities, _ = cross_validated(rows, labels, [group_of.get(n, n) for n in positions], progress=update)
    return probabilities


def _same_scene(result: Audit, copies: Copies) -> list[list[int]]:
    edges = [(group[0], n) for group in copies.exact for n in group[1:]]
    return components(len(result.images), [*edges, *((pair.one, pair.other) for pair in copies.near)])


def _rows(
    result: Audit, positions: Sequence[int], stream: Callable[[Iterable[Any]], Iterable[Any]]
) -> npt.NDArray[np.float32]:
    """Return a row for each image: its features or its logits."""
    images = [result.images[n] for n in positions]
    results = stream(image.path or image.pixels() for image in images)
    return stack_results("label errors: model", results, [image.name for image in images])


def _findings(
    result: Audit, positions: Sequence[int], names: Sequence[str], probabilities: Any, labels: Sequence[int]
) -> list[Finding]:
    findings = []
    for suspect in suspects(probabilities, labels):
        label, likely = visible(names[labels[suspect.position]]), visible(names[suspect.likely])
        text = f'labelled "{label}" ({suspect.own:.1%}), looks like "{likely}" ({suspect.other:.1%})'
        margin = round(suspect.other - suspect.own, 6)
        findings.append(Finding("suspect", text, (positions[suspect.position],), score=margin))
    return findings
