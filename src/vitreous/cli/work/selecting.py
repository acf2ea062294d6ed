"""The steps of `vitreous select`: which images may be chosen, what a model makes of them, and the files of a choice."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from vitreous.checkpoint.model_info import ModelInfo
from vitreous.cli.options.inputs import expand
from vitreous.cli.output.terminal import narrate, progress_bar
from vitreous.data.config import DataConfig
from vitreous.data.images.content import content_hash
from vitreous.data.images.headers import UnreadableError
from vitreous.data.images.reading import open_image_file, read_image
from vitreous.data.shards.listing import find_shards
from vitreous.data.sources.listing import UNLABELLED, Entry, Listing, first_ten
from vitreous.data.sources.opening import list_source
from vitreous.data.sources.urls import is_store
from vitreous.errors import ConfigError, DataError, UsageError, pluralize
from vitreous.evaluate.features.selection import Choice, by_coverage, by_margin, by_thresholds, by_typicality
from vitreous.files.locating import is_below
from vitreous.files.text import csv_cell, csv_line, json_text, visible
from vitreous.files.writing import Outputs
from vitreous.predictions import Failure
from vitreous.predictor import Classifier
from vitreous.report.contact_sheet import MOST_SHOWN, save_contact_sheet

__all__ = ["Pool", "Proposal", "check_below", "choose", "find_pool", "label_studio_tasks", "write_files"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Pool:
    """The images that may be chosen, and those that have a label."""

    candidates: list[str]
    labelled: list[str]
    several: bool = False  # whether an image may have several labels, in DATA or in --labelled


@dataclass(frozen=True)
class Proposal:
    """An image to label."""

    path: str
    score: float
    rank: int  # from 1


def find_pool(source: str, labelled: str | None, count: int) -> Pool:
    """List the images of a folder or manifest without those that have a label, there or in ``labelled``.

    Images whose paths a table cannot hold are left out, with a note, as are copies of labelled images and of others.

    Where an image may have several labels, an empty list counts as no label in the source. In ``labelled`` it says that
    the image has none of the labels, as in training.

    Raises:
        UsageError: If a source has shards, whose images are no files that a table could name.
        DataError: If fewer than ``count`` are left.
    """
    _refuse_shards(source, "DATA")
    several = False
    if Path(source).is_dir():
        candidates, known = [str(path) for path in expand([source])], []
    else:
        entries, several = _entries(source, "DATA")
        candidates = [str(entry.path) for entry in entries if not _has_label(entry)]
        known = [str(entry.path) for entry in entries if _has_label(entry)]
    if labelled is not None:
        _refuse_shards(labelled, "--labelled")
        more, also = _entries(labelled, "--labelled")
        known += [str(entry.path) for entry in more if entry.labels is not None or _has_label(entry)]
        several |= also
    done = {os.path.realpath(path) for path in known}
    candidates = [path for path in dict.fromkeys(candidates) if os.path.realpath(path) not in done]
    candidates = _without_copies(_without_odd(candidates), known)
    _refuse_too_few(candidates, count)
    return Pool(candidates, list({os.path.realpath(path): path for path in known}.values()), several)


def _without_odd(candidates: list[str]) -> list[str]:
    """Return the images whose paths a table in the current folder can hold, and name the others in a note."""
    kept = [path for path in candidates if _cell(path, Path()) is not None]
    odd = sorted({*candidates} - {*kept})
    if odd:
        narrate(f"{pluralize(len(odd), 'image')} left out: {_no_cell(odd)}")
    return kept


def _without_copies(candidates: list[str], known: Sequence[str]) -> list[str]:
    """Return the images that are no copy, byte for byte, of a labelled image or an earlier one; note the others.

    Only files of equal size are read. Those that cannot be are kept, and reported when a model reads them.
    """
    sizes = {path: _size(path) for path in (*known, *candidates)}
    shared = {size for size, count in Counter(sizes.values()).items() if size and count > 1}
    seen: set[str] = set()
    kept: list[str] = []
    copies: list[str] = []
    for n, path in enumerate((*known, *candidates)):
        content = _digest(path) if sizes[path] in shared else None
        if n >= len(known):
            (copies if content in seen else kept).append(path)
        if content is not None:
            seen.add(content)
    if copies:
        shown = first_ten([visible(path) for path in copies])
        narrate(
            f"{pluralize(len(copies), 'image')} left out as byte-for-byte copies of labelled or other ones: {shown}"
        )
    return kept


def _size(path: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        return os.stat(path).st_size
    return 0


def _digest(path: str) -> str | None:
    with contextlib.suppress(UnreadableError), open_image_file(path) as content:
        return content_hash(content.data)
    return None


def _refuse_shards(source: str, name: str) -> None:
    if is_store(source) or find_shards(Path(source)) is not None:
        raise UsageError(f"{name} is '{source}', which has shards: give the folder of images that they were made from")


def _has_label(entry: Entry) -> bool:
    return entry.label != UNLABELLED and entry.labels != ()


def _entries(source: str, name: str) -> tuple[list[Entry], bool]:
    """Return the images of a source, and whether one may have several labels."""
    listed = list_source(DataConfig(source=source), needs_labels=False, reads_sets=True)
    if not isinstance(listed, Listing):
        raise UsageError(f"{name} is '{source}', it must be a folder of images, or a .csv or .parquet manifest")
    for note in listed.notes:
        narrate(visible(note, None))
    is_list = listed.classes == ()  # of a column of lists that are all missing
    return list(listed.entries), is_list or any(entry.labels is not None for entry in listed.entries)


def choose(
    classifier: Classifier, pool: Pool, method: str, count: int, batch_size: int
) -> tuple[list[Proposal], list[Failure]]:
    """Choose so many candidates by a method of the command; also return the images that could not be read.

    Raises:
        ConfigError: If the method needs classes that the model does not have.
        DataError: If there are fewer readable candidates.
    """
    failures: list[Failure] = []
    if method == "uncertainty" and len(classifier.classes) < 2 and classifier.info.multilabel is None:
        has = "one class" if classifier.classes else "no head"
        raise ConfigError(f"the model has {has}, so that it has no margin: use --method typicality or core-set")
    shown = method != "uncertainty"
    rows, paths = _computed(classifier, pool.candidates, batch_size, failures, features=shown)
    _refuse_too_few(paths, count, "readable ")
    if not shown:
        found = _by_uncertainty(classifier.info, rows, count)
    else:
        known = _computed(classifier, pool.labelled, batch_size, failures, features=True)[0]
        found = (by_typicality if method == "typicality" else by_coverage)(rows, known, count)
    return [Proposal(paths[n], score, rank) for rank, (n, score) in enumerate(found, start=1)], failures


def _by_uncertainty(info: ModelInfo, logits: Floats, count: int) -> Choice:
    """Choose among images with these logits (n, K), by the margins of their calibrated probabilities."""
    probabilities = info.probabilities(torch.from_numpy(logits).double()).float().numpy()
    if info.multilabel is None:
        return by_margin(probabilities, count)
    return by_thresholds(probabilities, np.asarray(info.multilabel.thresholds, np.float32), count)


def _refuse_too_few(paths: Sequence[str], count: int, kind: str = "") -> None:
    if len(paths) < count:
        raise DataError(
            f"--count is {count:,}, but only {pluralize(len(paths), f'{kind}image')} without a label can be chosen: "
            "give a smaller --count, or more images"
        )


def _computed(
    classifier: Classifier, paths: Sequence[str], batch_size: int, failures: list[Failure], *, features: bool
) -> tuple[Floats, list[str]]:
    """Return features (n, F) or logits (n, K) of the readable images, and their paths; add the others to failures."""
    rows: list[Floats] = []
    readable: list[str] = []
    stream: Iterator[Any] = (classifier.embed_stream if features else classifier.logits_stream)(paths, batch_size)
    with progress_bar("select") as update:
        for done, (path, result) in enumerate(zip(paths, stream, strict=True), start=1):
            update(done, len(paths))
            if isinstance(result, Failure):
                failures.append(result)
                narrate(f"vitreous: {visible(result.name)}: {result.reason}")
            else:
                rows.append(result.vector if features else result)
                readable.append(path)
    width = classifier.features if features else len(classifier.classes)
    return np.stack(rows) if rows else np.zeros((0, width), np.float32), readable


def _write_table(path: Path, proposals: Sequence[Proposal], cells: Sequence[str], column: str) -> None:
    """Write a manifest whose column of labels is empty, with a cell for the path of each proposal."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        stream.write(csv_line(["path", column, "rank", "score"]))
        for each, cell in zip(proposals, cells, strict=True):
            score = "" if math.isnan(each.score) else each.score
            stream.write(csv_line([cell, "", each.rank, score]))


