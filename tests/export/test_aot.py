"""`vitreous export --aot`: compiled programs equal their model, and never run without being trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from exported_models import saved
from PIL import Image

from vitreous.cli.main import main
from vitreous.errors import CheckpointError, MissingExtraError, OutputError
from vitreous.export.aot_file import _compile, check_compiler
from vitreous.export.graph.tracing import trace
from vitreous.predictor import load


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose resize is quickly compiled."""
    return saved(tmp_path_factory.mktemp("model"), fit="squash", interpolation="nearest", depth=1)


@pytest.fixture(scope="module")
def compiled(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The model, compiled by the command."""
    try:
        check_compiler()
    except MissingExtraError as error:
        pytest.skip(str(error))
    file = tmp_path_factory.mktemp("compiled") / "m.pt2"
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):  # this processor is not tested by compiling for it
        assert main(["export", str(source), str(file), "--to", "torch", "--aot"]) == 0
    return file


def zipped(file: Path, entries: dict[str, str]) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in entries.items():
            archive.writestr(name, text)
    return file


def test_compiled_code_predicts_as_its_model_does(source, compiled):
    model, code = load(source, device="cpu", engine="torch"), load(compiled, trust_code=True)
    assert code.info == model.info
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (side, 50, 3), dtype=np.uint8) for side in (20, 70, 90)]
    np.testing.assert_allclose(code.logits(images), model.logits(images), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(code.embed(images), model.embed(images), rtol=1e-4, atol=1e-5)
    batch = rng.integers(0, 256, (5, 41, 77, 3), dtype=np.uint8)  # resized by the code itself
    np.testing.assert_allclose(code.exported.run(batch)["logits"], model.logits(list(batch)), rtol=1e-4, atol=1e-5)


def test_compiled_code_does_not_run_unless_trusted(compiled, tmp_path, capfd):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (60, 50), "red").save(tmp_path / "photos/red.png")
    words = ["predict", str(compiled), str(tmp_path / "photos"), "--format", "csv"]
    assert main(words) == 1
    error = capfd.readouterr().err
    assert "contains machine code" in error
    assert "--trust-code" in error
    assert len(error.splitlines()) == 1
    assert main([*words, "--trust-code"]) == 0
    assert "red.png" in capfd.readouterr().out


def test_the_example_runs_without_vitreous_and_without_a_compiler(source, compiled, tmp_path):
    with zipfile.ZipFile(compiled) as archive:
        names = archive.namelist()
        words = json.loads(archive.read(next(name for name in names if name.endswith("/extra/vitreous.json"))))
    assert not [name for name in names if name.endswith(".cpp")]
    Image.effect_noise((61, 47), 90).convert("RGB").save(tmp_path / "x.png")
    program = "import sys; sys.modules['vitreous'] = None\n" + words["example"]
    environment = {**os.environ, "CXX": "/nonexistent/g++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x.png")],
        cwd=compiled.parent, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    _, label, value = done.stdout.splitlines()[0].split("\t")
    best = load(source, device="cpu", engine="torch").predict(tmp_path / "x.png")
    assert (label, float(value)) == (best.label, pytest.approx(best.probability, abs=1e-4))


def test_code_for_another_machine_is_refused_before_it_runs(compiled, tmp_path):
    with zipfile.ZipFile(compiled) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    machine = next(name for name in entries if name.endswith("/extra/machine.txt"))
    assert f"torch {torch.__version__[:4]}" in entries[machine].decode()
    zipped(tmp_path / "m.pt2", entries | {machine: "torch 2.1, plan9, pdp11, none"})
    with pytest.raises(CheckpointError, match=r"was compiled for torch 2.1, plan9, pdp11, none; this is torch"):
        load(tmp_path / "m.pt2", trust_code=True)


@pytest.mark.parametrize(
    ("entries", "trusted", "said"),
    [
        ({"m/data/aotinductor/model/x.so": "code"}, False, "contains machine code"),
        ({"m/models/model.json": '{"guards_code": ["print(1)"]}'}, True, "holds Python code"),
        ({"m/data/aotinductor2/x.so": "code"}, True, "which no exported model has"),
        ({"data/aotinductor/model/x.so": "code"}, True, "which no exported model has"),
        ({"m/data/aotinductor/model/x.so": "code"}, True, "compiled for an unknown machine"),
    ],
)
def test_archives_that_are_not_what_they_seem(tmp_path, entries, trusted, said):
    with pytest.raises(CheckpointError, match=said):
        load(zipped(tmp_path / "m.pt2", entries), trust_code=trusted)


def test_without_a_compiler_nothing_is_begun(tmp_path, capfd):
    (tmp_path / "m.safetensors").write_text("never opened")
    with torch._inductor.config.patch({"cpp.cxx": ("/nonexistent/g++",)}):
        assert main(["export", str(tmp_path / "m.safetensors"), str(tmp_path / "m.pt2"), "--to", "torch", "--aot"]) == 1
    error = capfd.readouterr().err
    assert "--aot needs a C++ compiler, and there is none: install g++" in error
    assert len(error.splitlines()) == 1
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_a_compiler_that_fails_is_one_line(tmp_path):
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-c*) echo "x.cpp:1: fatal error: no header" >&2; exit 1; esac\n')
    compiler.chmod(0o755)
    program = trace(torch.nn.ReLU(), torch.zeros(2, 3))
    changes = {"cpp.cxx": (str(compiler),), "cpp.vec_isa_ok": True}
    with torch._inductor.config.patch(changes), pytest.raises(OutputError, match=r"fatal error: no header") as caught:
        _compile(program, tmp_path / "m.pt2", str(tmp_path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m.pt2").exists()


def test_aot_needs_torch(tmp_path, capfd):
    assert main(["export", str(tmp_path), "m.onnx", "--to", "onnx", "--aot"]) == 2
    assert "--aot is not possible with --to onnx: use --to torch" in capfd.readouterr().err
