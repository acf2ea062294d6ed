"""Downloads models of the Hugging Face hub into the hub client's cache, with its progress bar and offline mode."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from vitreous.checkpoint.broken_downloads import ending_at_sigterm, giving_up, nothing_partial
from vitreous.checkpoint.pretrained import find_hub_id
from vitreous.errors import CheckpointError

__all__ = ["HUB_ID", "answers", "cached_commit", "commit_of", "fetch", "is_reachable", "suggest_id"]

HUB_ID = re.compile(r"(?:hf[-_]hub:|hf://)?([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w./-]{1,200}))?")
"""``owner/name`` or ``owner/name@revision``, with an optional prefix."""

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_CARD = "README.md"
_DOCUMENTS = ("config.json", "preprocessor_config.json", "model.json", _CARD)
_TAGS = {  # by size; timm's repositories on the hub end in the tag of their weights
    **dict.fromkeys(("tiny", "small", "base", "large"), "augreg_in21k_ft_in1k"),
    "huge": "orig_in21k",
}
_OUTSIDE = "192.0.2.1"  # an address that belongs to nobody (RFC 5737)
_PATIENCE = 3.0  # seconds that the hub may take to answer
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)
_NOT_FOUND = {"RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"}


def suggest_id(name: str) -> str:
    """Return a "did you mean" with the full id of a model name without owner, or an empty string."""
    if timm := re.fullmatch(r"vit_(tiny|small|base|large|huge)_patch\d+_(?:224|384)(\.[\w.-]+)?", name):
        hub_id = f"timm/{name}" if timm[2] else f"timm/{name}.{_TAGS[timm[1]]}"
    elif re.fullmatch(r"vit-(base|large|huge)-patch\d+-[\w-]+", name):
        hub_id = f"google/{name}"
    elif re.fullmatch(r"(deit|dinov2)-[\w-]+", name):
        hub_id = f"facebook/{name}"
    else:
        return ""
    return f" Did you mean the hub's '{hub_id}'? Hub ids begin with an owner; otherwise give a local file"


def fetch(name: str) -> Path:
    """Return the folder with the weights and documents of a hub id, downloaded unless they are cached.

    A commit that is cached in full is used without asking the hub. A file that differs from its checksum is removed,
    where the checksum is known (:func:`_verify`).
    """
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import tqdm  # follows the client's settings

    if (match := HUB_ID.fullmatch(name)) is None:
        raise CheckpointError(f"'{name}' is not a hub id: expected owner/name or owner/name@revision")
    repository, revision = match[1], match[2]
    row = find_hub_id(repository)
    expected = row.sha256 if row is not None and row.revision == revision else None
    if constants.HF_HUB_OFFLINE:
        return _cached(huggingface_hub, repository, revision, "HF_HUB_OFFLINE is set", expected)
    if (cached := cached_commit(repository, revision)) is not None:
        _verify_all(cached, expected)
        if not (cached / _CARD).is_file():  # another program left it out, and so perhaps other documents
            _add_documents(huggingface_hub, repository, revision)
        return cached
    selected: list[str] = []
    try:
        info = huggingface_hub.HfApi().model_info(repository, revision=revision)
        selected = _select(repository, [sibling.rfilename for sibling in info.siblings or []])
        kept = _model_folder(Path(constants.HF_HUB_CACHE), repository)
        with nothing_partial(kept), giving_up(kept), ending_at_sigterm():
            order = [*selected[1:], selected[0]]  # a cache that has the weights, or their index, has all
            bar = tqdm(order, desc=f"Fetching {len(selected)} files")
            for file in bar:  # in this thread: Ctrl-C ends it at once
                folder = Path(huggingface_hub.hf_hub_download(repository, file, revision=info.sha)).parent
            if revision != info.sha:  # so that the cache notes which commit the name of a branch stands for
                huggingface_hub.hf_hub_download(repository, selected[-1], revision=revision)
    except CheckpointError:
        raise
    except Exception as error:  # errors of the client, of its HTTP library or of the system
        why = _explain(error, name, repository, constants.ENDPOINT, began=bool(selected))
        return _cached(huggingface_hub, repository, revision, why, expected)
    _verify_all(folder, expected)
    return folder


def _add_documents(hub: Any, repository: str, revision: str | None) -> None:
    """Download the documents that the cache lacks, if the hub answers; the client notes which of them do not exist."""
    if not answers():
        return
    for file in _DOCUMENTS:
        if hub.try_to_load_from_cache(repository, file, revision=revision) is None:
            try:
                hub.hf_hub_download(repository, file, revision=revision)
            except Exception as error:  # of the client, of its HTTP library or of the system: the weights are there
                kinds = {kind.__name__ for kind in type(error).__mro__}
                if not kinds & _NOT_FOUND or "LocalEntryNotFoundError" in kinds:
                    return


def cached_commit(repository: str, revision: str | None) -> Path | None:
    """Return the folder of a commit that is in the cache with weights and config.json; None for any other revision."""
    from huggingface_hub import constants

    if revision is None or re.fullmatch("[0-9a-f]{40}", revision) is None:
        return None
    folder = _snapshot(Path(constants.HF_HUB_CACHE), repository, revision)
    is_complete = (folder / "config.json").is_file() and any((folder / file).is_file() for file in _WEIGHTS[::2])
    return folder if is_complete else None


def commit_of(folder: Path) -> str | None:
    """Return the commit that a folder of the cache holds, which a branch no longer stands for once it moves."""
    return folder.name if re.fullmatch("[0-9a-f]{40}", folder.name) else None


def is_reachable() -> bool:
    """Return whether the hub may be reached: the client is not offline, and this machine has a route. Sends nothing."""
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT).hostname or ""
    try:
        address = str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError:  # a name, which would have to be asked for: any address outside shows whether there is a route
        address = _OUTSIDE
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 443))  # of a datagram socket: it only looks for the route
        return not constants.HF_HUB_OFFLINE
    return False


def answers() -> bool:
    """Return whether the hub or its mirror takes a connection; through a proxy, or offline, that is not tried."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    url = urlsplit(constants.ENDPOINT)
    if {url.scheme, "all"} & getproxies().keys():
        return True
    with contextlib.suppress(OSError, ValueError):
        port = url.port or (80 if url.scheme == "http" else 443)
        socket.create_connection((url.hostname or "", port), timeout=_PATIENCE).close()
        return True
    return False


