"""Stores through fsspec, without a server: a folder of this machine stands for the bucket."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from vitreous.cli.main import main
from vitreous.data.config import DataConfig
from vitreous.data.shards import requests
from vitreous.data.shards.cache import _only_one
from vitreous.data.shards.listing import list_shards
from vitreous.data.shards.remote import RemoteFolder
from vitreous.data.shards.store import Range, Store
from vitreous.data.shards.writing.destination import LocalDestination
from vitreous.data.shards.writing.writer import write_shards
from vitreous.data.sources.opening import open_source
from vitreous.errors import MissingExtraError, StoreError


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """20 digits in two classes, in `photos`; the cache and the pauses are those of tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(requests, "_PAUSE", 0.00002)
    for n, pixels in enumerate(load_digits().images[:20]):
        (tmp_path / "photos" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype("uint8")).save(tmp_path / "photos" / "ab"[n % 2] / f"{n}.png")
    return tmp_path / "photos"


def test_shards_in_a_store_are_listed_fetched_and_kept(photos, tmp_path):
    write_shards(DataConfig(str(photos)), LocalDestination(tmp_path / "s"), shard_bytes=600)
    folder = RemoteFolder(f"file://{tmp_path}/s", 1)
    images = [entry.path for entry in list_shards(folder).entries]
    folder.fetch(images)
    for image in images:
        assert image.read() == (photos / image.name).read_bytes()
    files = {id(image.container): image.container for image in images}.values()
    for file in files:
        while file.cached() is None:  # the thread that was asked for it by `fetch` may still be at it
            folder.cache._fetch(file)
        (tmp_path / "s" / file.file).unlink()
    assert all(image.read() == (photos / image.name).read_bytes() for image in images)  # now from the cache


def test_a_store_is_asked_again_until_it_answers_in_full(photos, tmp_path, monkeypatch):
    (tmp_path / "object").write_bytes(bytes(range(100)))
    calls = []

    async def answer(system, path, offset, length, original=requests.read_range):
        calls.append(offset)
        if offset == 90 and calls.count(90) == 1:
            raise OSError("reset by peer")
        return b"cut" if offset == 90 and calls.count(90) == 2 else await original(system, path, offset, length)

    monkeypatch.setattr(requests, "read_range", answer)
    ranges = [Range("object", 10, 5), Range("object", 90, 10)]
    assert Store(f"file://{tmp_path}").read_many(ranges) == [bytes(range(10, 15)), bytes(range(90, 100))]
    assert sorted(calls) == [10, 90, 90, 90]  # the range that came in full is not asked for again


class Slow:
    """An asynchronous file system whose first answer for the last range never comes."""

    async_impl, protocol = True, "slow"

    def __init__(self, stalled: int) -> None:
        self.stalled, self.calls = stalled, []

    async def _cat_file(self, path: str, start: int, end: int) -> bytes:
        self.calls.append(start)
        if start >= self.stalled and self.calls.count(start) == 1:
            await asyncio.Event().wait()
        return bytes(end - start)


def test_a_range_that_does_not_come_is_asked_for_a_second_time(photos):
    slow, ranges = Slow(stalled=190), [Range("object", 10 * n, 10) for n in range(20)]
    assert asyncio.run(requests.read_ranges(slow, "root", ranges, requests.Tail())) == [bytes(10)] * 20
    assert len(slow.calls) == 21


def test_of_a_slow_store_no_more_than_a_quarter_is_asked_for_twice(photos):
    slow, ranges = Slow(stalled=0), [Range("object", 10 * n, 10) for n in range(20)]

    async def ask() -> None:
        reading = asyncio.ensure_future(requests.read_ranges(slow, "root", ranges, requests.Tail()))
        while len(slow.calls) < 25:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        reading.cancel()

    asyncio.run(ask())
    assert len(slow.calls) == 25


def test_an_error_names_the_key_and_hides_queries_and_users(photos, tmp_path, monkeypatch):
    async def fail(*_):
        raise OSError("cannot reach https://me:pw@store.example/object?X-Amz-Signature=abc now")

    monkeypatch.setattr(requests, "read_range", fail)
    with pytest.raises(
        StoreError, match=r"bucket/object failed 8 times .cannot reach https://store.example/object now"
    ):
        Store(f"file://{tmp_path}/bucket").read("object", 0, 1)


def test_a_shard_that_is_not_the_one_of_the_index_is_not_kept(photos, tmp_path):
    write_shards(DataConfig(str(photos)), LocalDestination(tmp_path / "s"), shard_bytes=1 << 20)
    folder = RemoteFolder(f"file://{tmp_path}/s", 1)
    file = list_shards(folder).entries[0].path.container
    content = bytearray((tmp_path / "s" / file.file).read_bytes())
    content[-1] ^= 1
    (tmp_path / "s" / file.file).write_bytes(content)
    folder.cache._fetch(file)
    assert folder.cache.find(file) is None


def test_many_processes_fetch_a_shard_once(photos, tmp_path):
    write_shards(DataConfig(str(photos)), LocalDestination(tmp_path / "s"), shard_bytes=1 << 20)
    folder = RemoteFolder(f"file://{tmp_path}/s", 1)
    file = list_shards(folder).entries[0].path.container
    place = folder.cache._place()
    with _only_one(place / f"{file.cache_key}.lock") as is_mine:
        assert is_mine
        folder.cache._fetch(file)  # another process has the lock, so this one leaves it alone
        assert not (place / file.cache_key).exists()
    folder.cache._fetch(file)
    assert (place / file.cache_key).stat().st_size == file.size
    assert np.all([path.suffix != ".tmp" for path in place.iterdir()])


SECRET = "a-very-secret-key"


@pytest.mark.parametrize("address", [f"s3://me:{SECRET}@b/x", f"s3://b/x?Signature={SECRET}", f"S3://{SECRET}@b/x"])
@pytest.mark.parametrize("words", [["train", "{}"], ["audit", "{}"], ["shard", "{}", "d"], ["shard", "digits", "{}"]])
def test_an_address_with_a_credential_is_refused_without_repeating_it(address, words, capsys):
    assert main([word.format(address) for word in words]) == 2
    written = capsys.readouterr()
    assert "must not have a user name, password or query" in written.err
    assert SECRET not in written.err + written.out


def test_a_store_without_its_package_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.setitem(sys.modules, "gcsfs.core", None)  # which another test may have imported
    with pytest.raises(MissingExtraError, match=r"pip install 'vitreous.gs.'"):
        open_source(DataConfig("gs://bucket/photos"))
