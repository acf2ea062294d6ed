"""Features of images on disk, found by the content of the image: what was computed once is never computed again.

The features of one model, pipeline and view are a folder of shards in the user's cache folder. A shard is a number of
images: a list of their content hashes, and one file for each kind of features, of which shards may have different ones.
The list is written last, so that a shard without one does not exist. Every file has a checksum, and damaged ones count
as missing. Only folders that no other user can write to are read. Together all folders have at most `MOST_BYTES`; the
least recently used are removed first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.errors import CheckpointError, OutputError
from vitreous.files.private import check_private, make_private_folder
from vitreous.files.user_cache import make_cache, remove_abandoned, remove_oldest
from vitreous.runs.state_file import read_state, write_state

__all__ = ["FOLDER", "MOST_BYTES", "FeatureCache"]

FOLDER = "feature-cache"
"""The folder of extracted features in the user's cache."""
MOST_BYTES = 4 << 30
"""Most bytes of all features in the cache folder."""

_LIST, _VALUES = ".images", ".values"


@dataclass(frozen=True)
class _Shard:
    path: Path  # of its files, without their endings
    rows: dict[str, int]  # of each image, by its content hash
    count: int  # of images, copies included


class FeatureCache:
    """The stored features of one model, pipeline and view; `made_from` is what they depend on besides the images.

    A folder that cannot be used leaves the cache empty, and `problem` says why.
    """

    def __init__(self, made_from: Mapping[str, Any]) -> None:
        self.problem: str | None = None
        text = json.dumps(made_from, sort_keys=True)
        self._shards: list[_Shard] = []
        try:
            self._folder = make_cache(FOLDER) / hashlib.sha256(text.encode()).hexdigest()[:32]
            make_private_folder(self._folder)
            os.utime(self._folder)  # marks it as used now
            self._shards = list(_read_lists(self._folder))
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def find(self, digests: Sequence[str], *kinds: str) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """Yield positions in `digests` and their features by kind, shard by shard.

        All kinds of an image are those of one shard. Images without them are left out.
        """
        missing: dict[str, list[int]] = {}  # copies of an image have one hash
        for n, digest in enumerate(digests):
            missing.setdefault(digest, []).append(n)
        for shard in self._shards:
            shared = missing.keys() & shard.rows.keys()
            if not shared:
                continue
            features = _read_kinds(shard, kinds)
            if features is None:
                continue
            positions = sorted(n for digest in shared for n in missing.pop(digest))
            rows = [shard.rows[digests[n]] for n in positions]
            yield positions, {kind: values[rows] for kind, values in features.items()}

    def add(self, digests: Sequence[str], features: Mapping[str, Tensor]) -> None:
        """Store features (n, ...) of images, by kind; all or nothing."""
        if self.problem is not None:
            return
        path = self._folder / secrets.token_hex(8)
        try:
            make_private_folder(self._folder)  # another process may have removed it
            self._make_room(sum(each.nbytes for each in features.values()))
            for kind, values in features.items():
                write_state(path.with_suffix(f".{kind}{_VALUES}"), {"values": values.contiguous()})
            write_state(path.with_suffix(_LIST), {"images": list(digests)})
        except (OSError, OutputError) as error:
            for file in self._folder.glob(f"{path.name}.*"):
                file.unlink(missing_ok=True)
            self._give_up(str(error))

    def _give_up(self, reason: str) -> None:
        self.problem = f"features are not kept for a second run: {reason}"

    def _make_room(self, size: int) -> None:
        """Remove the least recently used folders, and files of processes that died."""
        folders = []
        for folder in self._folder.parent.iterdir():
            with contextlib.suppress(OSError):  # another process is removing it
                remove_abandoned(file for file in list(folder.iterdir()) if not _is_listed(file))
                used = sum(file.lstat().st_size for file in folder.iterdir())
                folders.append((folder == self._folder, folder.lstat().st_mtime, used, folder))
        if remove_oldest(folders, MOST_BYTES, size) > MOST_BYTES:
            raise OSError(f"they would take more than {MOST_BYTES >> 30} GiB")


def _is_listed(file: Path) -> bool:
    return (file.parent / file.name.split(".")[0]).with_suffix(_LIST).exists()


def _read_lists(folder: Path) -> Iterator[_Shard]:
    for file in sorted(folder.glob(f"*{_LIST}")):
        with contextlib.suppress(CheckpointError, OSError):
            check_private(folder)
            images = _field(read_state(file), "images")
            if isinstance(images, list) and all(isinstance(each, str) for each in images):
                rows = {digest: row for row, digest in enumerate(images)}
                yield _Shard(file.with_suffix(""), rows, len(images))


def _read_kinds(shard: _Shard, kinds: Sequence[str]) -> dict[str, Tensor] | None:
    """Return the features of a shard by kind; None if one kind is missing or damaged."""
    features: dict[str, Tensor] = {}
    for kind in kinds:
        if (values := _read_values(shard, kind)) is None:
            return None
        features[kind] = values
    return features


def _read_values(shard: _Shard, kind: str) -> Tensor | None:
    """Return the features of a shard; None if they are missing or damaged."""
    with contextlib.suppress(CheckpointError, OSError):
        values = _field(read_state(shard.path.with_suffix(f".{kind}{_VALUES}")), "values")
        if isinstance(values, Tensor) and len(values) == shard.count:
            return values
    return None


def _field(content: Any, name: str) -> Any:
    return content.get(name) if isinstance(content, dict) else None
