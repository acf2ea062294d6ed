"""Writing a file so that readers see the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from vitreous.errors import OutputError

__all__ = ["replacing"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], keep: Path | None = None) -> Iterator[Path]:
    """Give a temporary path beside ``path`` to write to; on leaving, make it durable and rename it over ``path``.

    After an error, or an interrupt, ``path`` is as it was and the temporary file is gone. A link is followed. What is
    no regular file, such as ``/dev/stdout`` or a pipe, is given as it is.

    Args:
        path: The file to write. Its folder must exist.
        keep: Where the file that was at ``path`` goes, in the same folder; None: it is gone.

    Raises:
        OutputError: If it cannot be written: the message has the path and the system's reason.
    """
    asked = Path(path)
    target = Path(os.path.realpath(asked))
    if target.is_dir():
        raise OutputError(f"cannot write '{asked}': it is a folder; name a file in it")
    if not target.parent.is_dir():
        raise OutputError(f"cannot write '{asked}': the folder '{asked.parent}' does not exist")
    special = target.exists() and not target.is_file()
    written = target if special else target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.tmp")
    try:
        if not special:
            with open(written, "xb") as empty:
                mode = os.fstat(empty.fileno()).st_mode & 0o777
        yield written
        if not special:
            os.chmod(
                written, mode
            )  # as the user's umask wants it: some writers make files of their own, closed to others
            _sync(written)
            if keep is not None and target.exists():
                os.replace(target, keep)
            os.replace(written, target)
            _sync(target.parent)
    except BrokenPipeError:  # the reader of a pipe went away: the command line ends quietly
        raise
    except OSError as error:
        free = ". Free some space, or write to another disk" if "space" in str(error.strerror).lower() else ""
        raise OutputError(f"cannot write '{asked}': {error.strerror or error}{free}") from error
    finally:
        if not special:
            with contextlib.suppress(OSError):  # already renamed, or the disk is gone
                written.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Have the system bring a file's content, or a folder's list of names, to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders, and keeps their lists itself
        return
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
