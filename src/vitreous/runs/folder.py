"""The run directory: which one a run uses, whether it may start or resume there, and the recipe.yaml in it."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitreous.errors import OutputError, UsageError
from vitreous.files.locating import expand_home
from vitreous.files.opening import read_regular
from vitreous.files.writing import atomic_write
from vitreous.runs.folder_content import FILES, read_report, refuse_outward_links, remove_preamble, remove_unfinished
from vitreous.runs.lock import Lock, locked

__all__ = [
    "LAST",
    "PREVIOUS",
    "STAGES",
    "RunDir",
    "changed_settings",
    "choose_run_dir",
    "is_finished",
    "lock_run_dir",
    "only_adds_epochs",
    "recorded_threads",
    "refuse_more_epochs",
    "rename_report",
    "write_recipe",
    "write_text",
]

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
"""Names of the newest checkpoint of a run and of the one before it."""

STAGES = "stages.ckpt"
"""Name of the journal of a run in stages."""

_CHECKPOINTS = LAST, PREVIOUS
_SIGNS_OF_A_RUN = ("recipe.yaml", "metrics.csv", *_CHECKPOINTS, "model.safetensors", "report.json")
_THREADS = "# threads: "
_LARGEST_RECIPE = 1 << 20  # bytes

# Settings that may change on resume, because they do not affect the result: where things are, how they are read and
# written, and what follows the run. The device and precision that `auto` resolved to are compared elsewhere.
_MAY_CHANGE = (
    *(
        "data.source",
        "data.dir",
        "data.workers",
        "data.strict",
        "data.cache_gb",
        "device",
        "precision",
        "monitor.stop",
        "loggers",
        "out",
    ),
    *("compile", "checkpoint_every", "checkpoint_epochs", "devices", "nodes", "strategy"),
)


@dataclasses.dataclass(frozen=True)
class RunDir:
    """A locked run directory."""

    path: Path
    lock: Lock  # whose file says what the run is doing
    has_run: bool  # whether it holds a run to resume, with the same settings or fewer epochs


def choose_run_dir(out: str | None, name: str, recipe: str, resume: bool) -> tuple[Path, list[Path]]:
    """Find or create the run directory; return it, and the directories that had to be created, the innermost first.

    Without `out` it is ``runs/NAME-1``, ``-2`` and so on, with the name of the data: a new one or, to resume, the
    newest with the same settings. `recipe` is the text of recipe.yaml.
    """
    if out is None:
        return _numbered_dir(name, recipe if resume else None)
    if not out.strip():
        raise UsageError("--out is empty: name a folder, or omit it for runs/NAME-1")
    run_dir = expand_home(out)
    missing = [each for each in (run_dir, *run_dir.parents) if not each.exists()]
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_create(run_dir, error) from error
    if not resume:
        _refuse_taken(run_dir)
    return run_dir, missing


def is_finished(run_dir: Path, recipe: str) -> bool:
    """Return whether a directory holds a finished run with these settings, which ends by writing its report."""
    stored = _read(run_dir / "recipe.yaml")
    if not _has_begun(run_dir, recipe) or stored is None or changed_settings(stored, recipe):
        return False
    path, finished = run_dir / "report.json", read_report(run_dir) is not None
    kept = any((run_dir / name).is_file() for name in (*_CHECKPOINTS, STAGES))
    if not finished and os.path.lexists(path) and not kept:
        raise UsageError(
            f"'{path}' is damaged, and there is no checkpoint to write it again from: move it away, or use another "
            "--out"
        )
    return finished


@contextlib.contextmanager
def lock_run_dir(run_dir: Path, recipe: str, resume: bool) -> Iterator[RunDir]:
    """Lock a run directory and prepare it for the run.

    Files that a killed process left unfinished are removed. If a new run fails before it has anything to resume from,
    the files that it wrote are removed too. Arguments as :func:`choose_run_dir`, which returned the directory.
    """
    with locked(run_dir) as lock:
        begun = resume and _has_begun(run_dir, recipe)
        if not begun:
            _refuse_taken(run_dir, resume)  # again: another run may have started here before the lock was taken
        refuse_outward_links(run_dir)
        remove_unfinished(run_dir)
        with contextlib.nullcontext() if begun else remove_preamble(run_dir):
            yield RunDir(run_dir, lock, begun)


def _numbered_dir(name: str, recipe: str | None) -> tuple[Path, list[Path]]:
    """Return the newest directory with the settings of a recipe, or else a new one."""
    slug = re.sub(r"[^\w.-]+", "-", Path(name).name).strip("-.") or "run"
    root = Path("runs")
    if recipe is not None:
        numbers = (path.name[len(slug) + 1 :] for path in root.glob(f"{glob.escape(slug)}-*"))
        for number in sorted((int(each) for each in numbers if each.isdecimal()), reverse=True):
            run_dir = root / f"{slug}-{number}"
            stored = _read(run_dir / "recipe.yaml")
            if stored is not None and not changed_settings(stored, recipe):
                return run_dir, []
    number, parents = 1, [] if root.exists() else [root]
    while True:
        run_dir = root / f"{slug}-{number}"
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise _cannot_create(run_dir, error) from error
        else:
            return run_dir, [run_dir, *parents]


def _cannot_create(run_dir: Path, error: OSError) -> OutputError:
    return OutputError(f"the run directory '{run_dir}' cannot be created: {error.strerror or error}. Use another --out")


def _refuse_taken(run_dir: Path, resume: bool = False) -> None:
    """Refuse a directory with files of another run, or of the user, that a new run would overwrite."""
    if signs := [name for name in _SIGNS_OF_A_RUN if os.path.lexists(run_dir / name)]:
        advice = ": use another --out, move it away, or continue it with --resume"
        if resume:
            advice = (
                ", but neither its recipe.yaml nor a checkpoint, so there is nothing to resume: use another --out, or "
                "move it away"
            )
        raise UsageError(f"'{run_dir}' holds a run already ({', '.join(signs)}){advice}")
    if others := [name for name in FILES if os.path.lexists(run_dir / name)]:
        raise UsageError(
            f"'{run_dir}' has files that a run would overwrite ({', '.join(others)}): use another --out, or move them "
            "away"
        )


def _has_begun(run_dir: Path, recipe: str) -> bool:
    """Return whether a directory holds a run with the same settings, or with fewer epochs; refuse other settings.

    Without a recipe.yaml, a checkpoint is enough: it holds the settings too.
    """
    stored = _read(run_dir / "recipe.yaml")
    if stored is None:
        return any((run_dir / name).is_file() for name in _CHECKPOINTS)
    if _is_of_format_1(stored):
        raise UsageError(
            f"'{run_dir}' was written by an earlier version of vitreous, and this one cannot continue it: use another "
            "--out or, if it has a model, `vitreous finetune DATA --from DIR`"
        )
    changed = changed_settings(stored, recipe)
    if changed and not only_adds_epochs(stored, recipe):
        raise UsageError(
            f"'{run_dir}' holds a run with different settings: {'; '.join(changed)}. Use the same settings, or another "
            "--out"
        )
    return True


def changed_settings(before: str, now: str) -> list[str]:
    """Compare two recipes; return each difference that affects the result as ``NAME was X, now Y``."""
    old, new = _settings(before), _settings(now)
    shared = [name for name in new if name in old and name not in _MAY_CHANGE]
    return [f"{name} was {old[name]}, now {new[name]}" for name in shared if old[name] != new[name]]


def only_adds_epochs(before: str, now: str) -> bool:
    """Return whether a recipe differs from another only in having more epochs, and epochs determine its length."""
    old, new = _settings(before), _settings(now)
    if len(changed_settings(before, now)) != 1 or not {"epochs", "steps", "budget"} <= old.keys() & new.keys():
        return False
    by_epochs = new["steps"] == new["budget"] == "null" and new["epochs"].isdecimal() and old["epochs"].isdecimal()
    return by_epochs and int(old["epochs"]) < int(new["epochs"])


def _settings(recipe: str) -> dict[str, str]:
    """Split a :func:`~vitreous.train.recipe_file.recipe_text` into values by dotted name."""
    found: dict[str, str] = {}
    groups: list[str] = []  # names of the lines that this one is indented under
    for line in recipe.splitlines():
        if line.startswith("#"):
            continue
        name, _, value = line.strip().partition(": ")
        groups = groups[: (len(line) - len(line.lstrip())) // 2]
        if line.endswith(":"):
            groups.append(name[:-1])
        else:
            found[".".join([*groups, name])] = value
    return found


def _is_of_format_1(recipe: str) -> bool:
    """Return whether a recipe has the parts of its model as single words, as before they had options of their own."""
    settings = _settings(recipe)
    return "model.stem" in settings and "model.stem.kind" not in settings


def _read(path: Path) -> str | None:
    try:
        return read_regular(path, _LARGEST_RECIPE).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"'{path}' cannot be read: {error.strerror or error}. Use another --out") from error


def refuse_more_epochs(run_dir: Path, recipe: str) -> None:
    """Refuse a recipe that adds epochs to a run without a checkpoint."""
    stored = _read(run_dir / "recipe.yaml")
    if stored is not None and only_adds_epochs(stored, recipe):
        raise UsageError(
            f"'{run_dir}' holds a run with different settings: {'; '.join(changed_settings(stored, recipe))}, and it "
            "has no checkpoint to resume from. Use another --out or, if it has a model, `vitreous finetune DATA "
            f"--from {run_dir}`"
        )


def rename_report(run_dir: Path, epochs: int) -> None:
    """Rename the report of a finished run that continues to more epochs."""
    try:
        with contextlib.suppress(FileNotFoundError):
            os.replace(run_dir / "report.json", run_dir / f"report-{epochs}-epochs.json")
    except OSError as error:
        raise OutputError(f"'{run_dir}/report.json' cannot be renamed: {error.strerror or error}") from error


def recorded_threads(run_dir: Path) -> int | None:
    """Return the number of threads that the run started with, which :func:`write_recipe` recorded."""
    recipe = _read(run_dir / "recipe.yaml") or ""
    found = re.search(rf"^{_THREADS}([1-9]\d{{0,4}})(?: |$)", recipe, re.ASCII | re.MULTILINE)
    return int(found[1]) if found else None


def write_recipe(run_dir: Path, recipe: str, threads: int, extended: Sequence[int] = ()) -> None:
    """Write recipe.yaml, with the number of CPU threads and each earlier, shorter number of epochs as comments."""
    lines = [f"{_THREADS}{threads} (a resumed run keeps them: the last bits depend on them)"]
    lines += [f"# extended: was finished with {epochs} epochs, and then continued to more" for epochs in extended]
    write_text(run_dir / "recipe.yaml", recipe + "".join(f"{line}\n" for line in lines))


def write_text(path: Path, text: str) -> None:
    """Write a small file of the run atomically."""
    with atomic_write(path, follow=False) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
