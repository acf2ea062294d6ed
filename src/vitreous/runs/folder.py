"""A run's folder: which one it is, who may write there, and the recipe.yaml in it."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitreous.errors import OutputError, UsageError
from vitreous.files.opening import read_regular
from vitreous.files.writing import replacing
from vitreous.runs.folder_content import FILES, read_report, refuse_ways_out, remove_left_over, removing_preamble
from vitreous.runs.lock import Lock, locked

__all__ = [
    "LAST",
    "PREVIOUS",
    "Place",
    "choose_folder",
    "differing",
    "held",
    "is_finished",
    "is_longer",
    "recorded_threads",
    "refuse_longer",
    "set_report_aside",
    "write_recipe",
    "write_text",
]

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
"""Names of the newest state of a run, and of the one before."""

_STATES = (LAST, PREVIOUS)
_TRACES = ("recipe.yaml", "metrics.csv", *_STATES, "model.safetensors", "report.json")
_THREADS = "# threads: "
_LARGEST_RECIPE = 1 << 20  # bytes

# What two runs may differ in and still be one: where things are, how they are read and written, what follows the run.
# Device and precision are compared as they were chosen.
_FREE = (
    *("data.source", "data.dir", "data.workers", "data.strict", "device", "precision", "loggers", "out"),
    *("compile", "checkpoint_every", "checkpoint_epochs"),
)


@dataclasses.dataclass(frozen=True)
class Place:
    """The folder of a run, held.

    Attributes:
        folder: Its path.
        lock: Says what the run is doing.
        begun: Whether a run of the same settings, or one of fewer epochs, has begun here already.
    """

    folder: Path
    lock: Lock
    begun: bool


def choose_folder(out: str | None, name: str, recipe: str, resume: bool) -> tuple[Path, list[Path]]:
    """Find or make the folder of a run.

    Args:
        out: The folder that was asked for. None is ``runs/NAME-1``, ``-2`` and so on: a new one, or, to resume, the
            newest in which a run with the same recipe has begun.
        name: Of the data.
        recipe: The text of recipe.yaml.
        resume: Whether a run that has begun there is to be taken up.

    Returns:
        The folder, and those that were made for it, the innermost first.

    Raises:
        UsageError: If the folder that was asked for holds a run, and none is to be resumed.
        OutputError: If it cannot be made.
    """
    if out is None:
        return _numbered_folder(name, recipe if resume else None)
    folder = Path(out).expanduser()
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_make(folder, error) from error
    if not resume:
        _refuse_taken(folder)
    return folder, missing


def is_finished(folder: Path, recipe: str) -> bool:
    """Whether a run has ended in a folder: what is written last is there.

    Raises:
        UsageError: If it is a run with other settings, or its report is damaged and cannot be made anew.
    """
    there = _read(folder / "recipe.yaml")
    if not _begun(folder, recipe) or there is None or differing(there, recipe):
        return False
    report = folder / "report.json"
    told = read_report(folder) is not None
    if not told and os.path.lexists(report) and not any((folder / name).is_file() for name in _STATES):
        raise UsageError(
            f"'{report}' is damaged, and no checkpoint is there to make it anew from: move it away, or give another "
            "--out"
        )
    return told


@contextlib.contextmanager
def held(folder: Path, recipe: str, resume: bool) -> Iterator[Place]:
    """Hold a folder, and remove what a killed process has not finished writing; after a failure, what led nowhere.

    Args:
        folder: As :func:`choose_folder` gave it.
        recipe: As there.
        resume: As there.

    Raises:
        UsageError: If the folder holds a run that is not to be resumed, or one with other settings.
        TrainingError: If another run holds it.
        OutputError: If it cannot be written to.
    """
    with locked(folder) as lock:
        begun = resume and _begun(folder, recipe)
        if not begun:
            _refuse_taken(folder, resume)  # once more: nobody else can begin now
        refuse_ways_out(folder)
        remove_left_over(folder)
        with contextlib.nullcontext() if begun else removing_preamble(folder):
            yield Place(folder, lock, begun)


def _numbered_folder(name: str, recipe: str | None) -> tuple[Path, list[Path]]:
    """The newest folder whose recipe is the given one, else a new one."""
    slug = re.sub(r"[^\w.-]+", "-", Path(name).name).strip("-.") or "run"
    numbers = [
        int(path.name[len(slug) + 1 :])
        for path in Path("runs").glob(f"{glob.escape(slug)}-*")
        if path.name[len(slug) + 1 :].isdecimal()
    ]
    for number in sorted(numbers, reverse=True) if recipe is not None else ():
        folder = Path("runs") / f"{slug}-{number}"
        if (there := _read(folder / "recipe.yaml")) is not None and not differing(there, str(recipe)):
            return folder, []
    number, parents = 1, [] if Path("runs").exists() else [Path("runs")]
    while True:
        folder = Path("runs") / f"{slug}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise _cannot_make(folder, error) from error
        else:
            return folder, [folder, *parents]


def _cannot_make(folder: Path, error: OSError) -> OutputError:
    return OutputError(
        f"the run's folder '{folder}' cannot be made: {error.strerror or error}. Give another with --out"
    )


def _refuse_taken(folder: Path, resume: bool = False) -> None:
    taken = [trace for trace in _TRACES if os.path.lexists(folder / trace)]
    if taken and resume:
        raise UsageError(
            f"'{folder}' holds a run already ({', '.join(taken)}), but neither its recipe.yaml nor a checkpoint, so "
            "there is nothing to resume: give another --out, or move it away"
        )
    if taken:
        raise UsageError(
            f"'{folder}' holds a run already ({', '.join(taken)}): give another --out, move it away, or go on with it "
            "by --resume"
        )
    if others := [name for name in FILES if os.path.lexists(folder / name)]:
        raise UsageError(
            f"'{folder}' has files that a run would replace ({', '.join(others)}): give another --out, or move them "
            "away"
        )


def _begun(folder: Path, recipe: str) -> bool:
    """Whether a run has begun in a folder, with the same settings, or with fewer epochs.

    Without a recipe.yaml a state says it, which has the settings too.
    """
    there = _read(folder / "recipe.yaml")
    if there is None:
        return any((folder / name).is_file() for name in _STATES)
    wrong = differing(there, recipe)
    if wrong and not is_longer(there, recipe):
        raise UsageError(
            f"'{folder}' holds a run with other settings: {'; '.join(wrong)}. Give it the same, or another --out"
        )
    return True


def differing(there: str, now: str) -> list[str]:
    """What two recipes differ in, each as ``name was X, now Y``; what does not change the run's course is left out."""
    old, new = _settings(there), _settings(now)
    shared = [name for name in new if name in old and name not in _FREE]
    return [f"{name} was {old[name]}, now {new[name]}" for name in shared if old[name] != new[name]]


