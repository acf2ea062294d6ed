"""Inject faults into real runs and check that each has the outcome promised in docs/explanation/reliability.md.

    python benchmarks/resume/faults.py                    # as root, on Linux with a C compiler: every fault
    python benchmarks/resume/faults.py --only sigterm --times 1

Each run is forked from this process, which has imported the libraries already. After a fault the run is resumed, and
its end is compared bit for bit with a run without faults (kill_test.py). Faults that need root or a compiler are
skipped with a message where these are missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/

from resume.kill_test import SMALL, Scenario, start, wait
from resume.same_run import differences

WORDS = ("digits", *SMALL, "--epochs", "3", "--batch_size", "64", "--select", "top1")
STREAMED = (*WORDS, "--data.memory_gb", "0", "--data.workers", "2")

# LD_PRELOAD library that replaces functions of the C library while the file named in FAULT_* exists.
WRAPPER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int on(const char *kind) {
    const char *file = getenv(kind);
    return file && access(file, F_OK) == 0;
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    if (on("FAULT_EIO")) { errno = EIO; return -1; }
    return real(fd);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (id == CLOCK_REALTIME && on("FAULT_CLOCK")) now->tv_sec += (now->tv_sec & 1) ? 86400 : -86400;
    return result;
}
"""


class LeftOutError(Exception):
    """The machine lacks what a fault needs."""


@dataclass
class Bench:
    """The folder of the runs, and the results of runs without faults."""

    work: Path
    peaceful: Path
    streamed: Path
    wrapper: Path | None
    count: int = 0

    def folder(self) -> Path:
        """Return a new folder name."""
        self.count += 1
        return self.work / f"fault-{self.count}"

    def resumed(self, out: Path, words: tuple[str, ...] = WORDS) -> str | None:
        """Resume a run; return how its end differs from the run without faults, or None."""
        code, text = ended(start(Scenario("", "", words), out, log := out.parent / f"{out.name}.resumed"), log)
        if code:
            return f"the resumed run ended with {code}: {text}"
        unlike = differences(self.streamed if words is STREAMED else self.peaceful, out)
        return f"differs in {', '.join(unlike)}" if unlike else None


def ended(pid: int, log: Path) -> tuple[int, str]:
    """Wait for a run; return its exit code and output."""
    code = wait(pid, 600)
    return (-1 if code is None else code), log.read_text(errors="replace")


def begun(bench: Bench, out: Path, words: tuple[str, ...] = WORDS) -> tuple[int, Path]:
    """Start a run and wait until it has saved twice."""
    log = bench.work / f"{bench.count}-{out.name}.log"
    pid = start(Scenario("", "", words), out, log)
    until = time.monotonic() + 300
    while not (out / "previous.ckpt").exists():
        if time.monotonic() > until or os.waitpid(pid, os.WNOHANG)[0]:
            raise SystemExit(f"the run did not begin: {log.read_text()}")
        time.sleep(0.01)
    return pid, log


def one_error(code: int, text: str, *parts: str) -> str | None:
    """Return why an output is not a single error with these words, or None."""
    lines = [line for line in text.splitlines() if line.startswith("vitreous: ")]
    if code != 1 or len(lines) != 1 or "Traceback" in text or "this is a bug" in text:
        return f"exit code {code}, {len(lines)} errors: {text[-500:]}"
    missing = [part for part in parts if part not in lines[0]]
    return f"the error lacks {missing}: {lines[0]}" if missing else None


@contextlib.contextmanager
def small_disk(bench: Bench, size: str) -> Iterator[Path]:
    """Mount a separate file system."""
    place = bench.folder()
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise LeftOutError(f"no tmpfs can be mounted: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=False)


def full_disk(bench: Bench) -> str | None:
    """Fill the disk while a run saves: one error, the last checkpoint intact; with space again, the run resumes."""
    with small_disk(bench, "8m") as disk:
        pid, log = begun(bench, disk / "run")
        with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)
        wrong = one_error(*ended(pid, log), "No space left", "Free some space")
        (disk / "filler").unlink()
        return wrong or bench.resumed(disk / "run")


def read_only(bench: Bench) -> str | None:
    """Make the folder read-only while a run works."""
    out = bench.folder()
    pid, log = begun(bench, out)
    binds = ["mount", "--bind", str(out), str(out)], ["mount", "-o", "remount,bind,ro", str(out)]
    if any(subprocess.run(bind, capture_output=True, check=False).returncode for bind in binds):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise LeftOutError("nothing can be mounted")
    wrong = one_error(*ended(pid, log), "Read-only file system")
    subprocess.run(["umount", "-l", out], check=True)
    return wrong or bench.resumed(out)


def vanished(bench: Bench) -> str | None:
    """Move the folder away while a run works."""
    out = bench.folder()
    pid, log = begun(bench, out)
    out.rename(away := out.with_name(f"{out.name}-away"))
    wrong = one_error(*ended(pid, log), str(out))
    if out.exists():
        return f"something was written to {out}"
    away.rename(out)
    return wrong or bench.resumed(out)


def io_error(bench: Bench) -> str | None:
    """Let every fsync fail."""
    return _wrapped(bench, "FAULT_EIO", lambda code, text: one_error(code, text, "Input/output error"))


def clock_jump(bench: Bench) -> str | None:
    """Move the wall clock a day forwards and back every second."""
    return _wrapped(bench, "FAULT_CLOCK", lambda code, text: None if code == 0 else f"exit code {code}: {text}")


