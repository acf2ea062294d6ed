"""The model card, README.md: where models on the hub state their licence, and where converted folders keep it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml  # type: ignore[import-untyped,unused-ignore]

from vitreous.checkpoint.pretrained import LICENCES

__all__ = ["AND", "CARD", "card_of", "is_written_here", "licence_in"]

CARD = "README.md"
"""Its file name."""

AND = " AND "
"""Joins licences that all bind, as SPDX does."""

_UNNAMED = ("other", "unknown")  # what a card says of a licence that has a name of its own
_NAMES = {name.lower(): name for name in LICENCES} | {"dinov3-license": "DINOv3"}  # as the hub's cards write them
_OF_THE_HUB = (
    "Apache-2.0",
    "MIT",
    "CC-BY-NC-4.0",
)  # those of LICENCES for which the hub has identifiers, in lower case
_MOST = 100  # characters of a name


def card_of(licence: str) -> str:
    """Return the card of converted weights, with their licence as the hub reads it."""
    licence = _known(licence)
    is_known = licence in _OF_THE_HUB
    stated = {"license": licence.lower()} if is_known else {"license": "other", "license_name": licence}
    head = yaml.safe_dump(stated, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{head}---\n\nWritten by `vitreous convert`. The licence is that of the weights.\n"


def licence_in(text: str) -> str | None:
    """Return the licence that a card states; None if it states none."""
    try:
        match = re.match(r"\ufeff?---\r?\n(.*?)\r?\n---", text, re.DOTALL)
        card = yaml.safe_load(match[1]) if match else None
    except (ValueError, yaml.YAMLError, RecursionError):
        return None
    if not isinstance(card, Mapping):
        return None
    stated = [card.get("license"), card.get("license_name")]
    found = next((x for x in stated if isinstance(x, str) and x and x.lower() not in _UNNAMED), None)
    return None if found is None else _known(found)


def _known(licence: str) -> str:
    """Return a licence, or several joined by AND, under the names that this package has for them."""
    return AND.join(_NAMES.get(name.lower(), name[:_MOST]) for name in licence.split(AND)[:_MOST])


def is_written_here(text: str) -> bool:
    """Whether a card is what :func:`card_of` writes, so that nothing of a person's is lost with it."""
    licence = licence_in(text)
    return licence is not None and text == card_of(licence)