def is_longer(there: str, now: str) -> bool:
    """Whether a recipe differs from another only by more epochs, which are what its runs end by."""
    old, new = _settings(there), _settings(now)
    if len(differing(there, now)) != 1 or not {"epochs", "steps", "budget"} <= old.keys() & new.keys():
        return False
    ends = new["steps"] == new["budget"] == "null" and new["epochs"].isdecimal() and old["epochs"].isdecimal()
    return ends and int(old["epochs"]) < int(new["epochs"])


def _settings(recipe: str) -> dict[str, str]:
    """The lines of a :func:`~vitreous.train.recipe_file.recipe_text` by their full names."""
    found, group = {}, ""
    for line in recipe.splitlines():
        if line.startswith("#"):
            continue
        name, _, value = line.strip().partition(": ")
        if line.endswith(":"):
            group = line[:-1]
        else:
            found[f"{group}.{name}" if line.startswith(" ") else name] = value
    return found


def _read(path: Path) -> str | None:
    """The text of a recipe; None where there is none.

    Raises:
        OutputError: If there is one that cannot be read.
    """
    try:
        return read_regular(path, _LARGEST_RECIPE).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"'{path}' cannot be read: {error.strerror or error}. Give another --out") from error


def refuse_longer(folder: Path, recipe: str) -> None:
    """Refuse more epochs for a run whose state is gone.

    Raises:
        UsageError: It names a remedy.
    """
    there = _read(folder / "recipe.yaml")
    if there is not None and is_longer(there, recipe):
        raise UsageError(
            f"'{folder}' holds a run with other settings: {'; '.join(differing(there, recipe))}, and no checkpoint to "
            f"go on from. Give another --out, or where there is a model, `vitreous finetune DATA --from {folder}`"
        )


def set_report_aside(folder: Path, epochs: int) -> None:
    """Keep the report of a finished run under another name, while the run goes on to more epochs.

    Raises:
        OutputError: If it cannot be renamed.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder / "report.json", folder / f"report-{epochs}-epochs.json")
    except OSError as error:
        raise OutputError(f"'{folder}/report.json' cannot be renamed: {error.strerror or error}") from error


def recorded_threads(folder: Path) -> int | None:
    """The number of threads that the run in a folder began with, as :func:`write_recipe` wrote it."""
    for line in (_read(folder / "recipe.yaml") or "").splitlines():
        count = line.removeprefix(_THREADS).partition(" ")[0]
        if line.startswith(_THREADS) and re.fullmatch(r"[1-9]\d{0,4}", count, re.ASCII):
            return int(count)
    return None


def write_recipe(folder: Path, recipe: str, threads: int, extended: Sequence[int] = ()) -> None:
    """Write recipe.yaml, with what is known of the run besides its settings in comments.

    Args:
        folder: Of the run.
        recipe: As :func:`~vitreous.train.recipe_file.recipe_text` gives it.
        threads: That it computes with.
        extended: Numbers of epochs at which it was finished before, and then given more.

    Raises:
        OutputError: If it cannot be written.
    """
    lines = [f"{_THREADS}{threads} (a resumed run keeps them: the last bits depend on them)"]
    lines += [f"# extended: was finished with {epochs} epochs, and then went on to more" for epochs in extended]
    write_text(folder / "recipe.yaml", recipe + "".join(f"{line}\n" for line in lines))


def write_text(path: Path, text: str) -> None:
    """Write a small file of the run, whole or not at all.

    Raises:
        OutputError: If it cannot be written.
    """
    with replacing(path, follow=False) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
