"""Writing a file so that readers see the old one or the new one, never half of one, and nobody loses what they keep.

:func:`replacing` writes one file. What a command writes where its user said goes through :class:`Outputs`, which
refuses, before the work and again after it, what would cost the user something: a file that is there already, one that
may not be written, and one that the command reads.
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

__all__ = ["Outputs", "Read", "replacing"]

_OWN_STREAM = re.compile(r"/dev/stdout|/dev/stderr|(/dev|/proc/self)/fd/\d+")
_LONGEST_NAME = 200  # bytes of the name that a temporary file's name repeats; systems allow 255 in all

Read = str | os.PathLike[str] | int
"""A file that is read: its path, or the descriptor by which it is open."""


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], keep: Path | None = None, *, follow: bool = True, exclusive: bool = False
) -> Iterator[Path]:
    """Give a temporary path beside ``path`` to write to; on leaving, make it durable and rename it over ``path``.

    After an error, or an interrupt, ``path`` is as it was and the temporary file is gone. A file that was there gives
    its mode to the new one and, where the system lets it, its owner and extended attributes; one that may not be
    written is not replaced. What is no regular file, such as a pipe, is given as it is; a redirected standard output
    gets the bytes that were written.

    Args:
        path: The file to write. Its folder must exist.
        keep: Where the file that was at ``path`` goes, in the same folder; None: it is gone.
        follow: Whether a link is followed, and a pipe or a device written to. False replaces both by a regular file:
            for folders that may come from elsewhere, where a link may lead to any file of the user.
        exclusive: Whether a file that appears at ``path`` in the meantime is left alone; what was written then stays
            beside it, and the error names it.

    Raises:
        OutputError: If it cannot be written: the message has the path and the system's reason.
    """
    asked = Path(path)
    if _is_own_stream(asked):
        with _reported(asked), _streamed(asked) as given:
            yield given
        return
    target = _target(asked, follow)
    if follow and _is_special(target):
        with _reported(asked):
            yield target
        return
    _refuse_closed(asked, target)
    written = target.with_name(_temporary_name(target))
    try:
        with _reported(asked):
            before = os.lstat(target) if os.path.lexists(target) else None
            mode = _create(written, before)
            yield written
            os.chmod(written, mode)  # some writers make files of their own, closed to others
            _inherit(written, target, before)
            _sync(written)
            if keep is not None and target.exists():
                os.replace(target, keep)
            _install(written, target, asked, exclusive and before is None)
            _sync(target.parent)
    finally:
        with contextlib.suppress(OSError):  # already renamed, or the disk is gone
            written.unlink(missing_ok=True)


class Outputs:
    """The files that a command writes where its user said.

    A file that is there already is replaced only with ``overwrite``. A file that the command reads is never replaced,
    whatever it is called here: files are compared by device and inode, so that links of both kinds count.

    Args:
        overwrite: Whether existing files may be replaced.
    """

    def __init__(self, overwrite: bool = False) -> None:
        self.overwrite = overwrite
        self._claimed: dict[Path, str] = {}
        self._sources: list[Callable[[], Iterable[Read]]] = []

    def claim(self, option: str, path: str | os.PathLike[str] | None) -> None:
        """Check, before any work is done, that a file may be written; None is none, nor is ``-`` for ``--json``.

        Raises:
            UsageError: If it is there already and may not be replaced, is read by the command, or is claimed twice.
            OutputError: If its folder does not exist, or the system would refuse it.
        """
        if path is None or (option == "--json" and os.fspath(path) == "-"):
            return
        if os.fspath(path) == "-":
            raise UsageError(f"{option} takes a file: /dev/stdout is standard output, ./- a file of that name")
        asked = Path(path)
        if _is_own_stream(asked) or _is_special(target := _target(asked)):
            return
        for other, its_option in self._claimed.items():
            if other == target or (other.exists() and target.exists() and os.path.samefile(other, target)):
                raise UsageError(f"{its_option} and {option} both write '{visible(str(asked))}': name two files")
        self._claimed[target] = option
        self._check(asked, target)

    def reads(self, each: Callable[[], Iterable[Read]]) -> None:
        """Name files that the command reads, as soon as they are known; what is claimed is compared with them.

        Args:
            each: Gives paths, or descriptors such as 0 for standard input; it is called only where a file would be
                replaced.

        Raises:
            UsageError: If one of them is claimed.
        """
        self._sources.append(each)
        for target in self._claimed:
            self._refuse_read(target, target)

    @contextlib.contextmanager
    def replacing(self, path: str | os.PathLike[str]) -> Iterator[Path]:
        """Check once more, and give a path to write to as the function :func:`replacing` does.

        Raises:
            UsageError: As :meth:`claim`.
            OutputError: If it cannot be written.
        """
        asked = Path(path)
        target = None if _is_own_stream(asked) or _is_special(_target(asked)) else _target(asked)
        if target is not None and target not in self._claimed:
            self.claim("the output", asked)
        with replacing(asked, exclusive=not self.overwrite) as written:
            yield written
            if target is not None:
                self._refuse_read(asked, target)

    def _check(self, asked: Path, target: Path) -> None:
        self._refuse_read(asked, target)  # first: to allow writing would be no remedy
        _refuse_closed(asked, target)
        if os.path.lexists(target) and not self.overwrite:
            raise UsageError(f"'{visible(str(asked))}' exists already: --overwrite replaces it, or name another file")

    def _refuse_read(self, asked: Path, target: Path) -> None:
        try:
            own = os.stat(target)
        except (OSError, ValueError):
            return
        for source in self._sources:
            for file in source():
                with contextlib.suppress(OSError, ValueError):  # gone: it will be told where it is read
                    status = os.stat(file)
                    if (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino):
                        called = "standard input" if file == 0 else f"'{visible(os.fspath(str(file)))}'"
                        raise UsageError(
                            f"'{visible(str(asked))}' is what this command reads ({called}): name another file to write"
                        )


def _target(asked: Path, follow: bool = True) -> Path:
    """Where a file will lie; its folder exists, and it is none itself."""
    shown = visible(str(asked))
    try:
        target = Path(os.path.realpath(asked)) if follow else Path(os.path.realpath(asked.parent)) / asked.name
        if target.is_dir() and (follow or not target.is_symlink()):
            raise OutputError(f"cannot write '{shown}': it is a folder; name a file in it")
        if not target.parent.is_dir():
            folder = target.parent if asked.is_symlink() else asked.parent  # a link's own folder is there
            raise OutputError(f"cannot write '{shown}': the folder '{visible(str(folder))}' does not exist")
    except (OSError, ValueError) as error:  # a name too long, a NUL in it
        raise OutputError(f"cannot write '{shown}': {getattr(error, 'strerror', None) or error}") from error
    return target


def _is_own_stream(asked: Path) -> bool:
    """Whether a path means what this process has open already, such as /dev/stdout."""
    return _OWN_STREAM.fullmatch(os.fspath(asked)) is not None


@contextlib.contextmanager
def _streamed(asked: Path) -> Iterator[Path]:
    """Give a path for a stream of this process; where a file is behind it, its bytes follow what was written there."""
    if not stat.S_ISREG(os.stat(asked).st_mode):
        yield asked
        return
    handle, name = tempfile.mkstemp(suffix=".tmp")
    os.close(handle)
    try:
        yield Path(name)
        number = {"stdout": 1, "stderr": 2}.get(asked.name)
        with open(name, "rb") as source, open(os.dup(int(asked.name) if number is None else number), "wb") as sink:
            shutil.copyfileobj(source, sink)
    finally:
        os.unlink(name)


def _is_special(target: Path) -> bool:
    """Whether something is there that is neither a file nor a link."""
    return os.path.lexists(target) and not target.is_file() and not target.is_symlink()


def _refuse_closed(asked: Path, target: Path) -> None:
    """Refuse a file that its owner has made read-only, and a folder in which nothing can be made.

    The superuser may write everywhere, and so replace what somebody protected: here the mode counts for all.

    Raises:
        OutputError: It says what to change.
    """
    shown = visible(str(asked))
    there = target.is_file() and not target.is_symlink()
    if there and not (os.stat(target).st_mode & 0o222 and os.access(target, os.W_OK)):
        raise OutputError(f"cannot write '{shown}': the file is read-only; allow writing it, or name another")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        folder = visible(str(asked.parent))
        raise OutputError(f"cannot write '{shown}': the folder '{folder}' is read-only; name a file in another")


@contextlib.contextmanager
def _reported(asked: Path) -> Iterator[None]:
    """Turn the system's errors into one that names the file."""
    try:
        yield
    except BrokenPipeError:  # the reader of a pipe went away: the command line ends quietly
        raise
    except OSError as error:
        free = ". Free some space, or write to another disk" if "space" in str(error.strerror).lower() else ""
        raise OutputError(f"cannot write '{visible(str(asked))}': {error.strerror or error}{free}") from error


