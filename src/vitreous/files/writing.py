"""Atomic writes: readers see the old file or the new one, and no file of the user is lost by accident.

:func:`atomic_write` writes one file. :class:`Outputs` is for files that the user names on a command line: it refuses,
both before the work and after it, to replace an existing file, a read-only one, or one that the command reads.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from vitreous.errors import OutputError, UsageError
from vitreous.files.text import visible

__all__ = ["Outputs", "Read", "atomic_write"]

_OWN_STREAM = re.compile(r"/dev/stdout|/dev/stderr|(/dev|/proc/self)/fd/\d+")
_MAX_NAME_BYTES = 200  # of the target's name within the temporary file's; file systems allow 255 in total

Read = str | os.PathLike[str] | int
"""A file that is read: its path or its open descriptor."""


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str], keep: Path | None = None, *, follow: bool = True, exclusive: bool = False
) -> Iterator[Path]:
    """Yield a temporary path to write to; on exit, flush it to disk and rename it to ``path``.

    On an exception the temporary file is deleted and ``path`` is unchanged. The new file takes over the mode of the old
    one and, where permitted, its owner and extended attributes. A pipe or device is yielded as it is, and a standard
    stream is written after the block.

    Args:
        path: The file to write. Its folder must exist.
        keep: Where to move the previous file, in the same folder; None deletes it.
        follow: Whether to follow links and write to pipes and devices. False replaces them by a regular file: use it in
            folders that may be untrusted, where a link may point to any file of the user.
        exclusive: Whether to leave a file alone that is at ``path``, or that another process creates there in the
            meantime. The result is then kept beside it, and the error names it.
    """
    path = Path(path)
    if _is_own_stream(path):
        with _named_errors(path), _stream(path) as given:
            yield given
        return
    target = _resolve(path, follow)
    if follow and _is_special(target):
        with _named_errors(path):
            yield target
        return
    _check_writable(path, target)
    short_name = os.fsencode(target.name)[:_MAX_NAME_BYTES].decode("utf-8", "ignore") or "file"
    temporary = target.with_name(f".{short_name}.{secrets.token_hex(4)}.tmp")
    try:
        with _named_errors(path):
            before = os.lstat(target) if os.path.lexists(target) and not exclusive else None
            mode = _create(temporary, before)
            yield temporary
            os.chmod(temporary, mode)  # some writers create the file anew, with another mode
            if before is not None and stat.S_ISREG(before.st_mode):
                _copy_attributes(target, temporary, before)
                os.chmod(temporary, mode)  # copying an access control list changes it
            _sync(temporary)
            if keep is not None and target.exists():
                os.replace(target, keep)
            _install(temporary, target, path, exclusive)
            _sync(target.parent)
    finally:
        with contextlib.suppress(OSError):  # already renamed, or the disk is gone
            temporary.unlink(missing_ok=True)


class Outputs:
    """The output files that the user names on a command line.

    An existing file is replaced only with ``overwrite``, and an input of the command never. Files are compared by
    device and inode, so that links of both kinds are recognised.
    """

    def __init__(self, overwrite: bool = False) -> None:
        self.overwrite = overwrite
        self._claimed: dict[Path, str] = {}
        self._sources: list[Callable[[], Iterable[Read]]] = []

    def claim(self, option: str, path: str | os.PathLike[str] | None) -> None:
        """Check that a file may be written, before any work. None, and ``-`` for ``--json``, name no file."""
        if path is None or (option == "--json" and os.fspath(path) == "-"):
            return
        if os.fspath(path) == "-":
            raise UsageError(f"{option} needs a file: use /dev/stdout for standard output, ./- for a file of that name")
        path = Path(path)
        if _is_own_stream(path) or _is_special(target := _resolve(path)):
            return
        shown = visible(str(path))
        for other, other_option in self._claimed.items():
            if other == target or (other.exists() and target.exists() and os.path.samefile(other, target)):
                raise UsageError(f"{other_option} and {option} both write '{shown}': name two files")
        self._claimed[target] = option
        self._refuse_input(path, target)  # first: allowing writes or --overwrite would not help
        _check_writable(path, target)
        if os.path.lexists(target) and not self.overwrite:
            raise UsageError(f"'{shown}' exists already: --overwrite replaces it, or name another file")

    def reads(self, each: Callable[[], Iterable[Read]]) -> None:
        """Declare inputs of the command as soon as they are known; raise if one of them is claimed as an output.

        ``each`` returns paths, or descriptors such as 0 for standard input; called only if a file would be replaced.
        """
        self._sources.append(each)
        for target in self._claimed:
            self._refuse_input(target, target)

    @contextlib.contextmanager
    def atomic_write(self, path: str | os.PathLike[str]) -> Iterator[Path]:
        """Check again, and yield a path to write to as the function :func:`atomic_write` does."""
        path = Path(path)
        target = None if _is_own_stream(path) or _is_special(_resolve(path)) else _resolve(path)
        if target is not None and target not in self._claimed:
            self.claim("the output", path)
        with atomic_write(path, exclusive=not self.overwrite) as temporary:
            yield temporary
            if target is not None:
                self._refuse_input(path, target)

    def _refuse_input(self, path: Path, target: Path) -> None:
        try:
            output = os.stat(target)
        except (OSError, ValueError):
            return
        for source in (file for each in self._sources for file in each()):
            with contextlib.suppress(OSError, ValueError):  # a missing input is reported when it is read
                if os.path.samestat(os.stat(source), output):
                    name = "standard input" if source == 0 else f"'{visible(str(source))}'"
                    shown = visible(str(path))
                    raise UsageError(f"'{shown}' is an input of this command ({name}): name another file to write")


def _resolve(path: Path, follow: bool = True) -> Path:
    """Return the absolute path of the file to write, which is not a folder and whose folder exists."""
    shown = visible(str(path))
    try:
        target = Path(os.path.realpath(path)) if follow else Path(os.path.realpath(path.parent)) / path.name
        if target.is_dir() and (follow or not target.is_symlink()):
            raise OutputError(f"cannot write '{shown}': it is a folder; name a file in it")
        if not target.parent.is_dir():
            folder = visible(str(target.parent if path.is_symlink() else path.parent))
            raise OutputError(f"cannot write '{shown}': the folder '{folder}' does not exist")
    except (OSError, ValueError) as error:  # the name is too long, or contains a NUL character
        raise OutputError(f"cannot write '{shown}': {getattr(error, 'strerror', None) or error}") from error
    return target


def _is_own_stream(path: Path) -> bool:
    return _OWN_STREAM.fullmatch(os.fspath(path)) is not None


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[Path]:
    """Yield a path for an open stream. If it is redirected to a file, the output is appended at its position."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        yield path
        return
    handle, name = tempfile.mkstemp(suffix=".tmp")
    os.close(handle)
    try:
        yield Path(name)
        number = {"stdout": 1, "stderr": 2}.get(path.name)
        with open(name, "rb") as source, open(os.dup(int(path.name) if number is None else number), "wb") as sink:
            shutil.copyfileobj(source, sink)
    finally:
        os.unlink(name)


