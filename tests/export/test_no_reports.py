"""Packages that report their use to their makers do not when vitreous uses them."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from exported_models import saved
from PIL import Image

import vitreous

pytest.importorskip("openvino", reason="openvino is not installed")
pytest.importorskip("nncf", reason="nncf is not installed")

USES = """
import sys
import numpy as np
from vitreous.cli.main import main
from vitreous.export.quantisation.calibration import quantised
from vitreous.machine.openvino_package import import_openvino

assert main(["predict", *sys.argv[1:], "--engine", "openvino", "--device", "cpu"]) == 0
openvino = import_openvino()
ops = openvino.opset13
x = ops.parameter([1, 8], np.float32, "x")
graph = openvino.Model([ops.matmul(x, ops.constant(np.eye(8, dtype=np.float32)), False, False)], [x])
images = [np.full((1, 8), n, np.float32) for n in range(9)]
quantised(graph, images, None)
assert "nncf" in sys.modules
"""


@pytest.fixture
def proxy():
    """A server that notes what connects to it: requests to other machines go through it as their proxy."""
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    heard.append(connection.recv(200).split(b"\r\n")[0].decode())

        threading.Thread(target=listen, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", heard
        server.shutdown(socket.SHUT_RDWR)


def python(code, *words, folder, proxy):
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "TF_BUILD", "JENKINS_URL")}
    environment |= {"HOME": str(folder), "https_proxy": proxy, "http_proxy": proxy, "no_proxy": ""}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_openvino_and_nncf_report_nothing(tmp_path, proxy):
    """Left alone, OpenVINO reports that it was imported, and keeps an identifier of the user in the home folder."""
    address, heard = proxy
    (tmp_path / "home").mkdir()
    alone = python("import openvino, time; time.sleep(1)", folder=tmp_path / "home", proxy=address)
    assert alone.returncode == 0, alone.stderr
    assert heard  # otherwise this test shows nothing
    assert os.listdir(tmp_path / "home") == ["intel"]

    heard.clear()
    rng, photos = np.random.default_rng(0), tmp_path / "photos"
    photos.mkdir()
    Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(photos / "1.png")
    model = saved(tmp_path, rules=False)
    (tmp_path / "own").mkdir()
    done = python(USES, model, photos, folder=tmp_path / "own", proxy=address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert heard == []
    assert "intel" not in os.listdir(tmp_path / "own")


def test_one_module_imports_openvino():
    """Any other could be the first to import it, with its telemetry."""
    found = []
    for file in Path(vitreous.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        if any(name.split(".")[0] == "openvino" for name in names):
            found.append(file.name)
    assert found == ["openvino_package.py"]