def _temporary_name(target: Path) -> str:
    """A hidden name, of bytes as many as every system allows."""
    short = os.fsencode(target.name)[:_LONGEST_NAME].decode("utf-8", "ignore")
    return f".{short or 'file'}.{secrets.token_hex(4)}.tmp"


def _create(written: Path, before: os.stat_result | None) -> int:
    """Make the temporary file, never more open than the one it replaces, and return the mode it shall have."""
    replaced = before is not None and stat.S_ISREG(before.st_mode)
    handle = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if replaced else 0o666)
    try:
        made = stat.S_IMODE(os.fstat(handle).st_mode)  # as the user's umask wants it
    finally:
        os.close(handle)
    return stat.S_IMODE(before.st_mode) & 0o777 if replaced and before is not None else made


def _inherit(written: Path, target: Path, before: os.stat_result | None) -> None:
    """Give the new file the old one's owner, group, extended attributes and mode, as far as the system allows."""
    if before is None or not stat.S_ISREG(before.st_mode):
        return
    for user, group in ((-1, before.st_gid), (before.st_uid, -1)):
        with contextlib.suppress(OSError, AttributeError):  # only the superuser gives files away; not on Windows
            os.chown(written, user, group)
    with contextlib.suppress(OSError, AttributeError):  # not on every file system, and only on Linux
        for name in os.listxattr(target):
            with contextlib.suppress(OSError):
                os.setxattr(written, name, os.getxattr(target, name))
    os.chmod(written, stat.S_IMODE(before.st_mode) & 0o777)


def _install(written: Path, target: Path, asked: Path, exclusive: bool) -> None:
    """Rename a finished file over its target; where that may not be there, only if it is not."""
    if not exclusive:
        os.replace(written, target)
        return
    try:
        os.link(written, target, follow_symlinks=False)  # unlike a renaming, this fails where something is
        return
    except FileExistsError:
        pass
    except (OSError, NotImplementedError):  # a file system without links
        if not os.path.lexists(target):
            os.replace(written, target)
            return
    beside = target.with_name(written.name.removeprefix(".").removesuffix(".tmp"))
    os.replace(written, beside)
    raise OutputError(
        f"'{visible(str(asked))}' appeared while this was computed, and is left as it is: the result is in "
        f"'{visible(str(asked.with_name(beside.name)))}'"
    )


def _sync(path: Path) -> None:
    """Have the system bring a file's content, or a folder's list of names, to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders, and keeps their lists itself
        return
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
