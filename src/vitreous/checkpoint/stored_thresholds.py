"""The thresholds in a model file's metadata: optional entries, whose values are checked strictly when read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.errors import CheckpointError, ConfigError
from vitreous.evaluate.multilabel.rule import LabelRule
from vitreous.evaluate.trust.abstention import AbstentionRule
from vitreous.evaluate.trust.conformal import ConformalSets

if TYPE_CHECKING:
    from vitreous.checkpoint.model_info import ModelInfo

__all__ = ["THRESHOLDS", "parse_thresholds", "thresholds_to_dict"]

THRESHOLDS: dict[str, type[AbstentionRule] | type[ConformalSets] | type[LabelRule]] = {
    "abstention": AbstentionRule,
    "conformal": ConformalSets,
    "multilabel": LabelRule,
}
"""Class of each entry. The names are also those of the fields of `ModelInfo`."""


def thresholds_to_dict(info: ModelInfo) -> dict[str, Any]:
    """Return the entries for the thresholds that there are."""
    rules = {name: getattr(info, name) for name in THRESHOLDS}
    return {name: rule.to_dict() for name, rule in rules.items() if rule is not None}


def parse_thresholds(file: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the thresholds that a document has, by entry.

    Raises:
        CheckpointError: If a name is unknown or missing, or a value has the wrong type, is not finite or out of range.
    """
    rules = {}
    for name in (name for name in THRESHOLDS if name in document):
        try:
            rules[name] = THRESHOLDS[name].from_dict(document[name])
        except (ConfigError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(f"'{file}': {name} in its metadata is damaged: {error}") from error
    return rules
