"""Shards in a real S3 server on loopback that refuses, delays and cuts off answers."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from s3_server import s3_server
from sklearn.datasets import load_digits

from vitreous.cli.main import main
from vitreous.data.batches.data_module import ImageDataModule
from vitreous.data.config import DataConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.shards import requests, store
from vitreous.data.shards.remote import RemoteFolder, open_folder
from vitreous.data.shards.writing.destination import LocalDestination
from vitreous.data.shards.writing.remote_destination import RemoteDestination
from vitreous.data.shards.writing.writer import write_shards
from vitreous.data.sources.opening import open_source
from vitreous.errors import DataError, StoreError, UsageError
from vitreous.train.resume.checkpoint import Checkpoint

pytest.importorskip("s3fs", reason="pip install 'vitreous[remote]': reads s3://")
pytest.importorskip("moto.server", reason="pip install 'moto[s3,server]': an S3 server for tests")

SECRET = "a-very-secret-key"
SHARD = 800  # bytes
GREY = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))


@pytest.fixture(scope="module")
def server():
    """The faults of a server, which the environment names; pauses are a hundredth of the real ones."""
    with s3_server() as (address, faults), pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        patch.setattr(requests, "_PAUSE", 0.0002)
        yield faults


@pytest.fixture
def faults(server, tmp_path, monkeypatch):
    """The faults of the server, none to begin with, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_folder.cache_clear()
    server.__init__()
    return server


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """50 digits in two classes."""
    root = tmp_path_factory.mktemp("photos") / "photos"
    for n, pixels in enumerate(load_digits().images[:50]):
        (root / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype("uint8")).save(root / "ab"[n % 2] / f"{n}.png")
    return root


@pytest.fixture(scope="module")
def bucket(server, photos) -> str:
    """Shards of about 7 images each in the store."""
    import boto3

    boto3.client("s3").create_bucket(Bucket="photos")
    write_shards(DataConfig(str(photos)), RemoteDestination("s3://photos/shards"), shard_bytes=SHARD)
    return "s3://photos/shards"


def loaders(data, workers=0, batch=0, shuffle_shards=3):
    module = ImageDataModule(data, GREY, batch_size=8, memory_gb=0, workers=workers, shuffle_shards=shuffle_shards)
    module.train_sampler.seek(0, batch)
    return module.train_dataloader()


def test_the_store_has_what_a_folder_would_have(bucket, faults, photos, tmp_path):
    write_shards(DataConfig(str(photos)), LocalDestination(tmp_path / "s"), shard_bytes=SHARD)
    folder = RemoteFolder(bucket, 0)
    assert {name: folder.store.read_whole(name) for name in folder.files()} == {
        path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()
    }
    one, other = open_source(DataConfig(str(photos))), open_source(DataConfig(bucket))
    assert (one.order, one.held_out) == (other.order, other.held_out)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_faulty_store_gives_every_image_once_and_whole(bucket, faults, photos, workers):
    data, local = open_source(DataConfig(bucket)), open_source(DataConfig(str(photos)))
    faults.refuse, faults.cut, faults.slow, faults.seconds = 20, 9, 11, 0.02
    seen = []
    for batch in loaders(data, workers):
        for image, index in zip(batch["images"].numpy(), batch["index"].tolist(), strict=True):
            assert np.array_equal(image[0], np.asarray(local.splits["train"].image(index).convert("L")))
            seen.append(index)
    assert len(seen) == len(set(seen)) == 40


def test_a_resumed_epoch_asks_for_its_own_images_only(bucket, faults):
    data = open_source(DataConfig(bucket, cache_gb=0))
    for batch in (0, 4):
        before = len(faults.requests)
        next(iter(loaders(data, batch=batch)))
        assert len(faults.requests) - before <= 8


def test_the_cache_holds_whole_shards_and_no_more_than_its_limit(bucket, faults, tmp_path):
    biggest = max(RemoteFolder(bucket, 0).files().values())
    data = open_source(DataConfig(bucket, cache_gb=3.5 * biggest / 2**30))
    assert data.notes[0].startswith("a cache of ")
    assert "has no room for the" in data.notes[0]
    containers = {id(path.container): path.container for path in data.splits["train"].paths}
    for file in containers.values():
        file.folder.cache._fetch(file)
        kept = [path for path in (tmp_path / "cache/vitreous/shards").iterdir() if path.suffix != ".lock"]
        assert sum(path.stat().st_size for path in kept) <= 3.5 * biggest
        assert file.cache_key in {path.name for path in kept}
    assert len(kept) >= 3
    for path in kept:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    last = [path for path in data.splits["train"].paths if path.container is file]
    before = len(faults.requests)
    assert all(len(path.read()) == path.length for path in last)
    assert len(faults.requests) == before


