"""Run every ```sh and ```python block of the tutorials and how-to guides as published, and check what they state.

    python docs/run_pages.py                          # all pages; each in an empty folder that is removed afterwards
    python docs/run_pages.py docs/tutorials/first-model.md

The blocks of a page run in order, in one folder: Bash with `set -e`, and Python in one namespace. Where tabs show a
step on the command line and in Python, both run. Blocks in other languages, such as ```console, are not run. Two kinds
of sentences are checked:

    Expected: `scores.test.top1` in `runs/digits-1/report.json` is between 0.97 and 1.
    This page takes at most 3 minutes on two CPU cores.

Exit code 1 if a block fails, a number leaves its range, or a page takes longer than it says.
"""

from __future__ import annotations

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


def main(arguments: list[str]) -> int:
    """Run the pages that are named, or all; return the exit code."""
    failures = []
    for page in [Path(name).resolve() for name in arguments] or PAGES:
        started = time.monotonic()
        try:
            steps = run_page(page)
        except PageError as error:
            failures.append(page.name)
            print(f"{page.relative_to(HERE)}: {error}", flush=True)
        else:
            if steps:
                print(f"{page.relative_to(HERE)}: {steps} steps, {time.monotonic() - started:.0f} s", flush=True)
    if failures:
        print(f"failed: {', '.join(failures)}")
    return bool(failures)


def run_page(page: Path) -> int:
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
    if limit is not None and minutes > int(limit[1]):
        raise PageError(f"took {minutes:.1f} minutes, but says at most {limit[1]}")
    return len(steps)


def _run_shell(code: str, where: str, shells: list[int], names: dict[str, Any]) -> None:
    words = ["bash", "-euo", "pipefail", "-c", code]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(words, text=True, start_new_session=True, env=_environment(), **pipes) as process:
        shells.append(process.pid)
        said, _ = process.communicate()
    if process.returncode:
        raise PageError(f"{where} ended with {process.returncode}\n{code}{said[-3000:]}")


def _run_python(code: str, where: str, shells: list[int], names: dict[str, Any]) -> None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            exec(compile("\n" + code, where, "exec"), names)
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
