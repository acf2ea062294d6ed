"""The licence of a model's weights: where it is found, and how it is said. A model file's provenance keeps its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.checkpoint.adapters.releases import licence_of_file
from vitreous.checkpoint.locating import Located
from vitreous.checkpoint.model_card import AND, CARD, licence_in
from vitreous.checkpoint.model_file import ModelInfo
from vitreous.checkpoint.pretrained import LICENCES, find_hub_id
from vitreous.files.opening import read_regular

__all__ = ["describe_licence", "recorded_licence", "with_origin"]

_MAX_CARD = 1 << 20  # bytes
_MAE = re.compile(r"facebook(/|--)vit-mae-")  # also in the hub's cache; its cards say Apache-2.0, its authors CC BY-NC


def with_origin(info: ModelInfo, located: Located) -> tuple[ModelInfo, str]:
    """Record commit and licence of an opened checkpoint in its provenance; also return what to say of the licence.

    Of a local file of unknown origin nothing is said.
    """
    if located.commit is not None:
        info = replace(info, provenance={**info.provenance, "commit": located.commit})
    licence = recorded_licence(info.provenance)
    if licence is None and not located.is_vitreous:
        licence = _find_licence(located.name, located.file.parent)
        if licence is not None:
            info = replace(info, provenance={**info.provenance, "licence": licence})
    is_download = not located.is_vitreous and not Path(located.name).expanduser().exists()
    return info, describe_licence(licence) if licence is not None or is_download else ""


def _find_licence(name: str, folder: Path) -> str | None:
    """Return the licence of a downloaded or local checkpoint: that of the table, or of the model card beside it.

    The card comes last, because some cards on the hub differ from the authors' own licence.
    """
    if (row := find_hub_id(name)) is not None:
        return row.licence
    if _MAE.search(f"{name} {folder.absolute().as_posix()}"):
        return "CC-BY-NC-4.0"
    if (of_file := licence_of_file(name)) is not None:  # nothing beside such a file states one
        return of_file
    try:
        return licence_in(read_regular(folder / CARD, _MAX_CARD).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None


def recorded_licence(provenance: Mapping[str, Any]) -> str | None:
    """Return the licence that a provenance states, at the top or in its records; None if it states none.

    Several, as of a source and a teacher, are joined as SPDX does, by AND: all of them bind.
    """
    records = [provenance, *(value for value in provenance.values() if isinstance(value, Mapping))]
    stated = [record.get(name) for record in records for name in ("license", "licence")]
    found = [each for licence in stated if isinstance(licence, str) and licence for each in licence.split(AND)]
    return AND.join(dict.fromkeys(found)) or None


def describe_licence(name: str | None) -> str:
    """Say a licence, or several joined by AND, and what it means for commercial use, where that is known."""
    if name is None:
        return "not stated: ask the authors before you use or share the model"
    return "; and ".join(_describe(each) for each in name.split(AND))


def _describe(name: str) -> str:
    known = LICENCES.get(name)
    return f"{name}: {known.terms}" if known else f"{name}: read it before commercial use"
