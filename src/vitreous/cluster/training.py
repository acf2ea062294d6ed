"""A training on a Ray cluster: Ray Train keeps the workers alive, and their processes are those of train/scale."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.cluster.address import cluster_resources, connect
from vitreous.cluster.board import Board, BoardActor
from vitreous.cluster.member import Task, keep_process
from vitreous.cluster.signals import collected_signals
from vitreous.errors import TrainingError, UsageError, first_line
from vitreous.runs.folder import choose_run_dir
from vitreous.train.scale.launch import exit_code

if TYPE_CHECKING:
    from vitreous.train.config import RunConfig

__all__ = ["train_on"]

_POLL = 0.25  # seconds
_MAX_LOSSES = 10  # of workers, after which a run ends: whatever kills them may be the run itself


def train_on(address: str, words: Sequence[str], config: RunConfig, *, resume: bool) -> int:
    """Run a training on a cluster to its end, through lost workers, and return its exit code.

    Args:
        address: The cluster.
        words: Verb and arguments, without ``--on``.
        config: What they mean.
        resume: Whether they have ``--resume``.

    Raises:
        TrainingError: If workers are lost again and again, or cannot begin.
    """
    world = config.devices * config.nodes
    ray = connect(address, world)
    _, cores, gpus = cluster_resources(ray)
    if config.device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device is {config.device}, but Ray chooses the GPU of each worker: use auto, cpu or cuda")
    if config.device == "cuda" and not gpus:
        raise UsageError("device is cuda, but the cluster has no GPU: omit --device, or add machines with GPUs")
    on_gpu = gpus > 0 and config.device != "cpu"
    words, run_dir = _with_run_dir(words, config, resume)
    board = Board(ray, ray.remote(num_cpus=0)(BoardActor).remote())
    task = Task(words, os.getcwd(), board.actor, on_gpu)
    scratch = run_dir.absolute().with_name(f".{run_dir.name}.ray")
    each = {"CPU": max(1, cores // world), **({"GPU": 1} if on_gpu else {})}
    # From one worker up: after a machine is lost, Ray Train continues with those that there are.
    scaling: dict[str, Any] = {"num_workers": (1, world), "use_gpu": on_gpu, "resources_per_worker": each}
    try:
        fit = ray.remote(num_cpus=0)(_fit).remote(task, str(scratch), scaling)
        with collected_signals() as received:
            sent = 0
            ready: list[Any] = []
            while not ready:
                ready, _ = ray.wait([fit], timeout=_POLL)
                for number in received[sent:]:
                    board.send(number)
                    sent += 1
                _print(board)
        error: Exception | None = None
        try:
            ray.get(fit)
        except ray.exceptions.RayError as raised:
            error = raised
        _print(board)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if reason := board.refusal():
        raise TrainingError(reason)
    if error is not None:
        cause = getattr(error, "cause", None) or error
        raise TrainingError(
            f"the run has lost workers {_MAX_LOSSES} times, or they cannot start ({first_line(cause)}): run the same "
            "command with --resume to continue, or give the workers more memory"
        ) from error
    return exit_code(board.codes(0))


def _with_run_dir(words: Sequence[str], config: RunConfig, resume: bool) -> tuple[list[str], Path]:
    """Name a new run directory here: an attempt after a lost worker must find the one of the first attempt."""
    if config.out is not None:
        return [*words], Path(config.out).expanduser()
    source = Path(config.data.source).expanduser()
    if resume:
        return [*words], Path("runs", source.stem)
    run_dir, _ = choose_run_dir(None, source.name if source.is_dir() else source.stem, "", resume=False)
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], "--out", str(run_dir), *words[end:]], run_dir


def _fit(task: Task, scratch: str, scaling: dict[str, Any]) -> None:
    """Have Ray Train run the workers, on the cluster: it starts them again when one is lost, fewer if it must."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    class SharedGpus(Backend):  # type: ignore[misc,unused-ignore]
        """Nothing to set up: the processes of the run form their own group."""

        share_cuda_visible_devices = True

    class SharedGpusConfig(BackendConfig):  # type: ignore[misc,unused-ignore]
        @property
        def backend_cls(self) -> type[Backend]:
            return SharedGpus

    Path(scratch).mkdir(parents=True, exist_ok=True)
    DataParallelTrainer(
        lambda: keep_process(task),
        backend_config=SharedGpusConfig(),
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(name="run", storage_path=scratch, failure_config=FailureConfig(max_failures=_MAX_LOSSES)),
    ).fit()


def _print(board: Board) -> None:
    """Print what the processes have printed."""
    for number, text in board.take():
        stream = sys.stdout if number == 1 else sys.stderr
        stream.write(text.decode("utf-8", "replace"))
        stream.flush()
