"""What tests of runs share: small runs of the digits, whole or broken off as by a kill after so many steps."""

from __future__ import annotations

import dataclasses
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from vitreous.model.config import ViTConfig
from vitreous.recipes import recipe
from vitreous.train.config import OptimConfig
from vitreous.train.console import Display
from vitreous.train.resume.checkpoint import Checkpoint
from vitreous.train.run import run

TINY = ViTConfig(image_size=8, patch_size=4, in_channels=1, num_classes=10, width=16, depth=1, heads=2, mlp_dim=32)


class Killed(BaseException):
    """Stands for the end of the process: nothing of the run hears of it."""


def _config(out, **options):
    plain = {"model": TINY, "epochs": 2, "device": "cpu", "optim": OptimConfig(lr=3e-3), "batch_size": 256}
    return dataclasses.replace(recipe("digits"), **(plain | options), out=str(out))


def _train(asked, resume=False, said=None):
    """A run in this process; its result and what it said, which a list gets too, however the run ends."""
    text = io.StringIO()
    try:
        result = run(asked, view=Display(Console(file=text, soft_wrap=True, width=200)), resume=resume)
        return result, text.getvalue()
    finally:
        if said is not None:
            said.append(text.getvalue())


@pytest.fixture
def runs(monkeypatch):
    """Gives `config`, `train`, and `broken_off`, which ends a run as if by a kill, once a step is made and saved."""
    original = Checkpoint.on_train_batch_end

    def broken_off(asked, steps, resume=False):
        def end(self, trainer, pl_module, outputs, batch, batch_idx):
            original(self, trainer, pl_module, outputs, batch, batch_idx)
            if trainer.global_step == steps:
                self.save(wait=True)
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(Checkpoint, "on_train_batch_end", end)
            with pytest.raises(Killed):
                _train(asked, resume)

    return SimpleNamespace(config=_config, train=_train, broken_off=broken_off, Killed=Killed)


@pytest.fixture
def selected(monkeypatch):
    """Lets runs end once they have scored the selected weights, and lists the logits: what follows takes seconds."""
    found = []

    def end(logits, labels):
        found.append(logits)
        raise Killed

    monkeypatch.setattr("vitreous.train.run.choose_temperature", end)
    return found
