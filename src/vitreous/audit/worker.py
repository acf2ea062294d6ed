"""The process that opens files for an audit: a request a line on standard input, an answer a line on standard output.

It is a process of its own, so that a file that hangs, crashes or starves a decoder costs that file and no more:
:mod:`vitreous.audit.watch` starts it, and another one after it.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import sys
import time

from PIL import Image

from vitreous.audit.look import THUMB, Look, look, pixels_digest, seen

__all__ = ["READY", "SECONDS", "answer", "main"]

READY = "ready"
SECONDS = 5
"""Of processor time that one file may take; the system ends the process then."""


def answer(request: str) -> str:
    """Answer one line: a JSON list of what to do, `look` or `pixels`, and the path."""
    what, path = json.loads(request)
    if what == "pixels":
        return json.dumps(pixels_digest(path))
    try:
        found = dataclasses.asdict(look(path))
    except Exception as error:  # whatever a decoder meets that nobody foresaw is about this file, and no other
        found = dataclasses.asdict(Look(f"cannot be decoded: {type(error).__name__}: {error}"))
    return json.dumps(found | {"thumb": base64.b64encode(found["thumb"]).decode("ascii")})


def main() -> None:
    """Answer requests until there are no more."""
    seen(Image.new("RGB", (THUMB, THUMB)))  # loads the libraries before the clock of the first file runs
    output = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what a decoder's library prints must not be taken for an answer
    output.write(f"{READY}\n")
    output.flush()
    for request in sys.stdin:
        _limit()
        output.write(answer(request) + "\n")
        output.flush()


def _limit() -> None:
    """Have the system end this process after SECONDS more of processor time."""
    try:
        import resource
    except ImportError:  # Windows: the watcher's clock is all there is
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


if __name__ == "__main__":
    main()
