"""The replay of a step that was not finite names the module where that begins."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import warnings

import pytest
import torch
from rich.console import Console

from vitreous.cli.main import main
from vitreous.errors import CheckpointError, NonFiniteError
from vitreous.model.config import ViTConfig
from vitreous.model.stems import ConvStem
from vitreous.recipes import recipe
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.config import OptimConfig
from vitreous.train.console import Display
from vitreous.train.loop.module import VitModule
from vitreous.train.resume.repetition import _backward
from vitreous.train.resume.replay import REPLAY, replay
from vitreous.train.run import run

TINY = ViTConfig(image_size=8, patch_size=4, in_channels=1, num_classes=10, width=16, depth=2, heads=2, mlp_dim=32)


def broken_run(out, **options) -> str:
    """Run until a step is not finite; return the error message."""
    plain = {"out": str(out), "epochs": 2, "device": "cpu", "ema": None, "batch_size": 128, "model": TINY}
    run_config = dataclasses.replace(recipe("digits"), **(plain | options))
    with pytest.raises(NonFiniteError) as caught:
        run(run_config, view=Display(Console(file=io.StringIO())))
    return str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "value", "module", "found"),
    [
        ("blocks.1.mlp.fc1.weight", 3e38, "blocks.1.mlp.fc1", "the output of blocks.1.mlp.fc1"),
        ("blocks.0.attn.proj.bias", 3.4e38, "blocks.0", None),
        ("head.weight", 1e38, None, None),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_first_module_is_named(tmp_path, monkeypatch, capsys, tensor, value, module, found, accumulate):
    original = VitModule.on_train_start

    def spoiled(self):
        original(self)
        with torch.no_grad():
            self.model.get_parameter(tensor).fill_(value)

    monkeypatch.setattr(VitModule, "on_train_start", spoiled)
    message = broken_run(tmp_path / "run", accumulate=accumulate)
    file = re.search(r"`vitreous replay (\S+)`", message)[1]
    assert file == str(tmp_path / "run" / REPLAY)
    assert main(["replay", file, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"file", "step", "module", "found", "notes"}
    assert main(["replay", str(tmp_path)]) == 2
    assert f"'{tmp_path}' has no nonfinite.replay: only a run" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "run")]) == 0
    output = capsys.readouterr().out
    named = re.search(r"^module +(.*)$", output, re.MULTILINE)[1]
    if module is not None:
        assert named.startswith(module), output
    else:
        assert named != "none", output
    assert (found or "") in output


def test_the_operation_is_named_and_nothing_is_printed_beside():
    x = torch.zeros(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert _backward((x.sqrt() * 0).sum()) == "SqrtBackward0"
    assert seen == []


def test_a_diverged_step_is_repeated_from_its_own_weights(tmp_path):
    optim = OptimConfig(name="sgd", lr=1e30, schedule="constant", warmup=0.0)
    message = broken_run(tmp_path / "run", optim=optim, model=dataclasses.replace(TINY, dropout=0.1))
    finding = replay(tmp_path / "run" / REPLAY)
    assert finding.step in message
    assert finding.module is not None
    assert finding.notes == ()
    stored = read_state(tmp_path / "run" / REPLAY)
    weights = stored["weights"]
    assert all(value.isfinite().all() for value in weights.values())  # the step fails, not its weights


def test_running_statistics_that_the_step_has_spoilt_are_not_its_cause(tmp_path):
    optim = OptimConfig(name="sgd", lr=1e30, schedule="constant", warmup=0.0)
    broken_run(tmp_path / "run", optim=optim, model=dataclasses.replace(TINY, stem=ConvStem()))
    finding = replay(tmp_path / "run" / REPLAY)
    assert "before the step" not in finding.text
    assert finding.module is not None


@pytest.mark.parametrize(("patches_last", "dropped"), [(1.0, 0.0), (0.0, 0.5)])
def test_a_step_is_repeated_with_its_patch_dropout(tmp_path, patches_last, dropped):
    optim = OptimConfig(name="sgd", lr=1e30, schedule="constant", warmup=0.0)
    model = dataclasses.replace(TINY, patch_dropout=0.5)
    broken_run(tmp_path / "run", optim=optim, model=model, patches_last=patches_last)
    assert read_state(tmp_path / "run" / REPLAY)["model"]["patch_dropout"] == dropped
    assert replay(tmp_path / "run" / REPLAY).module is not None


def test_a_finite_step_is_reported_as_finite(tmp_path):
    broken_run(tmp_path / "run", optim=OptimConfig(name="sgd", lr=1e30, schedule="constant", warmup=0.0))
    stored = read_state(tmp_path / "run" / REPLAY)
    mild = {name: value.clamp(-1, 1) for name, value in stored["weights"].items()}
    write_state(tmp_path / "mild.replay", {**stored, "weights": mild, "behind": 7})
    finding = replay(tmp_path / "mild.replay")
    assert finding.module is None
    assert "7 updates before" in finding.notes[0]


@pytest.mark.parametrize(
    "change", [{"replay": 0}, {"model": {}}, {"weights": {}}, {"batches": [{}]}, {"pipeline": 1}, {"seed": None}]
)
def test_an_invalid_file_is_refused_in_one_line(tmp_path, capsys, change):
    broken_run(tmp_path / "run", optim=OptimConfig(name="sgd", lr=1e30, schedule="constant", warmup=0.0))
    path = tmp_path / "run" / REPLAY
    write_state(path, read_state(path) | change)
    with pytest.raises(CheckpointError):
        replay(path)
    write_state(path, {name: value for name, value in read_state(path).items() if name != "step"})
    with pytest.raises(CheckpointError):
        replay(path)
    (tmp_path / "text").write_text("hello")
    for name in ("text", "nowhere"):
        assert main(["replay", str(tmp_path / name)]) == 1
        assert capsys.readouterr().err.count("\n") == 1
