"""What tests share: real pictures, the entry point of the command, and how many cores they may use."""

from __future__ import annotations

import gc
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from vitreous.cli.main import main
from vitreous.machine.cores import num_cores

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

# Before torch is imported by any test module: each worker is one of many, and two threads that wait for each other on a
# busy core are many times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No telemetry where tests import OpenVINO themselves (vitreous.machine.openvino_package).
sys.modules.setdefault("openvino_telemetry", None)

from running import runs, selected  # noqa: E402, F401  fixtures

# Shells start what runs in the background with Ctrl-C ignored, and children inherit that: tests that send it would wait
# for something that never comes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Ask for one worker more than there are cores: tests wait for processes, servers and the clock."""
    return num_cores() + 1


@pytest.fixture(scope="module", autouse=True)
def _imported_once() -> None:
    """Leave what is imported by now out of collections of garbage, which otherwise walk torch's objects each time."""
    gc.collect()
    gc.freeze()


def _shared(*parts: str) -> Path:
    path = SHARED_DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"real pictures are not on this machine: {path} is missing")
    return path


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the repository; the test is skipped where it is absent."""
    return _shared()


@pytest.fixture(scope="session")
def flowers() -> Path:
    """3,670 photographs in {train,val}/<one of five classes>/*.jpg."""
    return _shared("flowers")


@pytest.fixture(scope="session")
def photos() -> Path:
    """Four photographs of various sizes: astronaut, chelsea, coffee (PNG) and rocket (JPEG)."""
    return _shared("photos")


@pytest.fixture(scope="session")
def endless_jpeg() -> bytes:
    """A JPEG of 300 kB that takes a decoder minutes: its last pass over 36 million pixels, three thousand times."""
    buffer = io.BytesIO()
    Image.new("L", (6000, 6000), 128).save(buffer, "JPEG", progressive=True)
    whole = buffer.getvalue()
    last_scan = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + last_scan * 3000 + b"\xff\xd9"


@pytest.fixture(scope="session")
def cifar10_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that torchvision.datasets.CIFAR10 accepts, restored once (about 10 s) and kept in pytest's cache.

    The variable VITREOUS_TEST_CIFAR10 may name such a folder.
    """
    given = os.environ.get("VITREOUS_TEST_CIFAR10")
    if given:
        return Path(given)
    script = _shared("restore_cifar10.py")
    cache = getattr(request.config, "cache", None)
    kept = Path(cache.mkdir("vitreous-data")) / "cifar10" if cache else tmp_path_factory.mktemp("data") / "cifar10"
    if not kept.exists():
        # Restored aside and renamed, so that workers of pytest-xdist never see half of it.
        aside = kept.with_name(f"cifar10-{os.getpid()}")
        subprocess.run([sys.executable, str(script), str(aside)], check=True, capture_output=True)
        try:
            aside.rename(kept)
        except OSError:  # another worker was first
            shutil.rmtree(aside)
    return kept


@pytest.fixture
def vitreous(tmp_path, monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command's entry point in the test's own folder, in this process: torch is loaded once."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object, text_in: str = "") -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text_in.encode())))
        capsys.readouterr()
        code = main(list(map(str, words)))
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run