def _snapshot(cache: Path, repository: str, revision: str) -> Path:
    return _model_folder(cache, repository) / "snapshots" / revision


def _model_folder(cache: Path, repository: str) -> Path:
    return cache / f"models--{repository.replace('/', '--')}"


def _explain(error: Exception, name: str, repository: str, endpoint: str, *, began: bool) -> str:
    """Return why there is no download, if a cached one may stand in for it; `began` says whether files were on the way.

    Raises:
        CheckpointError: If the hub refuses the model, so that nothing may stand in for it.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)  # None without an answer
    if "GatedRepoError" in kinds:
        raise CheckpointError(
            f"hub model '{name}' is gated: accept its conditions at {endpoint}/{repository}, then log in "
            "with `hf auth login`"
        ) from error
    if status in (401, 403) or (kinds & _NOT_FOUND and "LocalEntryNotFoundError" not in kinds):
        raise CheckpointError(
            f"the hub has no model '{name}' that you may read: check the id, or log in with `hf auth login`"
        ) from error
    if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
        return f"the cache cannot be written to: {error.strerror} (HF_HOME names another folder)"
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}{': ' + lines[0][:160] if lines else ''}"
    if began and not status:
        return f"the download broke off before the weights were whole ({reason})"
    return f"the hub {'answered with an error' if status else 'cannot be reached'}: {reason}"


def _select(repository: str, files: list[str]) -> list[str]:
    """Return the weights to download, in the safest format that there is, and their documents."""
    weights = next((file for file in _WEIGHTS if file in files), None)
    if weights is None:
        others = [file for file in files if file.endswith((".safetensors", ".npz")) and "/" not in file]
        if len(others) != 1:
            raise CheckpointError(
                f"hub model '{repository}' has no weights that can be read (one of {', '.join(_WEIGHTS)}, or a single "
                f".safetensors or .npz); it has {', '.join(sorted(files)[:6]) or 'nothing'}"
            )
        weights = others[0]
    selected = [weights]
    if weights.endswith(".index.json"):
        suffix = ".safetensors" if "safetensors" in weights else ".bin"
        selected += [file for file in files if re.fullmatch(rf".*-\d+-of-\d+{re.escape(suffix)}", file)]
    return selected + [file for file in _DOCUMENTS if file in files]


def _cached(hub: Any, repository: str, revision: str | None, why: str, expected: str | None) -> Path:
    """Return the folder of an earlier download, whose weights must have the SHA-256 that is expected, if one is.

    `why` says in the error why there is no new one. Without its config.json, a row of the table would
    be given images prepared in another way than it knows.
    """
    row = find_hub_id(repository)
    for pattern in (*_WEIGHTS, "*.safetensors", "*.npz"):
        try:  # one pattern at a time: newer clients raise if any of several is missing
            folder = hub.snapshot_download(
                repository, revision=revision, allow_patterns=[pattern], local_files_only=True
            )
        except Exception:  # not in the cache
            continue
        if any(Path(folder).glob(pattern)) and (row is None or (Path(folder) / "config.json").is_file()):
            _verify_all(Path(folder), expected)
            return Path(folder)
    constants = hub.constants
    weights = row.file if row is not None else "the weights"
    page = f"{constants.ENDPOINT}/{repository}/tree/{revision or 'main'}"
    if revision is not None and re.fullmatch("[0-9a-f]{40}", revision):
        place = f"{_snapshot(Path(constants.HF_HUB_CACHE), repository, revision)}/, and run the same command"
    else:
        place = "a folder, and give that folder in place of the id"
    raise CheckpointError(
        f"'{repository}' is not a local file or folder; as a hub model: {why}, and its weights are not in the cache "
        f"({constants.HF_HUB_CACHE}): go online and run the command again, or put {weights} and config.json of {page}, "
        f"with preprocessor_config.json and README.md if they are there, into {place}"
    )


def _verify_all(folder: Path, expected: str | None) -> None:
    """Check the files of a folder of the cache; the weights must have the SHA-256 that is expected, if one is."""
    weights = next((name for name in _WEIGHTS if (folder / name).is_file()), None)  # others may lie beside those read
    for file in sorted(filter(Path.is_file, folder.iterdir())):
        _verify(file, expected if file.name == weights else None)


def _verify(file: Path, expected: str | None) -> None:
    """Check the SHA-256 of a file: the one expected, or else the hub's, which is the name of a large file in the cache.

    A cache without symbolic links, as Windows may have, does not name the hub's: only the expected one is checked then.
    A damaged file is removed, so that the next download is a new one.
    """
    blob = Path(os.path.normpath(file.parent / file.readlink())) if file.is_symlink() else file
    stated = expected or (blob.name if re.fullmatch(r"[0-9a-f]{64}", blob.name) else None)
    if stated is None:
        return
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest == stated:
        return
    content = blob.resolve()  # newer clients keep it once for all repositories, under another hash, and link to it
    removed = "It was removed: run the command again to download it anew"
    try:
        for path in dict.fromkeys((file, blob, content)):
            path.unlink(missing_ok=True)
    except OSError as error:  # a cache that may not be written
        removed = f"It could not be removed ({error.strerror}): delete '{content}', and run the command again"
    whose = "the table's" if expected else "the hub's"
    raise CheckpointError(
        f"'{file}' is damaged: its SHA-256 is {digest[:12]}..., {whose} is {stated[:12]}.... {removed}"
    )
