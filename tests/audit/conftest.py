"""What the audit's tests share: a cache of their own, and photographs."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory, monkeypatch) -> Path:
    """A cache folder for the test alone, never the user's."""
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def benchmark() -> types.ModuleType:
    """benchmarks/accuracy/audit.py as a module."""
    spec = importlib.util.spec_from_file_location("benchmark_audit", ROOT / "benchmarks" / "accuracy" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
