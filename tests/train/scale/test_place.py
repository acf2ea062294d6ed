"""The place of a process is what torchrun, SLURM, Kubernetes and our launcher say."""

from __future__ import annotations

import pytest

from vitreous.errors import UsageError
from vitreous.train.scale.launch import exit_code, launch_or_join, rank_environment
from vitreous.train.scale.place import STARTED, Place, find_place, is_rank

SLURM = {"SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_NODEID": "1", "SLURM_JOB_ID": "31234"}


def test_one_machine_starts_its_processes() -> None:
    assert find_place(4, 1, {}) == Place(4, 1, 0, "127.0.0.1", 0)


def test_a_started_process_finds_its_place_again() -> None:
    place = Place(4, 3, 2, "gpu01", 29_400)
    environment = rank_environment(place, 29_400, 3)
    found = find_place(4, 3, environment)
    assert is_rank(environment)
    assert found == find_place(1, 1, environment)  # as under torchrun, without --devices
    assert (found.rank, found.world, found.local_rank, found.node) == (11, 12, 3, 2)
    assert (found.address, found.port) == ("gpu01", 29_400)
    assert found.launched is None
    assert find_place(4, 3, environment | {STARTED: "61500"}).launched == 61.5


def test_one_process_alone_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in rank_environment(Place(1, 1, 0, "127.0.0.1", 1), 1, 0).items():
        monkeypatch.setenv(name, value)
    assert launch_or_join(["train"], 1, 1, started=0.0) == (None, None)
    code, place = launch_or_join(["train"], 1, 1, started=0.0, joins=True)  # as a model that is sharded
    assert place is not None
    assert (code, place.world, place.rank, place.local_rank, place.port > 0) == (None, 1, 0, 0, True)


@pytest.mark.parametrize(
    ("hosts", "first"), [("gpu[03-07,12],cpu1", "gpu03"), ("a1,a2", "a1"), ("n7", "n7"), ("rack2-[5,9]", "rack2-5")]
)
def test_slurm_with_a_task_per_process(hosts: str, first: str) -> None:
    place = find_place(4, 2, SLURM | {"SLURM_NTASKS": "8", "SLURM_NODELIST": hosts})
    assert place == Place(4, 2, 1, first, 16_234, local_rank=2)
    assert place.rank == 6


def test_slurm_with_a_task_per_machine() -> None:
    place = find_place(4, 2, SLURM | {"SLURM_NTASKS": "2", "SLURM_NODELIST": "a[1-2]", "MASTER_PORT": "7"})
    assert place == Place(4, 2, 1, "a1", 7)


@pytest.mark.parametrize("name", ["NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "RANK"])
def test_kubernetes_says_which_machine_this_is(name: str) -> None:
    assert find_place(2, 3, {name: "2", "MASTER_ADDR": "train-0"}) == Place(2, 3, 2, "train-0", 29_400)
    assert find_place(1, 3, {name: "1", "PET_MASTER_ADDR": "t", "PET_MASTER_PORT": "9"}).rank == 1


@pytest.mark.parametrize(
    ("devices", "nodes", "environment", "message"),
    [
        (4, 2, {}, "nodes 2 needs to know which machine this is: set NODE_RANK and MASTER_ADDR"),
        (4, 2, {"NODE_RANK": "1"}, "set MASTER_ADDR"),
        (4, 2, {"NODE_RANK": "2", "MASTER_ADDR": "a"}, "this is machine 2, but nodes is 2"),
        (4, 1, rank_environment(Place(2, 1, 0, "a", 1), 1, 0), "are 4 processes, but WORLD_SIZE is 2"),
        (4, 2, SLURM | {"SLURM_NTASKS": "3"}, "are 8 processes, but srun has started 3 tasks"),
    ],
)
def test_contradictions_are_usage_errors(devices: int, nodes: int, environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_place(devices, nodes, environment)


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, 0], 0), ([143, 143], 143), ([0, 1], 1), ([-9, 1], 1), ([1, -9], 1), ([-9, -9], 1), ([2, 1], 2)],
)
def test_the_exit_code_is_that_of_a_process_which_failed(codes: list[int], code: int) -> None:
    assert exit_code(codes) == code