def test_what_fails_every_time_is_named_with_its_key(bucket, faults, tmp_path, capsys):
    data = open_source(DataConfig(bucket, cache_gb=0))
    image = data.splits["val"].paths[0]
    faults.refuse_all = image.container.file
    with pytest.raises(StoreError, match=f"{image.container.name} failed 8 times") as caught:
        image.read()
    assert SECRET not in str(caught.value)
    with pytest.raises(StoreError, match=r"photos/nothing.*is not there"):
        RemoteFolder("s3://photos/nothing", 0).store.read("x.tar", 0, 10)
    with pytest.raises(DataError, match="empty or not there"):
        open_source(DataConfig("s3://photos/nothing"))
    assert main(["audit", bucket, "--cache-size", "0"]) == 1  # whose threads read for processes
    assert f"{image.container.name} failed 8 times" in capsys.readouterr().err


def test_an_interrupted_upload_goes_on(faults, photos, monkeypatch, bucket):
    class Killed(BaseException):
        """Stands for the end of the process."""

    recorded = []

    def record(self, shard, digest, original=RemoteDestination.record):
        if len(recorded) == 2:
            raise Killed
        original(self, shard, digest)
        recorded.append(shard.file)

    monkeypatch.setattr(RemoteDestination, "record", record)
    with pytest.raises(Killed):
        write_shards(DataConfig(str(photos)), RemoteDestination(f"{bucket}-2"), shard_bytes=SHARD, workers=1)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)  # without a place for a cache
    faults.refuse = 20
    assert write_shards(DataConfig(str(photos)), RemoteDestination(f"{bucket}-2"), shard_bytes=SHARD).kept == 2
    one, other = RemoteFolder(bucket, 0), RemoteFolder(f"{bucket}-2", 0)
    assert one.files() == other.files()
    assert one.read_index() == other.read_index()
    with pytest.raises(UsageError, match="--overwrite"):
        write_shards(DataConfig(str(photos)), RemoteDestination(bucket))


def test_a_run_writes_no_credentials(bucket, faults, runs, tmp_path):
    _, said = runs.train(runs.config(tmp_path / "run", epochs=1, batch_size=20, data=DataConfig(bucket)))
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(bucket.encode() in path.read_bytes() for path in written)
    assert not any(SECRET.encode() in path.read_bytes() for path in written)
    assert SECRET not in said


def test_a_run_whose_store_fails_saves_its_state_and_goes_on(bucket, faults, runs, tmp_path, monkeypatch):
    data = DataConfig(bucket, memory_gb=0.0, workers=0, cache_gb=0)
    asked = runs.config(tmp_path / "run", epochs=1, batch_size=8, data=data)

    def fail_from_here(self, trainer, *rest, original=Checkpoint.on_train_batch_end):
        original(self, trainer, *rest)
        if trainer.global_step == 2:
            faults.refuse_all = ".tar"

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "on_train_batch_end", fail_from_here)
        with pytest.raises(StoreError, match="failed 8 times"):
            runs.train(asked)
    faults.refuse_all = ""
    _, said = runs.train(asked, resume=True)
    assert "epoch 1, step 2" in said


def test_images_in_folders_of_a_store_are_labelled_and_packed(faults, photos, bucket, tmp_path, capsys):
    source = store.Store(f"{bucket}-loose")
    for path in sorted(photos.rglob("*.png"))[::10]:
        source.write(path.relative_to(photos).as_posix(), path)
    source.write_bytes("readme.txt", b"not an image")
    data = open_source(DataConfig(f"{bucket}-loose"), hold_out=False)
    assert data.classes == ("a", "b")
    assert len(data.splits["all"]) == 5
    assert data.notes[0] == "1 file ignored, not images (first: readme.txt)"
    assert main(["shard", f"{bucket}-loose", str(tmp_path / "s")]) == 0
    assert open_source(DataConfig(str(tmp_path / "s")), hold_out=False).fingerprint == data.fingerprint
    assert len(json.loads((tmp_path / "s" / "index.json").read_text())["shards"]) == 2
