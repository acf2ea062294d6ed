"""From a folder to a classifier in one command through a hub on this machine, and every way in which that can break."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from hub_server import COMMIT, serving
from PIL import Image
from test_pretrained import at_home, publish

from vitreous.checkpoint.hub import answers, fetch, is_reachable
from vitreous.checkpoint.licence import recorded_licence
from vitreous.checkpoint.model_file import load_model
from vitreous.checkpoint.pretrained import find_row

ROW = find_row("dinov2-s")
RUN = ("--no-probe", "--steps=1", "--batch-size=4", "--device=cpu", "--precision=float32", "--out=run")
NOWHERE = "http://127.0.0.1:9"  # the port of the discard service, which nobody runs


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A hub with the row that the choice falls on."""
    root = tmp_path_factory.mktemp("hub")
    publish(ROW, root / ROW.hub_id)
    return root


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Twelve images of two classes, on a machine whose measured speed leads to ``ROW``."""
    generator = np.random.default_rng(0)
    for label in ("left", "right"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for n in range(6):
            pixels = generator.integers(0, 256, (130, 130, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{n}.png")
    monkeypatch.setattr("vitreous.train.finetune.starting_point.training_rate", lambda device, precision: 2e8)
    return tmp_path / "images"


def large_files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 100_000]


def test_one_command_from_a_folder_to_a_classifier(vitreous, folder, published, tmp_path, monkeypatch):
    with serving(published) as server:
        at_home(monkeypatch, server.url, tmp_path / "cache")
        done = vitreous("finetune", "images", *RUN)
        assert done.returncode == 0, done.stderr
        assert "%|" in done.stderr  # the progress bar of the download
        assert any(ROW.revision in line for line in server.asked)
    assert done.stdout.startswith(
        f"start     dinov2-s: {ROW.full_id}, 22.1 M parameters, Apache-2.0, 88 MB to download"
    )
    assert "best linear probe that this machine trains within half an hour; dinov2-g" in done.stdout
    assert "licence   Apache-2.0: commercial use allowed" in done.stdout
    network, info = load_model(tmp_path / "run")
    assert network.config.image_size == 224  # not the 518 that the file has
    assert recorded_licence(info.provenance) == "Apache-2.0"
    assert info.provenance["finetuned_from"]["commit"] == ROW.revision
    assert f'source: "{ROW.full_id}"' in (tmp_path / "run" / "recipe.yaml").read_text()
    at_home(monkeypatch, NOWHERE, tmp_path / "cache")
    again = vitreous("finetune", "images", "--from", "dinov2-s", *RUN[:-1], "--out=again")  # offline, from the cache
    assert again.returncode == 0, again.stderr
    said = vitreous("convert", "run", "copy", "--to", "vitreous")
    assert "licence Apache-2.0" in said.stderr + said.stdout


def test_a_download_without_a_card_states_no_licence_and_the_run_says_so(
    vitreous, folder, published, tmp_path, monkeypatch
):
    shutil.copytree(published / ROW.hub_id, tmp_path / "hub" / "someone" / "vit")
    (tmp_path / "hub" / "someone" / "vit" / "README.md").unlink()
    with serving(tmp_path / "hub") as server:
        at_home(monkeypatch, server.url, tmp_path / "cache")
        done = vitreous("finetune", "images", "--from", "someone/vit", "--model.image_size=28", *RUN)
        assert done.returncode == 0, done.stderr
        taught = vitreous("train", "images", "--start=none", "--teacher=someone/vit", *RUN[1:-1], "--out=taught")
    assert load_model(tmp_path / "run")[1].provenance["finetuned_from"]["commit"] == COMMIT
    assert "licence   not stated: ask the authors before you use or share the model" in done.stdout
    assert "licence   of the teacher: not stated: ask the authors" in taught.stdout, taught.stderr


def test_a_connection_that_breaks_off_leaves_nothing(vitreous, folder, published, tmp_path, monkeypatch):
    with serving(published) as server:
        server.cut = True
        at_home(monkeypatch, server.url, tmp_path / "cache")
        done = vitreous("finetune", "images", *RUN)
    assert done.returncode == 1
    assert "the download broke off before the weights were whole" in done.stderr.splitlines()[-1]
    assert "run the command again" in done.stderr.splitlines()[-1]
    assert large_files(tmp_path / "cache") == []
    assert not (tmp_path / "run").exists()


def test_a_wrong_checksum_leaves_nothing_and_the_next_download_is_new(
    vitreous, folder, published, tmp_path, monkeypatch
):
    with serving(published) as server:
        server.spoil = True
        at_home(monkeypatch, server.url, tmp_path / "cache")
        done = vitreous("finetune", "images", *RUN)
        assert done.returncode == 1
        assert "is damaged: its SHA-256 is" in done.stderr.splitlines()[-1]
        assert large_files(tmp_path / "cache") == []
        assert not (tmp_path / "run").exists()
        server.spoil = False
        assert vitreous("finetune", "images", *RUN).returncode == 0


def test_without_a_network_one_line_says_which_file_to_put_where(vitreous, folder, published, tmp_path, monkeypatch):
    from huggingface_hub import constants

    at_home(monkeypatch, NOWHERE, tmp_path / "cache")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    done = vitreous("finetune", "images", *RUN)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    place = tmp_path / "cache" / f"models--{ROW.hub_id.replace('/', '--')}" / "snapshots" / ROW.revision
    page = f"{NOWHERE}/{ROW.hub_id}/tree/{ROW.revision}"
    assert f"put model.safetensors and config.json of {page}, with preprocessor_config.json and README.md" in line
    assert f"into {place}/" in line
    assert "--from shipped" in done.stdout
    assert not (tmp_path / "run").exists()
    assert not is_reachable()
    shutil.copytree(published / ROW.hub_id, place)
    done = vitreous("finetune", "images", *RUN, "--json=result.json")
    assert done.returncode == 0, done.stderr
    assert "in the cache" in done.stdout
    assert "--from shipped" not in done.stdout
    assert json.loads((tmp_path / "result.json").read_text())["exit_code"] == 0


def test_a_refused_connection_and_an_empty_cache_leave_nothing(vitreous, folder, tmp_path, monkeypatch):
    at_home(monkeypatch, NOWHERE, tmp_path / "cache")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for words in ((), ("--from", "dinov2-s")):
        done = vitreous("finetune", "images", *words, *RUN)
        assert done.returncode == 1
        assert "put model.safetensors and config.json of " in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
        assert ("--from shipped" in done.stdout) == (not words)
    assert large_files(tmp_path / "cache") == []
    assert not (tmp_path / "run").exists()


def shared(cache: Path) -> Path:
    """Move the weights where the client keeps those that it checks by Xet, once for all repositories; return them."""
    blob = next(path for path in large_files(cache) if len(path.name) == 64)
    content = cache / "blobs" / "ab" / ("ab" * 32)  # another hash than SHA-256
    content.parent.mkdir(parents=True)
    blob.rename(content)
    blob.symlink_to(os.path.relpath(content, blob.parent))
    return content


def test_weights_that_the_client_shares_between_repositories_are_known_by_their_own_hash(
    vitreous, folder, published, tmp_path, monkeypatch
):
    words = ("finetune", "images", "--from", "dinov2-s", *RUN[:-1])
    with serving(published) as server:
        at_home(monkeypatch, server.url, tmp_path / "cache")
        assert vitreous(*words, "--out=first").returncode == 0
        content = shared(tmp_path / "cache")
        again = vitreous(*words, "--out=again")
        assert again.returncode == 0, again.stderr
        with content.open("r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            stream.write(b"?")
        at_home(monkeypatch, NOWHERE, tmp_path / "cache")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        damaged = vitreous(*words, "--out=damaged")
        assert damaged.returncode == 1
        assert "is damaged: its SHA-256 is" in damaged.stderr.splitlines()[-1]
        assert not content.exists()
        at_home(monkeypatch, server.url, tmp_path / "cache")
        assert vitreous(*words, "--out=anew").returncode == 0


def test_documents_that_another_program_left_out_are_fetched(published, tmp_path, monkeypatch):
    shutil.copytree(published / ROW.hub_id, tmp_path / "hub" / "someone" / "vit")
    (tmp_path / "hub" / "someone" / "vit" / "preprocessor_config.json").write_text("{}")
    name = f"someone/vit@{COMMIT}"
    with serving(tmp_path / "hub") as server:
        at_home(monkeypatch, server.url, tmp_path / "cache")
        place = fetch(name)
        for document in ("README.md", "preprocessor_config.json"):
            (place / document).unlink()
        at_home(monkeypatch, NOWHERE, tmp_path / "cache")
        assert sorted(path.name for path in fetch(name).iterdir()) == ["config.json", "model.safetensors"]
        at_home(monkeypatch, server.url, tmp_path / "cache")
        assert len(list(fetch(name).iterdir())) == 4
        (place / "README.md").unlink()
        (tmp_path / "hub" / "someone" / "vit" / "README.md").unlink()
        assert len(list(fetch(name).iterdir())) == 3
        server.asked.clear()
        assert len(list(fetch(name).iterdir())) == 3
        assert server.asked == []  # the client has noted what does not exist


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_is_named(vitreous, folder, published, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir(mode=0o500)
    with serving(published) as server:
        at_home(monkeypatch, server.url, tmp_path / "cache")
        done = vitreous("finetune", "images", *RUN)
    assert done.returncode == 1
    assert "the cache cannot be written to: Permission denied (HF_HOME names another folder)" in done.stderr


def test_a_choice_is_not_made_twice_for_one_run(vitreous, folder, published, tmp_path, monkeypatch):
    words, folder = ("finetune", "images", "--resume", *RUN[:-1]), tmp_path / "runs" / "images-1"
    with serving(published) as server:
        at_home(monkeypatch, server.url, tmp_path / "cache")
        assert vitreous(*words).returncode == 0  # nothing to resume: it starts
    monkeypatch.setattr("vitreous.train.finetune.starting_point.choose", lambda *_: pytest.fail("chosen again"))
    at_home(monkeypatch, NOWHERE, tmp_path / "cache")
    (folder / "report.json").unlink()  # as if it was killed before the report
    resumed = vitreous(*words)
    assert resumed.returncode == 0, resumed.stderr
    assert "resume" in resumed.stdout
    assert (folder / "report.json").exists()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["images-1"]


def test_a_hub_that_does_not_answer_is_out_of_reach(monkeypatch):
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # other tests ask for it when they load
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert not answers()
        taken.listen()
        assert answers()
        monkeypatch.setenv("http_proxy", "http://proxy.invalid")
        taken.close()
        assert answers()
