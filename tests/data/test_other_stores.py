"""gs://, az:// and hf:// against a server of each on loopback that refuses, delays and cuts off answers."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from store_servers import az_server, gs_server, hf_server

from vitreous.cli.main import main
from vitreous.data.batches.data_module import ImageDataModule
from vitreous.data.config import DataConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.shards import requests
from vitreous.data.shards.remote import RemoteFolder, open_folder
from vitreous.data.shards.writing.remote_destination import RemoteDestination
from vitreous.data.shards.writing.writer import write_shards
from vitreous.data.sources.opening import open_source
from vitreous.errors import DataError, StoreError

GREY = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
SERVERS = {"gs": gs_server, "az": az_server, "hf": hf_server}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """30 digits in two classes."""
    root = tmp_path_factory.mktemp("photos") / "photos"
    for n, pixels in enumerate(load_digits().images[:30]):
        (root / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype("uint8")).save(root / "ab"[n % 2] / f"{n}.png")
    return root


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    """Address, secret and faults of a store that the environment names; pauses are a hundredth of the real ones."""
    with SERVERS[request.param]() as (address, environment, secret, faults), pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        if request.param == "hf":  # which reads them when it is imported
            from huggingface_hub import constants

            was, here = constants.ENDPOINT, environment["HF_ENDPOINT"]
            template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(was, here)
            patch.setattr(constants, "ENDPOINT", here)
            patch.setattr(constants, "HF_HUB_OFFLINE", False)  # other tests in this process go offline
            patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(requests, "_PAUSE", 0.0002)
        yield address, secret, faults


@pytest.fixture(scope="module")
def packed(server, photos):
    """The address of shards of about 7 images each in the store."""
    address, _, _ = server
    write_shards(DataConfig(str(photos)), RemoteDestination(f"{address}/shards"), shard_bytes=800)
    return f"{address}/shards"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_folder.cache_clear()


def test_a_faulty_store_gives_every_image_once_and_whole(server, packed, photos):
    faults = server[2]
    data, local = open_source(DataConfig(packed)), open_source(DataConfig(str(photos)))
    assert (data.order, data.held_out) == (local.order, local.held_out)
    before = len(faults.requests)
    faults.refuse, faults.cut, faults.slow, faults.seconds = 20, 9, 11, 0.02
    seen = []
    try:
        module = ImageDataModule(data, GREY, batch_size=8, memory_gb=0, workers=0, shuffle_shards=3)
        for batch in module.train_dataloader():
            for image, index in zip(batch["images"].numpy(), batch["index"].tolist(), strict=True):
                assert np.array_equal(image[0], np.asarray(local.splits["train"].image(index).convert("L")))
                seen.append(index)
    finally:
        faults.__init__()
    assert len(seen) == len(set(seen)) == 24
    assert len(faults.requests) != before


def test_an_object_has_a_version_that_changes_with_it(server):
    store = RemoteFolder(f"{server[0]}/versions", 0).store
    versions = []
    for content in (b"one", b"two"):
        store.write_bytes("object", content)
        assert store.sizes() == {"object": 3}
        assert store.read_whole("object") == content
        versions.append(store.versions["object"])
    assert versions[0]
    assert versions[0] != versions[1]


def test_what_fails_is_named_without_the_credential(server, packed):
    _, secret, faults = server
    folder = RemoteFolder(packed, 0)
    shard = next(name for name in folder.files() if name.endswith(".tar"))
    faults.refuse_all = shard
    try:
        with pytest.raises(StoreError, match=f"{shard} failed [0-9]+ times") as caught:
            folder.store.read(shard, 0, 10)
    finally:
        faults.__init__()
    assert not secret or secret not in str(caught.value)
    with pytest.raises(StoreError, match=r"nothing\.tar is not there"):
        folder.store.read("nothing.tar", 0, 10)
    with pytest.raises(DataError, match="empty or not there"):
        open_source(DataConfig(f"{packed}-of-nobody"))


def test_images_in_folders_are_trained_from_through_the_command(server, photos, tmp_path, capsys):
    address, secret, _ = server
    folder = RemoteFolder(f"{address}/loose", 0)
    for path in sorted(photos.rglob("*.png")):
        folder.store.write(path.relative_to(photos).as_posix(), path)
    words = ["train", f"{address}/loose", "--recipe", "digits", "--epochs", "1", "--out", str(tmp_path / "run")]
    assert main([*words, "--device", "cpu"]) == 0
    said = capsys.readouterr()
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not secret or (secret not in said.out + said.err and not any(secret.encode() in each for each in written))