def _is_special(target: Path) -> bool:
    """Return whether a path is neither a regular file nor a link, such as a pipe."""
    return os.path.lexists(target) and not target.is_file() and not target.is_symlink()


def _check_writable(path: Path, target: Path) -> None:
    """Refuse a read-only file or folder. The file's mode counts for the superuser too, who may write everywhere."""
    shown = visible(str(path))
    is_plain_file = target.is_file() and not target.is_symlink()
    if is_plain_file and not (os.stat(target).st_mode & 0o222 and os.access(target, os.W_OK)):
        raise OutputError(f"cannot write '{shown}': the file is read-only; allow writing it, or name another")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        folder = visible(str(path.parent))
        raise OutputError(f"cannot write '{shown}': the folder '{folder}' is read-only; name a file in another")


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors into one that names the file."""
    try:
        yield
    except BrokenPipeError:  # the command line exits silently when the reader of a pipe goes away
        raise
    except OSError as error:
        remedy = ". Free some space, or write to another disk" if "space" in str(error.strerror).lower() else ""
        raise OutputError(f"cannot write '{visible(str(path))}': {error.strerror or error}{remedy}") from error


def _create(temporary: Path, before: os.stat_result | None) -> int:
    """Create the temporary file, never more accessible than the file it replaces; return the mode it must end with."""
    old_mode = before.st_mode & 0o777 if before is not None and stat.S_ISREG(before.st_mode) else None
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if old_mode is None else 0o600)
    try:
        return stat.S_IMODE(os.fstat(handle).st_mode) if old_mode is None else old_mode
    finally:
        os.close(handle)


def _copy_attributes(target: Path, temporary: Path, before: os.stat_result) -> None:
    """Copy the old file's owner, group and extended attributes to the new one, as far as permitted."""
    for user, group in ((-1, before.st_gid), (before.st_uid, -1)):
        with contextlib.suppress(OSError, AttributeError):  # only the superuser may; not on Windows
            os.chown(temporary, user, group)
    with contextlib.suppress(OSError, AttributeError):  # Linux only, and not on every file system
        for name in os.listxattr(target):
            with contextlib.suppress(OSError):
                os.setxattr(temporary, name, os.getxattr(target, name))


def _install(temporary: Path, target: Path, path: Path, exclusive: bool) -> None:
    """Rename a finished file to its target; with ``exclusive`` only if the target does not exist."""
    if not exclusive:
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target, follow_symlinks=False)  # unlike a rename, this fails if the target exists
        return
    except FileExistsError:
        pass
    except (OSError, NotImplementedError):  # a file system without hard links
        if not os.path.lexists(target):
            os.replace(temporary, target)
            return
    beside = target.with_name(temporary.name.removeprefix(".").removesuffix(".tmp"))
    os.replace(temporary, beside)
    raise OutputError(
        f"'{visible(str(path))}' was created by another process meanwhile and is left as it is: the result is in "
        f"'{visible(str(path.with_name(beside.name)))}'"
    )


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders, and flushes their entries itself
        return
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
