"""Downloads models of the Hugging Face hub into the hub client's cache, with its progress bar and offline mode."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from vitreous.errors import CheckpointError, MissingExtraError

__all__ = ["HUB_ID", "fetch", "suggest_id"]

HUB_ID = re.compile(r"(?:hf[-_]hub:|hf://)?([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w./-]{1,200}))?")
"""``owner/name`` or ``owner/name@revision``, with an optional prefix."""

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_DOCUMENTS = ("config.json", "preprocessor_config.json", "model.json")
_TAGS = {  # by size; timm's repositories on the hub end in the tag of their weights
    **dict.fromkeys(("tiny", "small", "base", "large"), "augreg_in21k_ft_in1k"),
    "huge": "orig_in21k",
}
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
    """Return the folder with the weights and documents of a hub id, downloaded unless they are cached."""
    try:
        import huggingface_hub
        from huggingface_hub import constants
    except ImportError as error:
        raise MissingExtraError(
            f"'{name}' is not a local file or folder; a hub id needs huggingface_hub: pip install 'vitreous[hub]'"
        ) from error
    if (match := HUB_ID.fullmatch(name)) is None:
        raise CheckpointError(f"'{name}' is not a hub id: expected owner/name or owner/name@revision")
    repository, revision = match[1], match[2]
    if constants.HF_HUB_OFFLINE:
        return _cached(huggingface_hub, repository, revision, "HF_HUB_OFFLINE is set")
    try:
        info = huggingface_hub.HfApi().model_info(repository, revision=revision)
        selected = _select(repository, [sibling.rfilename for sibling in info.siblings or []])
        folder = huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=selected)
    except CheckpointError:
        raise
    except Exception as error:  # errors of the client, of its HTTP library or of the system
        kinds = {kind.__name__ for kind in type(error).__mro__}
        status = getattr(getattr(error, "response", None), "status_code", None)  # None without an answer
        if "GatedRepoError" in kinds:
            raise CheckpointError(
                f"hub model '{name}' is gated: accept its conditions at {constants.ENDPOINT}/{repository}, then log in "
                "with `hf auth login`"
            ) from error
        if status in (401, 403) or (kinds & _NOT_FOUND and "LocalEntryNotFoundError" not in kinds):
            raise CheckpointError(
                f"the hub has no model '{name}' that you may read: check the id, or log in with `hf auth login`"
            ) from error
        answer = "answered with an error" if status else "cannot be reached"
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}{': ' + lines[0][:160] if lines else ''}"
        return _cached(huggingface_hub, repository, revision, f"the hub {answer}: {reason}")
    for file in selected:
        _verify(Path(folder) / file)
    return Path(folder)


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


def _cached(hub: Any, repository: str, revision: str | None, why: str) -> Path:
    """Return the folder of an earlier download; `why` says in the error why there is no new one."""
    for pattern in (*_WEIGHTS, "*.safetensors", "*.npz"):
        try:  # one pattern at a time: newer clients raise if any of several is missing
            folder = hub.snapshot_download(
                repository, revision=revision, allow_patterns=[pattern], local_files_only=True
            )
        except Exception:  # not in the cache
            continue
        if any(Path(folder).glob(pattern)):
            return Path(folder)
    raise CheckpointError(
        f"'{repository}' is not a local file or folder; as a hub model: {why}, and its weights are not in the cache "
        f"({hub.constants.HF_HUB_CACHE}): go online once, or give a local file or folder"
    )


def _verify(file: Path) -> None:
    """Check the SHA-256 of a large file, which is its name in the cache."""
    blob = file.resolve()
    if not re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return
    with open(blob, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != blob.name:
        raise CheckpointError(
            f"'{blob}' is damaged: its SHA-256 differs from the hub's. Delete it and download it again"
        )
