"""Processes that are forked from one which has torch and Lightning loaded: importing them takes seconds each time.

They have a process id, memory, signals, output and exit code of their own. What a fresh interpreter does when it starts
and ends is not in them, nor are environment variables that libraries read when they are imported: tests of these
start one.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *("vitreous.train.run", "vitreous.report.run_report", "vitreous.predictor"),
        *("vitreous.train.assembly", "torch._dynamo"),
        *("torch.distributed.fsdp", "torch.distributed.checkpoint", "sklearn.datasets"),
    ]
)


class Forked:
    """Runs the command, or `code` as `python -c` does, in a folder; used as a `subprocess.Popen`.

    The output must fit into a pipe, 64 KiB, but for what is read from `stdout` meanwhile.
    """

    def __init__(self, folder: Path, *words: object, code: str = "", **environment: str) -> None:
        ends = [_FORKS.Pipe(duplex=False) for _ in range(2)]
        theirs = [write for _, write in ends]
        arguments = (folder, list(map(str, words)), code, environment, *theirs)
        self._process = _FORKS.Process(target=_run, args=arguments)
        self._process.start()
        self.stdout, self.stderr = (os.fdopen(os.dup(read.fileno()), encoding="utf-8") for read, _ in ends)
        for end in (end for pair in ends for end in pair):
            end.close()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 200) -> tuple[str, str]:
        """Wait for the end, and return the rest of the output and of the errors."""
        with self.stdout, self.stderr:
            self._process.join(timeout)
            if self._process.exitcode is None:
                self._process.kill()
                raise subprocess.TimeoutExpired("the forked process", timeout)
            return self.stdout.read(), self.stderr.read()


def run_forked(folder: Path, *words: object, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command or code to its end, as `subprocess.run` does."""
    process = Forked(folder, *words, code=code, **environment)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def _run(
    folder: Path, words: list[str], code: str, environment: dict[str, str], out: Connection, err: Connection
) -> None:
    for end, standard in ((out, 1), (err, 2)):
        os.dup2(end.fileno(), standard)
        end.close()
    # New ones, since the command reconfigures them, and those of the first process have been used.
    sys.stdout, sys.stderr = os.fdopen(1, "w", encoding="utf-8"), os.fdopen(2, "w", encoding="utf-8", buffering=1)
    gc.freeze()  # else each collection of garbage walks, and thereby copies, all that was loaded before the fork
    os.chdir(folder)
    os.environ.update(environment)
    if code:
        sys.argv[:] = ["-c", *words]
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    else:
        from vitreous.cli.main import main

        sys.exit(main(words))
