"""Starts the processes of a run on this machine, passes signals on to them, and waits for all.

Imports no torch. The processes watch each other (watch.py); this one only ends those that remain after a failure.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType

from vitreous.machine.cores import num_cores
from vitreous.train.scale.place import STARTED, Place, find_place, is_rank

__all__ = ["exit_code", "launch", "launch_or_join", "rank_environment"]

_POLL = 0.05  # seconds
_GOOD_ORDER = (None, 0, 130, 143)  # exit codes after which the first process may still have much to write
_GRACE = 75.0  # seconds that the others have to notice that a process is gone, and to end the run in good order


def launch_or_join(
    words: Sequence[str], devices: int, nodes: int, *, started: float, joins: bool = False
) -> tuple[int | None, Place | None]:
    """Start the processes of this machine, unless this is one of them, and wait for the end of the run.

    `started` is when the command started, in the seconds of ``time.monotonic()``. With `joins`, the one process of a
    run has a place too.

    Returns:
        The exit code if this has happened; the place of this process if it is one of several.
    """
    if devices * nodes == 1 and not is_rank():
        return None, replace(find_place(1, 1), port=_free_port(), local_rank=0) if joins else None
    place = find_place(devices, nodes)
    return (launch(words, place, started=started), None) if place.local_rank is None else (None, place)


def launch(words: Sequence[str], place: Place, *, started: float) -> int:
    """Run ``vitreous`` with these words in each process of this machine; return the exit code of the run."""
    port = place.port or _free_port()
    command = [sys.executable, "-m", "vitreous", *words]
    processes: list[subprocess.Popen[bytes]] = []
    with _passed_on(processes):
        try:
            for local_rank in range(place.devices):
                own = {**rank_environment(place, port, local_rank), STARTED: str(int(1000 * started))}
                environment = {**os.environ, **own}
                # In a session of its own, because a terminal would send Ctrl-C to it a second time.
                processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
            _wait(processes)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    codes = [process.returncode for process in processes]
    if all(code < 0 for code in codes):
        sys.stderr.write(f"vitreous: all {len(codes)} processes of the run were killed\n")
    return exit_code(codes)


def rank_environment(place: Place, port: int, local_rank: int) -> dict[str, str]:
    """Return the environment of a process, with the names that torchrun uses."""
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, num_cores() // place.devices))),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(place.world),
        "LOCAL_WORLD_SIZE": str(place.devices),
        "RANK": str(place.node * place.devices + local_rank),
        "LOCAL_RANK": str(local_rank),
    }


def exit_code(codes: Sequence[int]) -> int:
    """Return the exit code of a run from those of its processes: the first one's, unless only others failed."""
    failed = [code for code in codes if code > 0]
    if all(code == 0 for code in codes):
        return 0
    return codes[0] if codes[0] > 0 else failed[0] if failed else 1


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for all processes; after a failure only for so long that the others notice it."""
    deadline = float("inf")
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if deadline == float("inf") and any(process.poll() not in _GOOD_ORDER for process in processes):
            deadline = time.monotonic() + _GRACE
        time.sleep(_POLL)


@contextlib.contextmanager
def _passed_on(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Send Ctrl-C and SIGTERM on to all processes."""

    def send(number: int, frame: FrameType | None) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    before: Mapping[int, object] = {number: signal.signal(number, send) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
