"""The option `--on` without a cluster: what is refused before any work, and how a training's words change."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import pytest

from vitreous.cli.main import main
from vitreous.cli.options.cluster import split_on
from vitreous.cluster.address import check_address
from vitreous.cluster.member import _place, _words
from vitreous.errors import MissingExtraError, UsageError

has_ray = importlib.util.find_spec("ray") is not None


@pytest.mark.parametrize(
    "address", ["", "local", "ray://", "ray://host", "ray://host:0", "ray://host:70000", "http://a:1"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"write ray://HOST:PORT"):
        check_address(address)


@pytest.mark.parametrize("verb", ["predict", "embed", "evaluate", "train", "serve"])
def test_without_ray_the_extra_is_named(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else real(name))
    words = {"train": ["digits"], "evaluate": ["m", "digits"], "serve": ["m"]}.get(verb, ["m", str(tmp_path / "a.jpg")])
    output = ["-o", str(tmp_path / "a.csv")] if verb in ("predict", "embed") else []
    assert main([verb, *words, *output, "--on", "ray://local"]) == MissingExtraError.exit_code
    assert "pip install 'vitreous[ray]'" in capsys.readouterr().err


@pytest.mark.skipif(not has_ray, reason="the extra `ray` is not installed")
def test_without_ray_serve_the_extras_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    pytest.importorskip("fastapi", reason="a service needs the extra `serve`")
    pytest.importorskip("prometheus_client", reason="a service needs the extra `serve`")
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "grpc_reflection" else real(name))
    assert main(["serve", "m", "--on", "ray://local"]) == MissingExtraError.exit_code
    assert "--on needs grpc_reflection: pip install 'vitreous[ray,serve]'" in capsys.readouterr().err


@pytest.mark.skipif(not has_ray, reason="the extra `ray` is not installed")
def test_a_cluster_that_is_not_there_is_named_at_once(capsys) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"ray://127.0.0.1:{probe.getsockname()[1]}"
    assert main(["train", "digits", "--on", address]) == 1
    assert f"no Ray cluster at {address} (" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--workers", "2"], ["--parts", "p"]])
def test_options_of_a_cluster_need_one(option: list[str], capsys) -> None:
    assert main(["predict", "m", "a.jpg", *option]) == 2
    assert f"{option[0]} is for a cluster: give --on too" in capsys.readouterr().err


def test_a_service_on_one_machine_has_no_workers(capsys) -> None:
    assert main(["serve", "m", "--workers", "2"]) == 2
    assert "--workers is for a cluster: give --on too" in capsys.readouterr().err


@pytest.mark.skipif(not has_ray, reason="the extra `ray` is not installed")
def test_options_of_a_socket_are_not_for_a_cluster(capsys) -> None:
    assert main(["serve", "m", "--on", "ray://local", "--max-connections", "10"]) == 2
    assert "--max-connections is 10: with --on the proxies of Ray Serve have the connections" in capsys.readouterr().err


def test_on_is_taken_out_of_the_words_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitreous.cluster.address.check_address", lambda address: None)
    assert split_on(["photos", "--on", "ray://auto", "--seed", "1"]) == ("ray://auto", ["photos", "--seed", "1"])
    assert split_on(["--on=ray://auto", "--", "--on"]) == ("ray://auto", ["--", "--on"])
    assert split_on(["photos"]) == (None, ["photos"])


def test_later_attempts_resume() -> None:
    added = ["--devices", "1", "--nodes", "1"]
    assert _words(["train", "photos"], 1) == ["train", "photos", *added]
    assert _words(["train", "--", "photos"], 2) == ["train", *added, "--resume", "--", "photos"]
    assert _words(["train", "photos", "--resume"], 2) == ["train", "photos", "--resume", *added]


@pytest.mark.parametrize("machines", [(1,), (2,), (2, 2), (2, 1), (1, 2), (3, 1, 2), (1, 2, 1), (2, 1, 1)])
def test_any_layout_of_workers_keeps_their_ranks(machines: tuple[int, ...]) -> None:
    world = sum(machines)
    workers = [(local, each) for each in machines for local in range(each)]
    for rank, (local, each) in enumerate(workers):
        place = _place(rank, world, local, each, ("10.0.0.1", 29_500))
        assert (place.rank, place.world) == (rank, world)
