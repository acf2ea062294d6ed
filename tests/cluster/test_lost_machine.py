"""A cluster of two machines, both on this one, that loses the second in the middle of a run: one process goes on."""

from __future__ import annotations

import csv
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_on_ray import TINY, parent_of

from vitreous.cli.main import main

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that computes nothing, and two machines with a processor each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_a_run_goes_on_with_fewer_processes(cluster: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, lost = tmp_path / "run", list[Any]()

    def lose_the_machine_of_process_1() -> None:
        member = run / "ranks" / "1.json"
        while not ((run / "metrics.csv").exists() and member.exists()):
            time.sleep(0.05)
        worker = parent_of(parent_of(json.loads(member.read_text())["pid"]))
        (machine,) = (
            node
            for node in cluster.worker_nodes
            if parent_of(worker) in [each.process.pid for each in node.all_processes["raylet"]]
        )
        lost.append(machine)
        cluster.remove_node(machine, allow_graceful=False)

    thread = threading.Thread(target=lose_the_machine_of_process_1, daemon=True)
    thread.start()
    words = ["train", "digits", *TINY, "--epochs", "20", "--devices", "2", "--out", str(run), "--on", "ray://auto"]
    assert main(words) == 0
    thread.join(1)
    errors = capfd.readouterr().err
    assert lost
    assert "a worker was lost: the run continues in 1 process" in errors
    with (run / "metrics.csv").open(newline="") as file:
        assert [int(row["epoch"]) for row in csv.DictReader(file)] == list(range(1, 21))
    assert (run / "report.json").exists()
