"""The destination of a conversion: checked first, written to a temporary folder, and moved there once verified."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from vitreous.checkpoint.adapters.common import join_first
from vitreous.checkpoint.conversion.writing import FILES, resolve_destination
from vitreous.checkpoint.model_card import CARD, is_written_here
from vitreous.errors import OutputError, UsageError
from vitreous.files.locating import expand_home
from vitreous.files.opening import read_regular
from vitreous.files.writing import Outputs

__all__ = ["Destination"]

_BESIDE = {**dict.fromkeys(("google", "torchvision", "facebookresearch"), ".json"), "openvino": ".bin"}
"""What a single file cannot be without."""
_DOCUMENTS = ("config.json", "preprocessor_config.json")
_MAX_CARD = 1 << 14  # bytes


class Destination:
    """A file or folder to write in a `form`, a key of `writing.FILES`. The source is never overwritten."""

    def __init__(
        self, form: str, destination: str | os.PathLike[str], source: str | os.PathLike[str], overwrite: bool
    ) -> None:
        self._target = expand_home(destination)
        self._weights, self.is_folder = resolve_destination(form, self._target)
        self._outputs = Outputs(overwrite)
        self._outputs.reads(each=lambda: _source_files(source))
        if self.is_folder:
            _claim_folder(self._target, source, overwrite)
            return
        self._outputs.claim("DST", self._target)
        if form in _BESIDE:
            self._outputs.claim("the file beside DST", self._weights.with_suffix(_BESIDE[form]))

    @property
    def name(self) -> str:
        """The name that the file of weights will have."""
        return self._weights.name

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """Yield the path of the weights in a temporary folder, which is deleted on exit."""
        folder = self._target.parent / f".{self._target.name[:100]}.{secrets.token_hex(4)}.tmp"
        try:
            folder.mkdir()
            yield folder / self._weights.name
        except OSError as error:
            raise OutputError(f"cannot write '{self._target}': {error.strerror or error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def install(self, files: list[Path]) -> list[Path]:
        """Move files from the temporary folder to the destination by renaming, and return their new paths.

        An existing destination is replaced only here.
        """
        if not self.is_folder:
            for file in reversed(files):  # the weights last, so that their documents are there when they appear
                with self._outputs.atomic_write(self._target.parent / file.name) as path:
                    os.replace(file, path)
        else:
            target = self._target.resolve()  # keeps a symbolic link to a folder
            folder = files[0].parent
            old = folder.with_suffix(".old")
            if target.exists():
                os.replace(target, old)
            os.replace(folder, target)
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
        return [self._weights.parent / file.name for file in files]


def _source_files(source: str | os.PathLike[str]) -> Iterable[Path]:
    """Return the local files that a source may be read from."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path.iterdir()
    return (path, path.with_suffix(".json"), *(path.parent / name for name in _DOCUMENTS)) if path.is_file() else ()


def _claim_folder(target: Path, source: str | os.PathLike[str], overwrite: bool) -> None:
    """Check that a folder may be written. Only the output of an earlier conversion is ever replaced."""
    if not target.parent.is_dir():
        raise OutputError(f"cannot write '{target}': the folder '{target.parent}' does not exist")
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise UsageError(f"'{target}' exists already: --overwrite replaces it, or name another destination")
    within = target.resolve()
    if any(within in (file.resolve(), *file.resolve().parents) for file in _source_files(source)):
        raise UsageError(f"'{target}' contains the source: name another destination")
    written = {name for name, _ in FILES.values()} | {"model.onnx.data", "model.bin", "model.json", *_DOCUMENTS}
    written |= {CARD} if _is_own_card(target / CARD) else set()
    others = sorted(file.name for file in target.iterdir() if file.name not in written) if target.is_dir() else []
    if others or not target.is_dir():
        what = f"holds other files ({join_first(others)})" if others else "is not a folder"
        raise UsageError(f"'{target}' {what}, which --overwrite would delete: name another destination")


def _is_own_card(file: Path) -> bool:
    try:
        return is_written_here(read_regular(file, _MAX_CARD).decode())
    except (OSError, ValueError):
        return False