def _cells(proposals: Sequence[Proposal], folder: Path) -> list[str]:
    """Return the paths of proposals as a table in a folder has them."""
    cells = [_cell(each.path, folder) for each in proposals]
    if odd := [each.path for each, cell in zip(proposals, cells, strict=True) if cell is None]:
        raise DataError(_no_cell(odd))
    return [cell for cell in cells if cell is not None]


def _cell(path: str, folder: Path) -> str | None:
    """Return a path as a table in a folder has it: relative, and read back unchanged. None if a table cannot hold it.

    Spreadsheets would take some paths for formulas, and a manifest's `~` is the home folder: these start with `./`.
    """
    text = _relative(path, folder)
    if csv_cell(text) != text or text.startswith((" ", "~")):
        text = os.path.join(os.curdir, text)
    return text if csv_cell(text) == text == text.strip() else None


def _no_cell(paths: Sequence[str]) -> str:
    """Say that a table cannot hold these paths."""
    return (
        f"a table cannot hold the path of {first_ten([visible(path) for path in paths])}, which has invisible "
        "characters, a space at its end, or one of = + - @ after ; or |: rename the file or its folder"
    )


def _relative(path: str, folder: Path) -> str:
    """Return a path relative to a folder as that is named, without following links, as manifests are read."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # on another drive of Windows
        return os.path.abspath(path)


def _write_sheet(path: Path, proposals: Sequence[Proposal]) -> None:
    """Draw the images in the order of their ranks."""
    save_contact_sheet(path, map(_image, proposals), min(len(proposals), MOST_SHOWN))


def _image(proposal: Proposal) -> Image.Image | None:
    with contextlib.suppress(DataError):  # it was readable a moment ago
        return read_image(proposal.path)
    return None


def check_below(pool: Pool, root: str) -> None:
    """Raise :class:`~vitreous.errors.UsageError` unless all images that may be chosen are in folders below a folder."""
    for path in pool.candidates:
        if not is_below(path, root):
            raise UsageError(f"'{visible(path)}' is not below --label-studio '{root}': name a folder that holds all")
        if os.path.dirname(os.path.realpath(path)) == os.path.realpath(root):
            raise UsageError(
                f"'{visible(path)}' lies in --label-studio '{root}' itself, and Label Studio serves only folders below "
                "its root: name the folder above"
            )


def label_studio_tasks(proposals: Sequence[Proposal], root: str) -> str:
    """Return tasks in Label Studio's JSON format, whose images are its local files below ``root``."""
    base, tasks = os.path.realpath(root), []
    for each in proposals:
        real = os.path.realpath(each.path)
        address = "/data/local-files/?d=" + quote(os.path.relpath(real, base).replace(os.sep, "/"))
        tasks.append({"data": {"image": address, "path": real, "rank": each.rank, "score": each.score}})
    return json_text(tasks, indent=2) + "\n"


def write_files(
    files: Outputs, output: str, proposals: Sequence[Proposal], tasks: str | None, column: str = "label"
) -> list[str]:
    """Write the table, the contact sheet and, if given, the tasks; return their names.

    ``column`` is the table's empty column: `label`, or `labels` where an image may have several.

    Raises:
        DataError: If the table cannot hold a path.
    """
    cells = _cells(proposals, Path(output).parent)
    stem = os.path.splitext(output)[0]
    names = [output, f"{stem}.png"]
    with files.atomic_write(names[1]) as path:
        _write_sheet(path, proposals)
    if len(proposals) > MOST_SHOWN:
        narrate(f"{names[1]} shows the first {MOST_SHOWN:,} of {len(proposals):,} proposals; the table has all")
    if tasks is not None:
        names.append(f"{stem}.json")
        with files.atomic_write(names[2]) as path:
            path.write_text(tasks, encoding="utf-8")
    with files.atomic_write(output) as path:  # last: it says that the others are complete
        _write_table(path, proposals, cells, column)
    return names
