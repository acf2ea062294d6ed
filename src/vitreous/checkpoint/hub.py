"""Model ids of the Hugging Face hub: to a folder in the hub client's cache, with its progress bar and offline mode."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from vitreous.errors import CheckpointError, MissingExtraError

__all__ = ["HUB_ID", "fetch", "meant"]

HUB_ID = re.compile(r"(?:hf[-_]hub:|hf://)?([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w./-]{1,200}))?")
"""``owner/name``, with ``@revision`` after it where one is wanted."""

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_BESIDE = ("config.json", "preprocessor_config.json", "model.json")


_TAGS = {  # of timm's names, which the hub has with a tag only
    **dict.fromkeys(("tiny", "small", "base", "large"), "augreg_in21k_ft_in1k"),
    "huge": "orig_in21k",
}


def meant(name: str) -> str:
    """Return a "did you mean" with a whole id for a model's bare name, or an empty string where it is like none."""
    if timm := re.fullmatch(r"vit_(tiny|small|base|large|huge)_patch\d+_(?:224|384)(\.[\w.-]+)?", name):
        whole = f"timm/{name}" if timm[2] else f"timm/{name}.{_TAGS[timm[1]]}"
    elif re.fullmatch(r"vit-(base|large|huge)-patch\d+-[\w-]+", name):
        whole = f"google/{name}"
    elif re.fullmatch(r"(deit|dinov2)-[\w-]+", name):
        whole = f"facebook/{name}"
    else:
        return ""
    return f" Did you mean the hub's '{whole}'? Its ids begin with an owner; else give a local file"


def fetch(name: str) -> Path:
    """Return the folder that has a hub model's weights and the documents beside them, downloaded where needed.

    Args:
        name: An id such as ``timm/vit_small_patch16_224.augreg_in21k_ft_in1k``, with ``@revision`` where wanted.

    Raises:
        MissingExtraError: If huggingface_hub is not installed.
        CheckpointError: If there is no such model, no network, or only files of other kinds.
    """
    try:
        import huggingface_hub
        from huggingface_hub import constants
    except ImportError as error:
        raise MissingExtraError(
            f"'{name}' is no file or folder here; as a hub id it needs huggingface_hub: pip install 'vitreous[hub]'"
        ) from error
    match = HUB_ID.fullmatch(name)
    if match is None:
        raise CheckpointError(f"'{name}' is no hub id: owner/name, or owner/name@revision")
    repository, revision = match[1], match[2]
    if constants.HF_HUB_OFFLINE:
        return _cached(huggingface_hub, repository, revision, "HF_HUB_OFFLINE is set")
    try:
        info = huggingface_hub.HfApi().model_info(repository, revision=revision)
        wanted = _wanted(repository, [sibling.rfilename for sibling in info.siblings or []])
        folder = huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=wanted)
    except CheckpointError:
        raise
    except Exception as error:  # the client raises those of its http library, its own and the system's
        if "GatedRepoError" in {kind.__name__ for kind in type(error).__mro__}:
            raise CheckpointError(
                f"hub model '{name}' needs your consent first: accept its conditions at "
                f"{constants.ENDPOINT}/{repository}, then log in with `hf auth login`"
            ) from error
        if _is_missing(error):
            raise CheckpointError(
                f"the hub has no model '{name}' that you may read: check the id, or log in with `hf auth login`"
            ) from error
        answered = "answered with an error" if _status(error) else "cannot be reached"
        return _cached(huggingface_hub, repository, revision, f"the hub {answered}: {_brief(error)}")
    for file in wanted:
        _verify(Path(folder) / file)
    return Path(folder)


def _wanted(repository: str, files: list[str]) -> list[str]:
    """Choose the weights, the safest format first, and what belongs beside them."""
    weights = next((file for file in _WEIGHTS if file in files), None)
    if weights is None:
        loose = [file for file in files if file.endswith((".safetensors", ".npz")) and "/" not in file]
        if len(loose) != 1:
            found = ", ".join(sorted(files)[:6]) or "nothing"
            raise CheckpointError(
                f"hub model '{repository}' has no weights that can be read (one of {', '.join(_WEIGHTS)}, or a single "
                f".safetensors or .npz); it has {found}"
            )
        weights = loose[0]
    wanted = [weights]
    if weights.endswith(".index.json"):
        kind = ".safetensors" if "safetensors" in weights else ".bin"
        wanted += [file for file in files if re.fullmatch(rf".*-\d+-of-\d+{re.escape(kind)}", file)]
    return wanted + [file for file in _BESIDE if file in files]


def _cached(hub: Any, repository: str, revision: str | None, why: str) -> Path:
    """Return what an earlier download left."""
    for pattern in (*_WEIGHTS, "*.safetensors", "*.npz"):
        try:  # one pattern at a time: newer clients refuse a folder that lacks a file of those asked for
            folder = hub.snapshot_download(
                repository, revision=revision, allow_patterns=[pattern], local_files_only=True
            )
        except Exception:  # as above: not in the cache
            continue
        if any(Path(folder).glob(pattern)):
            return Path(folder)
    raise CheckpointError(
        f"'{repository}' is no file or folder here; as a model of the hub: {why}, and its weights are not in the cache "
        f"({hub.constants.HF_HUB_CACHE}): go online once, or give a local file or folder"
    )


def _status(error: Exception) -> int | None:
    """The HTTP status that the hub answered with; None where it did not answer."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _is_missing(error: Exception) -> bool:
    """Whether the hub answered that there is no such thing for this user."""
    if _status(error) in (401, 403):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError"}) and (
        "LocalEntryNotFoundError" not in names
    )


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + lines[0][:160] if lines else ''}"


def _verify(file: Path) -> None:
    """Compare a large file with its SHA-256, by which the hub names it in the cache."""
    blob = file.resolve()
    if not re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return
    with open(blob, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != blob.name:
        raise CheckpointError(f"'{blob}' is damaged: its SHA-256 is not the hub's. Delete it, and download it again")
