"""Where a conversion goes: checked beforehand, written aside, and put in its place only when it is proven."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from vitreous.checkpoint.adapters.common import few
from vitreous.checkpoint.conversion.writing import FILES, layout_of_files
from vitreous.errors import OutputError, UsageError
from vitreous.files.writing import Outputs

__all__ = ["Destination"]

_WITH_SIDECAR = ("google", "torchvision")  # families whose files have no room for classes and sizes
_DOCUMENTS = ("config.json", "preprocessor_config.json")


class Destination:
    """A file or a folder to write.

    Args:
        form: One of `writing.FILES`.
        destination: What the user named.
        source: What is converted: it is never written over.
        overwrite: Whether what lies at the destination may be replaced.

    Raises:
        UsageError: If it does not fit the form, exists, is read by this conversion, or is a folder with other files.
        OutputError: If it cannot be written.
    """

    def __init__(
        self, form: str, destination: str | os.PathLike[str], source: str | os.PathLike[str], overwrite: bool
    ) -> None:
        self._target = Path(destination).expanduser()
        self._weights, self._is_folder = layout_of_files(form, self._target)
        self._outputs = Outputs(overwrite)
        self._outputs.reads(each=lambda: _files_of(source))
        if self._is_folder:
            _claim_folder(self._target, source, overwrite)
            return
        self._outputs.claim("DST", self._target)
        if form in _WITH_SIDECAR:
            self._outputs.claim("the description beside DST", self._weights.with_suffix(".json"))

    @contextlib.contextmanager
    def aside(self) -> Iterator[Path]:
        """Give the path of the weights in a folder aside, which is gone afterwards.

        Raises:
            OutputError: If the system refuses anything within.
        """
        folder = self._target.parent / f".{self._target.name[:100]}.{secrets.token_hex(4)}.tmp"
        try:
            folder.mkdir()
            yield folder / self._weights.name
        except OSError as error:
            raise OutputError(f"cannot write '{self._target}': {error.strerror or error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def install(self, files: list[Path]) -> list[Path]:
        """Put files that were written aside in their place by renaming, and return what they are called there.

        What lay there before goes only then.
        """
        if not self._is_folder:
            for file in reversed(files):  # the weights last: they are what others look for
                with self._outputs.replacing(self._target.parent / file.name) as place:
                    os.replace(file, place)
        else:
            target = self._target.resolve()  # a link to a folder stays one
            folder = files[0].parent
            old = folder.with_suffix(".old")
            if target.exists():
                os.replace(target, old)
            os.replace(folder, target)
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
        return [self._weights.parent / file.name for file in files]


def _files_of(source: str | os.PathLike[str]) -> Iterable[Path]:
    """The files that a source may be read from, as far as they lie where the user says."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path.iterdir()
    return (path, path.with_suffix(".json"), *(path.parent / name for name in _DOCUMENTS)) if path.is_file() else ()


def _claim_folder(target: Path, source: str | os.PathLike[str], overwrite: bool) -> None:
    """Check that a folder may be written: only one that an earlier conversion left is ever replaced.

    Raises:
        UsageError: If it is there already and may not be replaced, or holds the source or files of other programs.
        OutputError: If it cannot be made.
    """
    if not target.parent.is_dir():
        raise OutputError(f"cannot write '{target}': the folder '{target.parent}' does not exist")
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise UsageError(f"'{target}' exists already: --overwrite replaces it, or name another destination")
    within = target.resolve()
    if any(within in (file.resolve(), *file.resolve().parents) for file in _files_of(source)):
        raise UsageError(f"'{target}' holds what this command reads: name another destination")
    kept = {name for name, _ in FILES.values()} | {"model.onnx.data", *_DOCUMENTS}
    others = sorted(file.name for file in target.iterdir() if file.name not in kept) if target.is_dir() else []
    if others or not target.is_dir():
        what = f"holds other files ({few(others)})" if others else "is no folder"
        raise UsageError(f"'{target}' {what}, which --overwrite would delete: name another destination")