def _wrapped(bench: Bench, kind: str, judge: Callable[[int, str], str | None]) -> str | None:
    """Start a run with the wrapper, enable it during training, and judge the outcome."""
    if bench.wrapper is None:
        raise LeftOutError("no C compiler")
    out = bench.folder()
    switch, log = bench.work / f"{out.name}.on", bench.work / f"{out.name}.log"
    command = [sys.executable, "-m", "vitreous", "train", *WORDS, "--out", out, "--resume"]
    environment = {**os.environ, "LD_PRELOAD": str(bench.wrapper), kind: str(switch)}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    while not (out / "previous.ckpt").exists():
        if process.poll() is not None:
            raise SystemExit(f"the run did not begin: {log.read_text()}")
        time.sleep(0.01)
    switch.touch()
    code = process.wait(600)
    return judge(code, log.read_text()) or bench.resumed(out)


def sigterm(bench: Bench) -> str | None:
    """Send SIGTERM, as schedulers do."""
    return _signalled(bench, signal.SIGTERM, "terminated", 143)


def ctrl_c(bench: Bench) -> str | None:
    """Press Ctrl-C once."""
    return _signalled(bench, signal.SIGINT, "interrupted", 130)


def _signalled(bench: Bench, number: signal.Signals, word: str, expected: int) -> str | None:
    out = bench.folder()
    pid, log = begun(bench, out, STREAMED)
    for child in [pid, *workers_of(pid)]:  # terminals and schedulers signal all of them
        os.kill(child, number)
    code, text = ended(pid, log)
    if code != expected or word not in text or "--resume" not in text or "Traceback" in text:
        return f"exit code {code}: {text[-500:]}"
    return bench.resumed(out, STREAMED)


def ctrl_c_twice(bench: Bench) -> str | None:
    """Press Ctrl-C twice at once."""
    out = bench.folder()
    pid, log = begun(bench, out)
    os.kill(pid, signal.SIGINT)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    code, text = ended(pid, log)
    return f"exit code {code}: {text[-500:]}" if code != 130 or "Traceback" in text else bench.resumed(out)


def damaged(bench: Bench) -> str | None:
    """Change a byte of the newest checkpoint."""
    return _spoiled(bench, lambda path: path.write_bytes((data := path.read_bytes())[:-999] + b"?" + data[-998:]))


def truncated(bench: Bench) -> str | None:
    """Cut off the newest checkpoint."""
    return _spoiled(bench, lambda path: os.truncate(path, path.stat().st_size // 2))


def empty(bench: Bench) -> str | None:
    """Empty the newest checkpoint."""
    return _spoiled(bench, lambda path: os.truncate(path, 0))


def _spoiled(bench: Bench, spoil: Callable[[Path], object]) -> str | None:
    out = bench.folder()
    pid, _ = begun(bench, out)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if (out / "last.ckpt").exists():  # otherwise the kill fell between two renames
        spoil(out / "last.ckpt")
    wrong = bench.resumed(out)
    said = (out.parent / f"{out.name}.resumed").read_text()
    return wrong or (None if "previous.ckpt' is used" in said or "previous.ckpt: goes on" in said else said)


def worker_killed(bench: Bench) -> str | None:
    """Kill a data worker, as the system does when memory runs out."""
    out = bench.folder()
    pid, log = begun(bench, out, STREAMED)
    os.kill(workers_of(pid)[0], signal.SIGKILL)
    return one_error(*ended(pid, log), "reads images", "--data.workers") or bench.resumed(out, STREAMED)


def second_run(bench: Bench) -> str | None:
    """Start a second run in the folder of a running one."""
    out = bench.folder()
    pid, log = begun(bench, out)
    second = bench.work / f"{out.name}.second"
    os.kill(pid, signal.SIGSTOP)  # so that it does not finish meanwhile
    wrong = one_error(*ended(start(Scenario("", "", WORDS), out, second), second), "in use by", str(pid))
    os.kill(pid, signal.SIGCONT)
    code, text = ended(pid, log)
    return wrong or (f"the first ended with {code}: {text}" if code else None) or bench.resumed(out)


def workers_of(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


FAULTS: dict[str, Callable[[Bench], str | None]] = {
    "full disk": full_disk,
    "I/O error": io_error,
    "read-only": read_only,
    "vanished folder": vanished,
    "SIGTERM": sigterm,
    "Ctrl-C": ctrl_c,
    "Ctrl-C twice": ctrl_c_twice,
    "damaged newest": damaged,
    "truncated newest": truncated,
    "empty newest": empty,
    "worker killed": worker_killed,
    "clock jump": clock_jump,
    "second run": second_run,
}


def prepared(work: Path) -> Bench:
    """Set up: two runs without faults, and the wrapper if it can be built."""
    peaceful, streamed = work / "peaceful", work / "streamed"
    for out, words in ((peaceful, WORDS), (streamed, STREAMED)):
        code, text = ended(start(Scenario("", "", words), out, work / "peaceful.log"), work / "peaceful.log")
        if code:
            raise SystemExit(text)
    wrapper = None
    if shutil.which("cc"):
        (work / "wrapper.c").write_text(WRAPPER)
        wrapper = work / "wrapper.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", wrapper, work / "wrapper.c", "-ldl"], check=True)
    return Bench(work, peaceful, streamed, wrapper)


def main() -> int:
    """Inject each fault --times times and print the outcomes; return 1 if one is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="repetitions of each fault [%(default)s]")
    parser.add_argument("--only", nargs="*", default=[], help="names of faults")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        bench = prepared(Path(folder))
        print("| fault | as promised |\n|---|---|", flush=True)
        for name, inject in FAULTS.items():
            if options.only and name not in options.only:
                continue
            try:
                wrong = [found for _ in range(options.times) if (found := inject(bench)) is not None]
                print(f"| {name} | {options.times - len(wrong)} of {options.times} |", *wrong, flush=True)
                failed = failed or bool(wrong)
            except LeftOutError as reason:
                print(f"| {name} | left out: {reason} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
