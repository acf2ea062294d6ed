"""Hub ids, with the real hub client and a local server: downloaded once, then from the cache, then offline."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import hub_loading
import pytest
import torch
from hub_loading import loaded
from hub_server import Hub, serving, without_pauses

from vitreous.accelerate.model import create
from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.hub import fetch
from vitreous.checkpoint.locating import locate
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.checkpoint.pretrained import ROWS
from vitreous.data.config import DataConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import open_source
from vitreous.errors import CheckpointError
from vitreous.files.shell import shell_line
from vitreous.train.advice import few_images
from vitreous.train.config import RunConfig


@pytest.fixture(scope="module")
def repositories(tmp_path_factory) -> Path:
    """Create hub repositories with one model in each family's format."""
    root = tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)
    model = create("mu/16", num_classes=3, image_size=32, head={"zero": False})
    half = PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(root / "own.safetensors", model, ModelInfo(("a", "b", "c"), EvalPipeline((32, 32), 3, half)))
    for owner in ("timm", "google", "me", "pickles"):
        (root / owner).mkdir()
    convert(root / "own.safetensors", root / "timm/vit_mu_patch16_32.augreg_in1k", "timm")
    convert(root / "own.safetensors", root / "google/vit-mu-patch16-32", "huggingface")
    (root / "me/own").mkdir()
    shutil.copy(root / "own.safetensors", root / "me/own/model.safetensors")
    shutil.copy(root / "own.safetensors", root / "google/vit-mu-patch16-32/tf_model.h5")  # not to be fetched
    (root / "pickles/only").mkdir()
    (root / "pickles/only/flax_model.msgpack").write_bytes(b"x")
    return root


@pytest.fixture
def at_hub(tmp_path, monkeypatch):
    """Let the hub client of this process ask a server, online, with an empty cache in the folder of the test."""
    from huggingface_hub import constants

    def at(hub: Hub) -> None:
        files = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + files)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))  # as HF_HOME places it
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        without_pauses(monkeypatch)

    return at


