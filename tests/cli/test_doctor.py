"""`vitreous doctor`: the facts, the test of every engine, and a damaged package."""

import json
import shutil

import pytest

from vitreous.checkpoint.shipped import shipped_file
from vitreous.cli.work import diagnosis


def test_facts_and_engines(vitreous, tmp_path):
    run = vitreous("doctor", "--json", tmp_path / "facts.json")
    assert run.returncode == 0, run.stdout
    lines = {line.split()[0]: line for line in run.stdout.splitlines()}
    assert "Python 3." in lines["vitreous"]
    assert "torch 2." in lines["packages"]
    assert "research" in lines["backbone"]
    document = json.loads((tmp_path / "facts.json").read_text())
    assert [test["name"] for test in document["tests"]] == ["torch", "openvino", "onnxruntime"]
    assert all(test["passed"] for test in document["tests"])


@pytest.mark.parametrize("change", ["cut", "changed"])
def test_a_damaged_backbone_is_found(vitreous, tmp_path, monkeypatch, change):
    damaged = tmp_path / "backbone.safetensors"
    shutil.copy(shipped_file(), damaged)
    content = bytearray(damaged.read_bytes())
    content[-1000] ^= 1
    damaged.write_bytes(content if change == "changed" else content[:-1000])
    monkeypatch.setattr(diagnosis, "shipped_file", lambda: damaged)
    run = vitreous("doctor")
    assert run.returncode == 1
    assert "FAILED" in run.stdout
