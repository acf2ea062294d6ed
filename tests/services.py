"""Services as processes for tests, and a small model for them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vitreous.accelerate.model import create
from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.evaluate.trust.abstention import AbstentionRule
from vitreous.evaluate.trust.conformal import ConformalSets
from vitreous.evaluate.trust.selective import SelectionScore

linux_only = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs /proc")

CLASSES = ("ant", "bee", "Käfer", "dog")
READY_SECONDS = 120  # on a busy machine


def write_model(path: Path, seed: int = 0, classes: tuple[str, ...] = CLASSES) -> Path:
    """Write a small model with random weights, a temperature and both kinds of thresholds."""
    torch.manual_seed(seed)
    model = create("mu/8", num_classes=len(classes), image_size=32)
    with torch.no_grad():
        model.head.weight.normal_(std=0.5)
    pipeline = EvalPipeline((32, 32), 3, PreprocessConfig(crop_ratio=0.875, mean=(0.5,) * 3, std=(0.25,) * 3))
    rule = AbstentionRule(SelectionScore("max_probability"), 0.5, 0.9, 0.95, 0.5, 0.95)
    provenance = {"finetuned_from": {"licence": "MIT"}}
    sets = ConformalSets("lac", 0.9, (0.8,), len(classes), include_top=True)
    save_model(path, model, ModelInfo(classes, pipeline, 1.5, provenance, abstention=rule, conformal=sets))
    return path


class RunningService:
    """`vitreous serve` as a process, and plain requests to it."""

    def __init__(self, *words: object, engine: str = "torch", **environment: str) -> None:
        port = [] if "--port" in words else ["--port", "0"]
        command = [sys.executable, "-m", "vitreous", "serve", *map(str, words), *port, "--engine", engine]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
        self.lines: list[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.url = self.wait_for("listening on ").rpartition(" ")[2]
        self.port = int(self.url.rpartition(":")[2])

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self.lines.append("(end)")
            self._changed.notify_all()

    def wait_for(self, text: str, seconds: float = READY_SECONDS) -> str:
        """Return the first line on standard error with a text."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: any(text in line for line in self.lines) or "(end)" in self.lines, seconds
            )
        assert found, f"no '{text}' within {seconds} s: {self.lines}"
        return next((line for line in self.lines if text in line), None) or pytest.fail(f"ended: {self.lines}")

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer; header names have underscores."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Any:
        """Return the document of an answer that must have status 200."""
        status, _, content = self.request(method, path, body, **headers)
        assert status == 200, (status, content)
        return json.loads(content)

    def problem(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
        """Return status and detail of an answer that must be a problem document."""
        status, given, content = self.request(method, path, body, **headers)
        document = json.loads(content)
        assert given["content-type"] == "application/problem+json", (status, content)
        assert {"type", "title", "status", "detail"} <= document.keys()
        assert document["status"] == status
        return status, document["detail"]

    def engine_pids(self) -> list[int]:
        """Return the process ids of the engines."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        """End the process in any case."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def until(found: Callable[[], Any], seconds: float = READY_SECONDS) -> Any:
    """Return the first value of a function that is true."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)
    return value