def loaded_offline(names, home: Path) -> list[dict[str, object]]:
    """Do the same in a fresh process that is told by variables, which the hub client reads when it is imported."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    run = subprocess.run(
        [sys.executable, hub_loading.__file__, *names],
        env=clean | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return json.loads(run.stdout)


def test_model_name_without_owner_suggests_the_full_id():
    for name, whole in (
        ("vit_small_patch16_224", "timm/vit_small_patch16_224.augreg_in21k_ft_in1k"),
        ("vit_tiny_patch16_384.augreg_in21k", "timm/vit_tiny_patch16_384.augreg_in21k"),
        ("vit-base-patch16-224", "google/vit-base-patch16-224"),
    ):
        with pytest.raises(CheckpointError, match=f"Did you mean the hub's '{whole}'\\?.*otherwise give a local file"):
            locate(name)
    with pytest.raises(CheckpointError) as caught:
        locate("no_such_model")
    assert "hub" not in str(caught.value)


def test_suggested_finetuning_command_works(flowers, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://localhost:9")  # there is a way to it
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    model = create("mu/16", num_classes=3, image_size=32, head={"zero": False})
    half = PreprocessConfig(mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(tmp_path / "own.safetensors", model, ModelInfo(("a", "b", "c"), EvalPipeline((32, 32), 3, half)))
    convert(tmp_path / "own.safetensors", tmp_path / "own", "timm")
    for row in ROWS:  # whichever suits this machine
        shutil.copytree(tmp_path / "own", tmp_path / "hub" / row.hub_id)
    for label in ("daisy", "tulips"):
        (tmp_path / "few photos" / label).mkdir(parents=True)
        for path in sorted((flowers / "train" / label).glob("*.jpg"))[:12]:
            shutil.copy(path, tmp_path / "few photos" / label)
    data = open_source(DataConfig(source=str(tmp_path / "few photos")))
    setup = SimpleNamespace(data=data, pretrained=None, config=RunConfig(data=DataConfig(source="few photos")))
    command = shell_line(list(few_images(setup))[-1])
    with serving(tmp_path / "hub") as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        environment["HF_HUB_OFFLINE"] = "0"  # other tests in this process go offline
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env={**os.environ, **environment, "PATH": path},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.match(r"start     \S+: timm/\S+@[0-9a-f]{40}, ", done.stdout)
    assert " (timm), 3 classes -> 2, 32 -> 224 px" in done.stdout
    assert (tmp_path / "runs/few-photos-1/model.safetensors").exists()


def test_download_cache_and_offline(repositories, at_hub, tmp_path, capfd):
    names = ["timm/vit_mu_patch16_32.augreg_in1k", "hf-hub:google/vit-mu-patch16-32@main", "me/own"]
    bad = ["timm/none", "me/own@nowhere", "pickles/only"]
    with serving(repositories) as hub:
        at_hub(hub)
        found, said = loaded([*names, *bad]), capfd.readouterr().err
        first = list(hub.asked)
        again = loaded(names)
        fetched_again = [line for line in hub.asked[len(first) :] if line.startswith("GET") and "/resolve/" in line]
    sums = [each["sum"] for each in found[:3]]
    assert [each["width"] for each in found[:3]] == [32, 32, 32]
    assert max(sums) - min(sums) < 1e-4
    assert "%|" in said  # a progress bar
    assert not any("tf_model.h5" in line for line in first)
    assert [each["sum"] for each in again] == sums
    assert fetched_again == []
    assert all("the hub has no model" in each["error"] for each in found[3:5])
    assert "no weights that can be read" in found[5]["error"]
    assert "flax_model.msgpack" in found[5]["error"]
    names[1] = "google/vit-mu-patch16-32"
    gone = loaded([*names, "timm/other"])  # the server is down now
    assert [each["sum"] for each in gone[:3]] == sums
    assert "cannot be reached" in gone[3]["error"]
    assert "go online and run the command again, or put the weights and config.json of" in gone[3]["error"]
    offline = loaded_offline([*names, "timm/other"], tmp_path)
    assert [each["sum"] for each in offline[:3]] == sums
    assert "HF_HUB_OFFLINE is set" in offline[3]["error"]
    assert all(each.get("kind", "CheckpointError") == "CheckpointError" for each in (*found, *gone, *offline))


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, "GatedRepo", "is gated: accept its conditions at"),
        (403, "GatedRepo", "is gated: accept its conditions at"),
        (401, "RepoNotFound", "the hub has no model 'me/own' that you may read: check the id, or log in"),
        (401, "", "the hub has no model 'me/own' that you may read: check the id, or log in"),
        (500, "", "the hub answered with an error: HfHubHTTPError"),
        (503, "", "go online and run the command again, or put the weights and config.json of"),
        (429, "", "the hub answered with an error: HfHubHTTPError"),
    ],
)
def test_errors_of_the_hub(repositories, at_hub, status, code, message):
    with serving(repositories) as hub:
        at_hub(hub)
        hub.failing["me/own"] = (status, code)
        with pytest.raises(CheckpointError) as caught:
            fetch("me/own")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_interrupted_download_is_an_error_and_can_be_repeated(repositories, at_hub):
    with serving(repositories) as hub:
        at_hub(hub)
        hub.cut = True
        (broken,) = loaded(["me/own"])
        hub.cut = False
        (whole,) = loaded(["me/own"])
    assert broken["kind"] == "CheckpointError"
    assert whole["width"] == 32


def test_a_server_that_cannot_resume_is_given_up(repositories, at_hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)  # some bytes come before each break
    monkeypatch.setattr("vitreous.checkpoint.broken_downloads._MOST_BREAKS", 2)
    with serving(repositories) as hub:
        at_hub(hub)
        hub.cut = True
        (broken,) = loaded(["me/own"])
        assert "the connection broke off 3 times, each time after 0.0" in broken["error"]
        assert not list(tmp_path.rglob("*.incomplete"))
        hub.resumes = True
        (whole,) = loaded(["me/own"])  # each request brings half of what is left
    assert whole["width"] == 32
    weights = [line for line in hub.asked if line.startswith("GET") and line.endswith("model.safetensors")]
    assert len(weights) > 4


def test_what_a_killed_download_left_is_removed_by_the_next(repositories, at_hub, tmp_path):
    filelock = pytest.importorskip("filelock")
    model = tmp_path / "hub" / "models--me--own"
    killed, running = (model / "blobs" / f"{name * 32}.0a1b2c3d.incomplete" for name in ("ab", "cd"))
    killed.parent.mkdir(parents=True)
    killed.write_bytes(b"half")
    running.write_bytes(b"half")
    locks = tmp_path / "hub" / ".locks" / model.name
    locks.mkdir(parents=True)
    with serving(repositories) as hub, filelock.FileLock(locks / f"{'cd' * 32}.lock"):
        at_hub(hub)
        fetch("me/own")
        assert not killed.exists()
        assert running.exists()  # of a process that still holds the lock


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_download_and_leaves_nothing_partial(repositories, tmp_path, number, code):
    home = tmp_path / "home"
    with serving(repositories) as hub:
        hub.slow = True
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        environment = clean | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [sys.executable, "-m", "vitreous.cli.main", "convert", "me/own", "own.safetensors", "--to=vitreous"]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as running:
            until = time.monotonic() + 60
            while not any(home.rglob("*.incomplete")) and time.monotonic() < until:
                time.sleep(0.05)
            assert list(home.rglob("*.incomplete")), "the download has not begun"
            running.send_signal(number)
            running.communicate(timeout=10)
    assert running.returncode == code
    assert not list(home.rglob("*.incomplete"))
    assert not (tmp_path / "own.safetensors").exists()


def test_corrupted_download_is_detected(repositories, at_hub):
    with serving(repositories) as hub:
        at_hub(hub)
        hub.spoil = True
        (found,) = loaded(["me/own"])
    assert "is damaged: its SHA-256 is" in found["error"]
