"""Pretraining runs: a collapse is named, a resume ends in the same bits, and the file serves what comes after."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
import torch
from PIL import Image

from vitreous.checkpoint.model_file import load_model
from vitreous.cli.verbs.pretrain import configure
from vitreous.data.config import DataConfig
from vitreous.errors import CheckpointError, DataError, NonFiniteError
from vitreous.model.config import ViTConfig
from vitreous.model.pools import Mean
from vitreous.recipes.pretraining import PRETRAINING, pretraining_recipe
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.config import OptimConfig
from vitreous.train.pretrain.dino import DinoConfig
from vitreous.train.pretrain.mae import MaeConfig
from vitreous.train.pretrain.monitor import CollapseError
from vitreous.train.pretrain.run import pretrain
from vitreous.train.pretrain.views import ViewsConfig
from vitreous.train.resume.replay import replay
from vitreous.train.resume.saving import Checkpoint

TINY = ViTConfig(
    image_size=8, patch_size=4, in_channels=1, num_classes=0, width=16, depth=1, heads=2, mlp_dim=32, pool=Mean()
)


def config(method, out, **options):
    own = pretraining_recipe(method, "digits")
    small = {
        "mae": MaeConfig(decoder_width=8, decoder_depth=1, decoder_heads=2, mask=0.5),
        "dino": DinoConfig(outputs=64, hidden=32, bottleneck=16),
        **{
            name: dataclasses.replace(getattr(own, name), slices=16, hidden=32, outputs=16)
            for name in ("visreg", "lejepa")
        },
    }
    plain = {
        "model": TINY,
        "steps": 6,
        "batch_size": 256,
        "device": "cpu",
        "precision": "float32",
        "views": ViewsConfig(),
    }
    return dataclasses.replace(own, **(small | plain | options), out=str(out))


@pytest.mark.parametrize("method", PRETRAINING)
def test_a_resumed_run_ends_in_the_same_bits(tmp_path, monkeypatch, method):
    monkeypatch.setattr("vitreous.train.pretrain.run._finish", lambda session: None)  # figures take seconds
    original = Checkpoint.on_train_batch_end

    class Killed(BaseException):
        pass

    def end(self, trainer, pl_module, outputs, batch, batch_idx):
        original(self, trainer, pl_module, outputs, batch, batch_idx)
        if trainer.global_step == 3:
            self.save(wait=True)
            raise Killed

    pretrain(config(method, tmp_path / "whole"))
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "on_train_batch_end", end)
        with pytest.raises(Killed):
            pretrain(config(method, tmp_path / "broken"))
    pretrain(config(method, tmp_path / "broken"), resume=True)
    states = [read_state(tmp_path / name / "last.ckpt") for name in ("whole", "broken")]
    first, second = (state["model"] for state in states)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def test_the_file_of_dino_is_the_teacher_without_a_head(tmp_path):
    pretrain(config("dino", tmp_path / "run"))
    model, info = load_model(tmp_path / "run")
    state = read_state(tmp_path / "run/last.ckpt")["model"]
    assert (model.config.num_classes, info.classes) == (0, ())
    assert torch.equal(model.patch_embed.proj.weight, state["teacher.patch_embed.proj.weight"])
    assert (tmp_path / "run/neighbours-dark.png").exists()


@pytest.mark.parametrize(
    ("method", "options", "name"),
    [("visreg", {"weight": 0.0}, "projections of all images"), ("dino", {"center_momentum": 1.0}, "on few outputs")],
)
def test_a_planted_collapse_is_named_within_200_steps(tmp_path, method, options, name):
    plain = config(method, tmp_path / "run", steps=200, batch_size=64)
    planted = dataclasses.replace(plain, **{method: dataclasses.replace(getattr(plain, method), **options)})
    with pytest.raises(CollapseError, match=f"complete collapse.*{name}"):
        pretrain(planted)


def test_a_flat_folder_needs_no_labels_and_constant_images_are_refused(tmp_path, vitreous):
    (tmp_path / "grey").mkdir()
    (tmp_path / "mixed").mkdir()
    generator = torch.Generator().manual_seed(0)
    for n in range(12):
        Image.new("RGB", (8 + n, 8 + n), (90, 90, 90)).save(tmp_path / "grey" / f"{n}.png")
        pixels = torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(tmp_path / "mixed" / f"{n}.png")
    for method in PRETRAINING:
        with pytest.raises(DataError, match="the targets are constant"):
            pretrain(config(method, tmp_path / "never", data=DataConfig(source=str(tmp_path / "grey"))))
    options = ["--steps=2", "--model.image_size=8", "--model.patch_size=4", "--model.width=16", "--model.heads=2"]
    done = vitreous("pretrain", "mixed", *options, "--data.val_fraction=0.3", "--mae.mask=0.5", "--out=run")
    assert done.returncode == 0, done.stderr
    assert "val_knn" not in (tmp_path / "run/metrics.csv").read_text()
    assert (tmp_path / "run/reconstructions-dark.png").exists()
    assert vitreous("embed", "run", "mixed", "--output=features.npz").returncode == 0
    assert "no effect" in vitreous("pretrain", "mixed", "--mpp.masked=0.5").stderr


def test_a_step_that_is_not_finite_can_be_replayed(tmp_path):
    huge = OptimConfig(lr=1e30, clip=None, warmup=0.0, schedule="constant")
    with pytest.raises(NonFiniteError, match=r"nonfinite\.replay"):
        pretrain(config("mae", tmp_path / "run", optim=huge))
    found = replay(tmp_path / "run/nonfinite.replay")
    assert found.module is not None
    assert found.module.startswith(("backbone.", "decoder.")), found
    stored = read_state(tmp_path / "run/nonfinite.replay")
    stored["pretrain"]["mae"] = {**stored["pretrain"]["mae"], "decoder_width": 4096, "decoder_depth": 64}
    write_state(tmp_path / "greedy.replay", stored)
    with pytest.raises(CheckpointError, match="weights, the file"):
        replay(tmp_path / "greedy.replay")


@pytest.mark.parametrize("method", PRETRAINING)
def test_recipes_are_what_their_command_resolves_to(method):
    own = pretraining_recipe(method)
    words = importlib.import_module(f"vitreous.recipes.pretraining.{method}").__doc__.split("pretrain ")[1].split()
    assert configure(words[:3])[0] == own
    assert own.verb == "pretrain"
