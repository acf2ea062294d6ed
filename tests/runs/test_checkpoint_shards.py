"""Checkpoints in shards: what is read is what was written, and a damaged or hostile folder is refused."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from vitreous.errors import CheckpointError, OutputError
from vitreous.runs.shards import open_shards, read_whole, remove_unused, split, write_shards
from vitreous.runs.state_file import read_state, write_state

NAME = "shards-0123abcd-1"


@pytest.fixture(scope="module")
def parts() -> Iterator[dict[str, Any]]:
    """A state with sharded tensors, in a group of one process."""
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    mesh, generator = init_device_mesh("cpu", (1,)), torch.Generator().manual_seed(0)

    def part(*shape: int) -> Tensor:
        return distribute_tensor(torch.randn(shape, generator=generator), mesh, [Shard(0)])

    yield {
        "epoch": 3,
        "model": {"a.weight": part(5, 4), "running_mean": torch.ones(3)},
        "best": None,
        "optimizer": {"state": {"0": {"exp_avg": part(5, 4), "step": torch.tensor(7.0)}}, "rates": [0.1]},
    }
    distributed.destroy_process_group()


@pytest.fixture
def saved(parts: dict[str, Any], tmp_path: Path) -> Path:
    content, tensors = split(parts)
    shards = write_shards(tmp_path, NAME, tensors, distributed.group.WORLD)
    write_state(tmp_path / "last.ckpt", {**content, "shards": shards})
    return tmp_path


def test_a_state_is_read_as_it_was_written(parts: dict[str, Any], saved: Path) -> None:
    assert sorted(os.listdir(saved)) == ["last.ckpt", NAME]
    content = read_whole(saved, open_shards(saved, read_state(saved / "last.ckpt")))
    assert content.keys() == parts.keys()
    assert torch.equal(content["model"]["a.weight"], parts["model"]["a.weight"].to_local())
    assert torch.equal(content["model"]["running_mean"], torch.ones(3))
    moments, written = content["optimizer"]["state"]["0"], parts["optimizer"]["state"]["0"]
    assert torch.equal(moments["exp_avg"], written["exp_avg"].to_local())
    assert (moments["step"], content["optimizer"]["rates"], content["epoch"]) == (7, [0.1], 3)


def test_every_changed_byte_and_missing_file_is_noticed(saved: Path) -> None:
    for path in sorted((saved / NAME).iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        with pytest.raises(CheckpointError, match="does not match its checksum"):
            open_shards(saved, read_state(saved / "last.ckpt"))
        path.unlink()
        with pytest.raises(CheckpointError, match="does not have the 2 files"):
            open_shards(saved, read_state(saved / "last.ckpt"))
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["../elsewhere", "shards-0123abcd-1/..", "/etc", "shards-0123abcd-9"])
def test_a_folder_outside_the_run_is_refused(saved: Path, name: str) -> None:
    content = read_state(saved / "last.ckpt")
    content["shards"]["folder"] = name
    with pytest.raises(CheckpointError, match=r"name the folder|does not have"):
        open_shards(saved, content)


class _Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch hostile",)


def test_a_table_of_contents_runs_no_code(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved)
    content = open_shards(saved, read_state(saved / "last.ckpt"))
    (saved / NAME / ".metadata").write_bytes(pickle.dumps(_Hostile()))  # with a checksum that fits
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_whole(saved, content)
    assert not (saved / "hostile").exists()


def test_folders_that_no_checkpoint_names_are_removed(saved: Path) -> None:
    for name in ("shards-0123abcd-2", "shards-of-mine"):
        (saved / name).mkdir()
    remove_unused(saved, (saved / "last.ckpt", saved / "previous.ckpt"))
    assert sorted(os.listdir(saved)) == ["last.ckpt", NAME, "shards-of-mine"]


def test_a_full_disk_leaves_no_folder(parts: dict[str, Any], tmp_path: Path) -> None:
    tmp_path.joinpath(f".{NAME}.tmp").write_text("")  # in the place of the folder, so that no file can be written
    with pytest.raises(OutputError, match=rf"cannot write '.*{NAME}': .*Free some space"):
        write_shards(tmp_path, NAME, split(parts)[1], distributed.group.WORLD)
    assert not (tmp_path / NAME).exists()
