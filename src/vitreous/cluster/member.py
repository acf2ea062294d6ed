"""One worker of Ray Train: it keeps one process of a run, which is a process as any other command would start it.

The process is not the worker itself, because a run needs signals, its own process group and its own exit code.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from vitreous.cluster.board import Board
from vitreous.errors import TrainingError
from vitreous.machine.cores import num_cores
from vitreous.train.scale.launch import rank_environment
from vitreous.train.scale.place import Place

__all__ = ["LostProcessError", "Task", "keep_process"]

_POLL = 0.25  # seconds
_CHUNK = 1 << 16  # bytes of output that are passed on at a time
_GRACE = 90.0  # seconds that the processes have to end after one has, and that an earlier attempt has to save
_FINAL = (0, 1, 2)  # exit codes by which a run ends for a reason of its own


class LostProcessError(TrainingError):
    """A process of the run is gone, so Ray Train starts all of them again."""


@dataclass(frozen=True)
class Task:
    """What all workers of a run know.

    Attributes:
        words: The arguments of the command.
        folder: Where it was typed.
        board: An actor with a :class:`~vitreous.cluster.board.Board`.
        on_gpu: Whether each worker has a GPU.
    """

    words: Sequence[str]
    folder: str
    board: Any
    on_gpu: bool


def keep_process(task: Task) -> None:
    """Start this worker's process of the run, and wait for its end.

    Raises:
        LostProcessError: If a process of the run was killed, or its worker is gone.
    """
    import ray
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero

    board = Board(ray, task.board)
    context = get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    _wait_for(board.sessions(platform.node()))
    first = (board.begin(), ray.util.get_node_ip_address(), _free_port()) if rank == 0 else None
    attempt, address, port = broadcast_from_rank_zero(first)
    if not Path(task.folder).is_dir():
        board.refuse(f"{platform.node()} has no folder '{task.folder}': run the command in one that all machines see")
        return
    if attempt > 1 and rank == 0:
        processes = "1 process" if world == 1 else f"{world} processes"
        told = f"vitreous: a worker was lost: the run continues in {processes} from its last checkpoint\n"
        board.write(2, told.encode())
    place = _place(rank, world, context.get_local_rank(), context.get_local_world_size(), (address, port))
    environment = {**os.environ, **_environment(place, task, context.get_local_world_size())}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:  # a pipe would break with the worker
        command = [sys.executable, "-m", "vitreous.cluster.keeper", str(os.getpid()), *_words(task.words, attempt)]
        process = subprocess.Popen(
            command,
            cwd=task.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        board.started(platform.node(), process.pid)
        code = _follow(process, {1: out, 2: err}, board)
    board.ended(attempt, rank, code)
    if code != 0:
        _judge(board, attempt, world)


def _place(rank: int, world: int, local_rank: int, local_world: int, first: tuple[str, int]) -> Place:
    """Return the place of a process; where machines have different numbers of them, each counts as a machine."""
    if world % local_world or rank % local_world != local_rank:
        local_rank, local_world = 0, 1
    return Place(local_world, world // local_world, rank // local_world, *first, local_rank)


def _environment(place: Place, task: Task, neighbours: int) -> dict[str, str]:
    own = rank_environment(place, place.port, place.local_rank or 0)
    own["OMP_NUM_THREADS"] = str(max(1, num_cores() // neighbours))  # Ray sets it to 1
    if task.on_gpu and place.devices == 1:  # else all GPUs of the workers of this machine are visible
        import ray

        own["CUDA_VISIBLE_DEVICES"] = ",".join(ray.get_runtime_context().get_accelerator_ids()["GPU"])
    return own


def _words(words: Sequence[str], attempt: int) -> list[str]:
    """Return the arguments of a process: the environment says how many there are, and later attempts resume."""
    end = words.index("--") if "--" in words else len(words)
    added = ["--devices", "1", "--nodes", "1"]
    if attempt > 1 and "--resume" not in words[:end]:
        added.append("--resume")
    return [*words[:end], *added, *words[end:]]


def _follow(process: subprocess.Popen[bytes], output: Mapping[int, IO[bytes]], board: Board) -> int:
    """Pass the output on to the command, and its signals to the process; return the exit code."""
    sent, passed = 0, dict.fromkeys(output, 0)
    ended = False
    while not ended:
        ended = process.poll() is not None  # before reading, so that the last output is read too
        for stream, file in output.items():
            while text := os.pread(file.fileno(), _CHUNK, passed[stream]):
                board.write(stream, text)
                passed[stream] += len(text)
        for number in (signals := board.signals())[sent:]:
            process.send_signal(number)
        sent = len(signals)
        time.sleep(0 if ended else _POLL)
    return process.returncode


def _judge(board: Board, attempt: int, world: int) -> None:
    """Wait until all processes have ended, and raise if the end was not the run's own."""
    deadline = time.monotonic() + _GRACE
    while len(codes := board.codes(attempt)) < world and time.monotonic() < deadline:
        time.sleep(_POLL)
    if board.signals() or (len(codes) == world and all(code in _FINAL for code in codes)):
        return
    raise LostProcessError(f"a process of the run was killed: their exit codes are {codes}")


def _wait_for(sessions: Collection[int]) -> None:
    """Wait for the processes of earlier attempts on this machine, which may still save."""
    deadline = time.monotonic() + _GRACE
    while sessions and any(_session_of(each) in sessions for each in _processes()) and time.monotonic() < deadline:
        time.sleep(_POLL)


def _processes() -> Iterator[str]:
    return (name for name in (os.listdir("/proc") if os.path.isdir("/proc/self") else ()) if name.isdecimal())


def _session_of(process: str) -> int | None:
    """Return the session of a running process; field 6 of its status, after its state, parent and group."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            state, _, _, session = file.read().rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return None if state in ("Z", "X") else int(session)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
