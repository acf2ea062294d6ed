"""Run every ```sh and ```python block of the tutorials and how-to guides as published, and check what they state.

    python docs/run_pages.py                          # all pages; each in an empty folder that is removed afterwards
    python docs/run_pages.py docs/tutorials/first-model.md
    python docs/run_pages.py --minutes 15             # end there, even within a block; what is left has failed
    python docs/run_pages.py --slack 3                # on a machine that is so many times slower

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
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
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
    parser.add_argument("--slack", type=float, default=1, help="multiplies every limit of time (default: 1)")
    options = parser.parse_args(arguments)
    minutes = options.minutes and options.minutes * options.slack
    pages = [page.resolve() for page in options.pages] or PAGES
    failed, begun = [], time.monotonic()
    with _ends_after(minutes):
        for number, page in enumerate(pages):
            started = time.monotonic()
            try:
                steps = run_page(page, options.slack)
            except PageError as error:
                failed.append(page)
                print(f"{page.relative_to(HERE)}: {error}", flush=True)
            except _OutOfTimeError:
                print(f"{page.relative_to(HERE)}: all pages together take more than {minutes:g} minutes", flush=True)
                failed += pages[number:]
                break
            else:
                if steps:
                    print(f"{page.relative_to(HERE)}: {steps} steps, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{len(pages)} pages, {(time.monotonic() - begun) / 60:.1f} minutes")
    if failed:
        print(f"failed: {', '.join(page.name for page in failed)}")
    return bool(failed)


@contextlib.contextmanager
def _ends_after(minutes: float | None) -> Iterator[None]:
    """Raise in the main thread when the time is over, whatever a page does then."""

    def end(*_: object) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 60 * (minutes or 0))  # 0 is no timer
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
