"""Shared by the benchmarks: interleaved timing, the peak rate of matrix products, peak memory, summaries.

Whatever is compared is measured in alternation, A B C A B C, and compared round by round. Other load on the machine
then affects neighbours alike, and their ratio stays meaningful.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from vitreous.machine.device import computes_bf16, describe_machine

MIB = 2**20
DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}


def precisions(device: torch.device) -> tuple[str, ...]:
    """Return the precisions worth measuring; bf16 without hardware support is far slower than float32."""
    return tuple(DTYPES) if computes_bf16(device) else ("float32",)


def header(device: torch.device, packages: Iterable[str] = ("torch",)) -> str:
    """Return a line with commit, machine, threads and versions."""
    here = Path(__file__).parent
    git = ("git", "-C", str(here), "describe", "--always", "--dirty")
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    machine = describe_machine(device)
    place = machine.gpu or f"{machine.cpu}, {machine.cores} cores, {torch.get_num_threads()} threads"
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return f"commit {commit}; {place}; Python {platform.python_version()}, {versions}"


def seconds(work: Callable[[], object], device: torch.device, repeat: int = 1) -> float:
    """Return the wall-clock seconds of a call, the mean of `repeat` consecutive calls, synchronised on CUDA."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(repeat):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / repeat


def in_turn(
    works: Mapping[str, Callable[[], object]], device: torch.device, rounds: int, warm_up: int = 2, repeat: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of each function in each round, with the functions alternating."""
    for work in works.values():
        seconds(work, device, warm_up)
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work, device, repeat))
    return times


class Apart:
    """A function measured in its own process, started from the running script, which must call :func:`serve` there.

    Allocator, threads and caches of one program then do not affect another.
    """

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, sys.argv[0], *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._arguments = arguments

    def seconds(self, repeat: int) -> float:
        """Return the mean seconds of `repeat` consecutive calls, measured in the other process."""
        try:
            print(repeat, file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ChildProcessError(f"{' '.join(self._arguments)}: {_ended(self._process.wait())}")
        return float(line)

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def serve(work: Callable[[], object], device: torch.device) -> None:
    """Serve the parent's :class:`Apart`: read a number of calls per line, print their mean seconds."""
    for line in sys.stdin:
        print(seconds(work, device, int(line)), flush=True)


def ratios(these: list[float], those: list[float]) -> str:
    """Return median and range of the ratio `these / those`, round by round."""
    each = sorted(a / b for a, b in zip(these, those, strict=True))
    return f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the rate of the fastest large square matrix product, in operations per second, 2 per multiply-add.

    The maximum over several sizes, layouts and repetitions.
    """
    sizes, repeats = ((1024, 2048, 3072), 5) if device.type == "cpu" else ((4096, 8192, 16384), 10)
    best = 0.0
    for n in sizes:
        a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
        for right in (b, b.t()):
            seconds(lambda a=a, right=right: a @ right, device)
            fastest = min(seconds(lambda a=a, right=right: a @ right, device) for _ in range(repeats))
            best = max(best, 2 * n**3 / fastest)
    return best


def peak_memory(device: torch.device, work: Callable[[], object]) -> int:
    """Return the peak bytes of a function above what the process held before. Call once per process.

    On Linux this resets the peak of the resident memory; elsewhere the peak of the whole process counts, including
    libraries.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        work()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    """Read a memory figure of this process in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) * 1024


def in_subprocess(*arguments: str) -> str:
    """Run this script with other arguments; return its last line of output, or why it failed."""
    done = subprocess.run([sys.executable, sys.argv[0], *arguments], capture_output=True, text=True, check=False)
    if done.returncode < 0:
        return f"failed: {_ended(done.returncode)}"
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or [_ended(done.returncode)])[-1][:120]}"
    return done.stdout.strip().splitlines()[-1]


def _ended(code: int) -> str:
    """Describe the exit code of a failed process."""
    return "killed, probably for memory" if code < 0 else f"exit {code}"
