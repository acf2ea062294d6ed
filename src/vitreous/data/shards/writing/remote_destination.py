"""Where shards are written in a store: each is made on this machine, stored whole, and then recorded there."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from vitreous.data.shards.index import INDEX, ShardEntry, is_index
from vitreous.data.shards.store import Store
from vitreous.data.shards.writing.destination import JOB, UNFINISHED, recorded, refuse_other_job, refuse_taken

__all__ = ["RemoteDestination"]


class RemoteDestination:
    """A folder in a store; ``overwrite`` replaces finished shards."""

    def __init__(self, address: str, *, overwrite: bool = False) -> None:
        self.store, self.overwrite = Store(address), overwrite
        self.name = self.store.address
        self._sizes: dict[str, int] = {}

    def begin(self, job: Mapping[str, Any]) -> None:
        """Raise UsageError if the folder has other content, or an interrupted job that differs."""
        self._sizes = self.store.sizes()
        record = f"{UNFINISHED}/{JOB}"
        if record in self._sizes:
            refuse_other_job(self.name, self._facts(record), job)
            return
        if self._sizes:
            refuse_taken(self.name, is_index((self.store.read_whole(INDEX) or b"")[:64]), self.overwrite)
            self.store.remove([INDEX])  # first: without it no reader takes a half-replaced folder for whole
            self.keep_only(())
        self.store.write_bytes(record, json.dumps(dict(job)).encode())

    def keep_only(self, files: Collection[str]) -> None:
        """Remove what an interrupted job left, other than these shards."""
        self.store.remove([key for key in self._sizes if key.endswith(".tar") and "/" not in key and key not in files])

    def find(self, file: str, digest: str) -> ShardEntry | None:
        """Return a shard that is stored and recorded with this digest of its plan; else None."""
        record = f"{UNFINISHED}/{file}.json"
        if record not in self._sizes:
            return None
        shard = recorded(self._facts(record), digest)
        return shard if shard is not None and self._sizes.get(file) == shard.bytes else None

    @contextlib.contextmanager
    def create(self, file: str) -> Iterator[Path]:
        """Yield a path to write a shard to, which is in the store after the block, whole."""
        with tempfile.TemporaryDirectory(prefix="vitreous-shard-") as folder:
            path = Path(folder) / file
            yield path
            self.store.write(file, path)

    def record(self, shard: ShardEntry, digest: str) -> None:
        """Record that a shard is stored."""
        content = json.dumps({"plan": digest, "shard": shard.to_dict()}).encode()
        self.store.write_bytes(f"{UNFINISHED}/{shard.file}.json", content)

    def finish(self, index: str) -> None:
        """Store the index and remove the records."""
        self.store.write_bytes(INDEX, index.encode())
        self.store.remove([key for key in self.store.sizes() if key.startswith(f"{UNFINISHED}/")])

    def _facts(self, key: str) -> dict[str, Any]:
        try:
            facts = json.loads(self.store.read_whole(key) or b"")
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}
