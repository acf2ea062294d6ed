"""The engine process: loads one model, says what it is, and answers until its input ends.

Started by :mod:`vitreous.serve.engine.engine_process`. The first frame on standard input says which model to load. The
first answer is ``ready`` with a description of the model, or ``failed`` with the reason.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from vitreous.serve.engine.wire import pack, receive

__all__ = ["main"]


def main() -> None:
    """Serve one model."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the service, which ends this process
    requests, output = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not corrupt the answers

    def send(frame: bytes) -> None:
        try:
            output.write(frame)
            output.flush()
        except (BrokenPipeError, ValueError):  # the service is gone; the end of standard input ends this process
            pass

    if (frame := receive(requests)) is None:
        return
    config, _ = frame
    try:
        computing = _open(config, send)
    except Exception as error:
        send(pack({"event": "failed", "reason": _reason(error), "code": getattr(error, "exit_code", 1)}))
        return
    from vitreous.serve.engine.batcher import Batcher

    batcher = Batcher(computing, send, config["batch"])
    pace = {"one": computing.seconds, "per_image": batcher.seconds_per_image, "largest": batcher.largest}
    can = {"can_improve": computing.can_improve, "has_converted": computing.has_converted}
    batcher.send({"event": "ready", **can, "model": computing.describe(), **pace})
    threading.Thread(target=batcher.read, args=(requests,), daemon=True, name="requests").start()
    batcher.run()


def _open(config: dict[str, Any], send: Any) -> Any:
    from vitreous.serve.engine.computing import Computing  # imports torch

    def tell(line: str) -> None:
        send(pack({"event": "note", "text": line}))

    return Computing(config["path"], config["options"], config["effort"], tell)


def _reason(error: Exception) -> str:
    from vitreous.errors import VitreousError, first_line

    return str(error) if isinstance(error, VitreousError) else f"{type(error).__name__}: {first_line(error)}"


if __name__ == "__main__":
    main()
