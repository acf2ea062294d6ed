"""Run every ```sh and ```python block of the tutorials and how-to guides as published, and check what they state.

    python docs/run_pages.py                          # all pages; each in an empty folder that is removed afterwards
    python docs/run_pages.py docs/tutorials/first-model.md
    python docs/run_pages.py --minutes 15             # end there, even within a block; what is left has failed
    python docs/run_pages.py --slack 3                # each page may take so many times what it says
    python docs/run_pages.py --jobs 1                 # one page at a time (default: one per core, up to 2)

The blocks of a page run in order, in one folder: Bash with `set -e`, and Python in one namespace. Where tabs show a
step on the command line and in Python, both run. Blocks in other languages, such as ```console, are not run; pages with
```{code-cell} are run by the build of the site. Two kinds of sentences are checked:

    Expected: `scores.test.top1` in `runs/digits-1/report.json` is between 0.97 and 1.
    This page takes at most 3 minutes on two CPU cores.

Exit code 1 if a block fails, a number leaves its range, or a page takes longer than it says.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

HERE = Path(__file__).resolve().parent
CORES = sorted(os.sched_getaffinity(0)) if shutil.which("taskset") else []  # Linux
PAGES = [*sorted(HERE.glob("tutorials/*.md")), *sorted(HERE.glob("how-to/*.md"))]

_NUMBER = r"[\d.e-]*\d"
_STEP = re.compile(
    r"^(?P<indent> *)```(?P<language>sh|python)\n(?P<code>.*?)^(?P=indent)```$"
    r"|^Expected: `(?P<key>[\w.-]+)` in `(?P<file>[^`]+)`\s+is\s+between\s+"
    rf"(?P<low>{_NUMBER})\s+and\s+(?P<high>{_NUMBER})",
    re.MULTILINE | re.DOTALL,
)
_LIMIT = re.compile(r"takes\s+at\s+most\s+(\d+)\s+minutes?\s+on\s+two\s+CPU\s+cores")


class PageError(Exception):
    """A block or a statement of a page does not hold."""


class _OutOfTimeError(BaseException):
    """All pages together took too long; no page can catch it."""


def main(arguments: list[str]) -> int:
    """Run the pages that are named, or all; return the exit code."""
    parser = argparse.ArgumentParser(description="Run the blocks of pages as published, and check what they state.")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="Markdown files; all if none is named")
    parser.add_argument("--minutes", type=float, help="for all pages together")
    parser.add_argument("--slack", type=float, default=1, help="multiplies the limit of time of each page (default: 1)")
    jobs = min(2, len(CORES)) or 1
    parser.add_argument(
        "--jobs", type=int, default=jobs, help=f"pages at a time, each on its own cores (default: {jobs})"
    )
    options = parser.parse_args(arguments)
    pages, begun = [page.resolve() for page in options.pages] or PAGES, time.monotonic()
    end = begun + 60 * options.minutes if options.minutes else None
    if len(pages) == 1:
        return _run_here(pages[0], options.slack, end)
    pages = sorted(pages, key=_longest, reverse=True)  # so that no long one is left at the end
    places = SimpleQueue[list[int]]()
    for job in range(options.jobs):
        places.put(CORES[job :: options.jobs])
    with ThreadPoolExecutor(options.jobs) as pool:
        codes = list(pool.map(lambda page: _run_in_process(page, options.slack, end, places), pages))
    failed = [page.name for page, code in zip(pages, codes, strict=True) if code]
    print(f"{len(pages)} pages, {(time.monotonic() - begun) / 60:.1f} minutes")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


def _run_here(page: Path, slack: float, end: float | None) -> int:
    """Run a page in this process, and print the outcome; return the exit code."""
    started = time.monotonic()
    try:
        with _ends_after(end and max(0.1, end - started)):
            steps = run_page(page, slack)
    except (PageError, _OutOfTimeError) as error:
        print(f"{page.relative_to(HERE)}: {error or 'the time for all pages together is over'}", flush=True)
        return 1
    if steps:
        print(f"{page.relative_to(HERE)}: {steps} steps, {time.monotonic() - started:.0f} s", flush=True)
    return 0


def _run_in_process(page: Path, slack: float, end: float | None, places: SimpleQueue[list[int]]) -> int:
    """Run a page in a process with cores of its own: threads of two pages that share cores wait for each other."""
    cores = places.get()
    words = [sys.executable, __file__, str(page), "--slack", str(slack)]
    if end is not None:
        words += ["--minutes", str(max(0.1, end - time.monotonic()) / 60)]
    words = ["taskset", "--cpu-list", ",".join(map(str, cores)), *words] if cores else words
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    places.put(cores)
    print(done.stdout, end="", flush=True)
    return done.returncode


def _longest(page: Path) -> int:
    """Return the minutes that a page says it takes at most."""
    limit = _LIMIT.search(page.read_text(encoding="utf-8"))
    return int(limit[1]) if limit else 0


@contextlib.contextmanager
def _ends_after(seconds: float | None) -> Iterator[None]:
    """Raise in the main thread when the time is over, whatever a page does then."""

    def end(*_: object) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)  # 0 is no timer
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_page(page: Path, slack: float = 1) -> int:
    """Run the blocks of a page in an empty folder, and check its statements; return how many there were."""
    text, started = page.read_text(encoding="utf-8"), time.monotonic()
    steps, module, shells = list(_STEP.finditer(text)), types.ModuleType("page"), list[int]()
    limit = _LIMIT.search(text)
    if steps and limit is None:
        raise PageError("does not say 'takes at most N minutes on two CPU cores'")
    sys.modules["page"] = module  # where dataclasses look up names
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), _ended(shells):
        for step in steps:
            line = text.count("\n", 0, step.start()) + 1
            if step["key"]:
                _check(step, line)
            else:
                code = re.sub(rf"^{step['indent']}", "", step["code"], flags=re.MULTILINE)
                run = _run_shell if step["language"] == "sh" else _run_python
                run(code, f"{page.name}:{line}", shells, vars(module))
    minutes = (time.monotonic() - started) / 60
    if limit is not None and minutes > slack * int(limit[1]):
        raise PageError(f"took {minutes:.1f} minutes, but says at most {limit[1]}")
    return len(steps)


def _run_shell(code: str, where: str, shells: list[int], names: dict[str, Any]) -> None:
    words = ["bash", "-euo", "pipefail", "-c", code]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(words, text=True, start_new_session=True, env=_environment(), **pipes) as process:
        shells.append(process.pid)
        try:
            said, _ = process.communicate()
        except BaseException:  # leaving this block waits for the process
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise PageError(f"{where} ended with {process.returncode}\n{code}{said[-3000:]}")


def _run_python(code: str, where: str, shells: list[int], names: dict[str, Any]) -> None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            exec(compile("\n" + code, where, "exec"), names)
    except _OutOfTimeError:
        raise
    except BaseException as error:  # a page may raise SystemExit too
        raise PageError(f"{where} failed\n{said.getvalue()[-2000:]}{traceback.format_exc()}") from error


@contextlib.contextmanager
def _ended(shells: list[int]) -> Iterator[None]:
    """End what blocks left running in the background, such as a service, also after a failure."""
    try:
        yield
    finally:
        for shell in shells:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell, signal.SIGTERM)


def _environment() -> dict[str, str]:
    """Return the environment of a shell in which `vitreous` is that of this interpreter."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _check(step: re.Match[str], line: int) -> None:
    value = json.loads(Path(step["file"]).read_text(encoding="utf-8"))
    for name in step["key"].split("."):
        value = value[name]
    if not float(step["low"]) <= value <= float(step["high"]):
        raise PageError(f"line {line}: {step['key']} is {value}, expected {step['low']} to {step['high']}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
