"""Pretraining runs: a collapse is named, a resume ends in the same bits, and the file serves what comes after."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import importlib
import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.cli.verbs.pretrain import configure
from vitreous.data.config import DataConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, DataError, NonFiniteError
from vitreous.model.config import ViTConfig
from vitreous.model.pools import AttentionPool, Mean
from vitreous.model.positions import Rope2d
from vitreous.recipes.pretraining import PRETRAINING, pretraining_recipe
from vitreous.runs.state_file import read_state, write_state
from vitreous.train.config import OptimConfig, TuneConfig
from vitreous.train.planning import trials
from vitreous.train.planning.plan import plan
from vitreous.train.pretrain.config import MonitorConfig
from vitreous.train.pretrain.module import PretrainModule
from vitreous.train.pretrain.monitor import CollapseError, FeatureMonitor
from vitreous.train.pretrain.objectives.dino import Dino, DinoConfig
from vitreous.train.pretrain.objectives.mae import Mae, MaeConfig
from vitreous.train.pretrain.objectives.views import ViewsConfig
from vitreous.train.pretrain.run import pretrain
from vitreous.train.resume.checkpoint import Checkpoint
from vitreous.train.resume.replay import replay

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


def save_dead(path, kept):
    """Save a model whose features use so many of 16 dimensions, and return what continues from it."""
    torch.manual_seed(0)
    dead = build(TINY)
    with torch.no_grad():
        dead.norm.weight[kept:] = 0.0  # every token is the bias there, and so small a rate cannot revive it
        dead.norm.bias.fill_(1.0)
    save_model(path, dead, ModelInfo((), EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))))
    return {"tune": TuneConfig(source=str(path)), "optim": OptimConfig(lr=1e-12), "batch_size": 64}


ONE_POINT = "complete collapse: all images have the same representation"
ONE_LINE = r"dimensional collapse: the features use 1\.00 of 16 dimensions"


@pytest.mark.parametrize(
    ("method", "kept", "kind"),
    [
        ("mae", 0, ONE_POINT),
        ("mpp", 0, ONE_POINT),
        *((each, 1, ONE_LINE) for each in ("mae", "mpp", "visreg", "lejepa")),
    ],
)
def test_a_collapsed_encoder_is_named(tmp_path, capsys, method, kept, kind):
    """Also where a projector with batch norm spreads what is left of the features."""
    planted = config(method, tmp_path / "run", steps=200, **save_dead(tmp_path / "dead.safetensors", kept))
    with pytest.raises(CollapseError, match=kind):
        pretrain(planted)
    printed = capsys.readouterr().out
    assert "\nsaved " in printed
    assert "\ncontinue " not in printed  # with the same command it would end in the same way
    if method == "mae":
        free = dataclasses.replace(planted, monitor=dataclasses.replace(planted.monitor, stop=False))
        assert pretrain(free, resume=True).model.exists()  # as the message says


def test_a_plan_does_not_stop_for_a_collapse(tmp_path, monkeypatch):
    """Its steps have the learning rate of the middle of a run from the first one on."""
    monkeypatch.setattr(trials, "_MIN_STEPS", trials._MAX_STEPS)  # enough for three checks in a row
    planned = plan(config("mae", tmp_path / "run", **save_dead(tmp_path / "dead.safetensors", 0)))
    assert planned.steps_timed == trials._MAX_STEPS


@pytest.mark.parametrize("method", ["mae", "dino"])
def test_the_output_of_a_teacher_is_judged_after_the_warm_up_alone(tmp_path, monkeypatch, method):
    monkeypatch.setattr("vitreous.train.pretrain.run._finish", lambda session: None)
    for objective in (Mae, Dino):
        monkeypatch.setattr(objective, "find_collapse", lambda self, embeddings: "uniform")
    short, long = (
        config(method, tmp_path / f"{warmup}", steps=60, batch_size=64, optim=OptimConfig(warmup=warmup))
        for warmup in (0.1, 0.9)
    )
    with pytest.raises(CollapseError, match="by step 41: uniform"):
        pretrain(short)
    with contextlib.nullcontext() if method == "dino" else pytest.raises(CollapseError, match="by step 41: uniform"):
        pretrain(long)


def test_a_number_of_classes_is_refused(vitreous):
    refused = vitreous("pretrain", "digits", "--model.num_classes=10")
    assert refused.returncode == 2
    assert "--model.num_classes has no effect here: pretraining has no classes" in refused.stderr
    assert vitreous("plan", "digits", "--method=mae", "--model.num_classes=10").returncode == 2


def test_features_are_measured_before_a_model_is_continued(tmp_path, capsys):
    torch.manual_seed(0)
    pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    save_model(tmp_path / "source.safetensors", build(TINY), ModelInfo((), pipeline))
    source = TuneConfig(source=str(tmp_path / "source.safetensors"))
    pretrain(config("mae", tmp_path / "run", tune=source, optim=OptimConfig(lr=1e-12)))
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["features_before"].keys() == report["features"].keys()
    for name, value in report["features"].items():  # so small a rate changes nothing
        assert report["features_before"][name] == pytest.approx(value, rel=0.02), name
    assert "features before training: k-NN" in capsys.readouterr().out
    (tmp_path / "run/report.json").unlink()  # as if it had been killed while writing it
    pretrain(config("mae", tmp_path / "run", tune=source, optim=OptimConfig(lr=1e-12)), resume=True)
    assert json.loads((tmp_path / "run" / "report.json").read_text())["features_before"] == report["features_before"]
    pretrain(config("mae", tmp_path / "new"))
    assert "features_before" not in json.loads((tmp_path / "new" / "report.json").read_text())


def test_a_budget_reserves_time_for_what_the_last_epoch_measures(tmp_path, monkeypatch):
    expected, measured, original = [], [], PretrainModule.on_validation_epoch_end

    def end(self):
        expected.append(self.extra_seconds)
        original(self)

    def reconstruct(self, images):
        assert not self.training  # figures are of the model as it is used
        return complete(self, images)

    complete = Mae.reconstruct
    monkeypatch.setattr(Mae, "reconstruct", reconstruct)
    monkeypatch.setattr(PretrainModule, "on_validation_epoch_end", end)
    measure = FeatureMonitor.measure
    monkeypatch.setattr(
        FeatureMonitor,
        "measure",
        lambda self, model, probes: measured.append(probes) or measure(self, model, probes=probes),
    )
    pretrain(config("mae", tmp_path / "run", steps=None, epochs=4, monitor=MonitorConfig(every=9, images=200)))
    assert measured == [True, False, False, True]  # the report has what the last epoch has
    assert [seconds > 0 for seconds in expected] == [True, False, True, True]
    with (tmp_path / "run/metrics.csv").open() as stream:
        last = [*csv.DictReader(stream)][-1]
    features = json.loads((tmp_path / "run/report.json").read_text())["features"]
    assert features == {name: float(last[name]) for name in ("effective_rank", "rankme", "val_knn", "val_linear")}


@pytest.mark.parametrize(("method", "said"), [("mae", False), ("visreg", True)])
def test_a_loss_that_compares_images_says_that_parts_change_it(tmp_path, monkeypatch, capsys, method, said):
    monkeypatch.setattr("vitreous.train.pretrain.run._finish", lambda session: None)
    pretrain(config(method, tmp_path / "run", accumulate=2))
    found = f"{method} compares the 128 images of a part: accumulate 2 changes its loss" in capsys.readouterr().out
    assert found == said


def test_labels_that_do_not_suffice_for_probes_are_noted_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("vitreous.train.pretrain.run._finish", lambda session: None)
    generator, rows = torch.Generator().manual_seed(0), []
    for n in range(12):
        pixels = torch.randint(0, 256, (8, 8), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(tmp_path / f"{n}.png")
        rows.append(f"{n}.png,{'odd' if n < 4 else ''},{'train' if n < 8 else 'val'}\n")
    (tmp_path / "m.csv").write_text("path,label,split\n" + "".join(rows))
    pretrain(config("mae", tmp_path / "run", steps=2, data=DataConfig(source=str(tmp_path / "m.csv"))))
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("not probed: train has 4 labelled images of one class, val has 0 labelled images.") == 1


def test_the_file_of_dino_is_the_teacher_without_a_head(tmp_path):
    pretrain(config("dino", tmp_path / "run"))
    model, info = load_model(tmp_path / "run")
    state = read_state(tmp_path / "run/last.ckpt")["model"]
    assert (model.config.num_classes, info.classes) == (0, ())
    assert torch.equal(model.patch_embed.proj.weight, state["teacher.patch_embed.proj.weight"])
    assert (tmp_path / "run/neighbours-dark.png").exists()


def test_the_teacher_of_dino_follows_the_statistics_of_a_convolutional_stem(tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.train.pretrain.run._finish", lambda session: None)
    pretrain(config("dino", tmp_path / "run", model=dataclasses.replace(TINY, stem="conv")))
    state = read_state(tmp_path / "run/last.ckpt")["model"]
    student, teacher = (
        {name: state[f"{part}.patch_embed.backbone.0.2.{name}"] for name in ("running_mean", "num_batches_tracked")}
        for part in ("backbone", "teacher")
    )
    assert student["num_batches_tracked"] == teacher["num_batches_tracked"] > 0
    assert (teacher["running_mean"] != 0).all()


@pytest.mark.parametrize(
    ("method", "options", "name"),
    [
        ("visreg", {"weight": 0.0}, "projections of all images"),
        ("lejepa", {"weight": 0.0}, "projections of all images"),
        ("dino", {"center_momentum": 1.0}, "on few outputs"),
    ],
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
        with pytest.raises(DataError, match=r"the targets are constant, with an entropy of 0 nats \("):
            pretrain(config(method, tmp_path / "never", data=DataConfig(source=str(tmp_path / "grey"))))
    options = ["--steps=2", "--model.image_size=8", "--model.patch_size=4", "--model.width=16", "--model.heads=2"]
    done = vitreous("pretrain", "mixed", *options, "--data.val_fraction=0.3", "--mae.mask=0.5", "--out=run")
    assert done.returncode == 0, done.stderr
    assert "val_knn" not in (tmp_path / "run/metrics.csv").read_text()
    assert (tmp_path / "run/reconstructions-dark.png").exists()
    (command,) = (line for line in done.stdout.splitlines() if line.startswith("next "))
    assert vitreous(*command.split()[2:]).returncode == 0, command
    assert (tmp_path / "run" / "features.npz").exists()
    assert "no effect" in vitreous("pretrain", "mixed", "--mpp.masked=0.5").stderr


def test_a_manifest_without_labels_ends_with_a_command_that_works(tmp_path, vitreous, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    for n in range(12):
        pixels = torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(f"{n}.png")
    labels = [("odd", "even")[n % 2] if n < 8 else "" for n in range(12)]
    (tmp_path / "some.csv").write_text("path,label\n" + "".join(f"{n}.png,{label}\n" for n, label in enumerate(labels)))
    (tmp_path / "none.csv").write_text("path\n" + "".join(f"{n}.png\n" for n in range(12)))
    sets = ["odd", "even", "odd;even", ""] * 3
    (tmp_path / "sets.csv").write_text("path,labels\n" + "".join(f"{n}.png,{text}\n" for n, text in enumerate(sets)))
    single = "".join(f"{n}.png,{'odd' if n % 2 else ''}\n" for n in range(12))  # one label, where training needs two
    (tmp_path / "single.csv").write_text(f"path,labels\n{single}")
    bracketed = "".join(f"{n}.png,['{text}']\n" for n, text in enumerate(sets))  # no labels, which pretraining allows
    (tmp_path / "brackets.csv").write_text(f"path,labels\n{bracketed}")
    options = ["--steps=2", "--model.image_size=8", "--model.patch_size=4", "--model.width=16", "--model.heads=2"]
    assert vitreous("shard", "sets.csv", "shards").returncode == 0
    of_sets = {"val_knn_map", "val_linear_map"}
    found = {"some": {"val_knn", "val_linear"}, "sets": of_sets, "shards": of_sets}
    for data in ("none.csv", "some.csv", "sets.csv", "shards", "brackets.csv", "single.csv"):
        name = f"run-{data.partition('.')[0]}"
        words = (data, *options, "--data.val_fraction=0.3", "--mae.mask=0.5", f"--out={name}")
        done = vitreous("pretrain", *words)
        assert done.returncode == 0, done.stderr
        (command,) = (line for line in done.stdout.splitlines() if line.startswith("next "))
        assert command.split()[1:3] == ["vitreous", "finetune" if data.partition(".")[0] in found else "inspect"]
        with (tmp_path / name / "metrics.csv").open() as stream:
            probes = {column for column in next(csv.reader(stream)) if column.startswith(("val_knn", "val_linear"))}
        said = {
            "some.csv": "2 classes: even 4, odd 4; 4 without a label",
            "sets.csv": "with labels, of 2 labels: even, odd",
        }
        assert said.get(data, "data  ") in done.stdout
        assert "unlabelled" not in done.stdout
        assert "by class" not in done.stdout
        if data == "single.csv":
            continue
        assert probes == found.get(data.partition(".")[0], set())
    assert vitreous("inspect", "run-none/model.safetensors", "--out=page").returncode == 0
    probed = vitreous("probe", "run-some", "some.csv", "--k=1", "--shots=none", "--json=-")
    assert probed.returncode == 0, probed.stderr


def test_a_source_is_continued_at_sizes_that_its_patches_divide(tmp_path, vitreous):
    source = dataclasses.replace(TINY, image_size=14, patch_size=7, width=32)
    pipeline = EvalPipeline((14, 14), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    torch.manual_seed(0)
    save_model(tmp_path / "source.safetensors", build(source), ModelInfo((), pipeline))
    for method, words in {"mae": ["--mae.mask=0.5"], "visreg": ["--visreg.slices=16"]}.items():
        options = ["--steps=2", "--batch-size=64", "--device=cpu", f"--method={method}", f"--out={method}", *words]
        size = ["--model.image_size=21"]  # a multiple of 7, not of the recipe's patches
        done = vitreous("pretrain", "digits", "--from=source.safetensors", *size, *options)
        assert done.returncode == 0, done.stderr
        model, info = load_model(tmp_path / method)
        assert (model.config.patch_size, model.config.image_size, model.config.width) == (7, 21, 32)
        assert info.provenance["finetuned_from"]["name"] == "source.safetensors"
    refused = vitreous("pretrain", "digits", "--from=source.safetensors", "--model.image_size=20")
    assert refused.returncode == 2
    assert "not a multiple of patch size 7" in refused.stderr
    conv = dataclasses.replace(source, image_size=16, patch_size=8, stem="conv")
    save_model(tmp_path / "conv.safetensors", build(conv), ModelInfo((), dataclasses.replace(pipeline, size=(16, 16))))
    done = vitreous("pretrain", "digits", "--from=conv.safetensors", "--steps=2", "--device=cpu", "--out=conv")
    assert done.returncode == 0, done.stderr
    refused = vitreous("pretrain", "digits", "--from=conv.safetensors", "--method=mpp")
    assert "of a model of --from, whose stem stays, --method mae" in refused.stderr


@pytest.mark.parametrize("method", ["mae", "mpp"])
def test_a_pool_that_the_method_does_not_train_is_refused_or_noted(tmp_path, vitreous, method):
    words = ("digits", f"--method={method}", "--steps=2", "--batch-size=64", "--device=cpu", "--model.pool=map")
    refused = vitreous("pretrain", *words)
    assert refused.returncode == 2
    assert f"{method} does not train pool map, whose weights would stay random: use --model.pool mean" in refused.stderr
    source = dataclasses.replace(TINY, width=32, pool=AttentionPool())
    pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    save_model(tmp_path / "source.safetensors", build(source), ModelInfo((), pipeline))
    done = vitreous("pretrain", *words[:-1], "--from=source.safetensors", "--out=run")
    assert done.returncode == 0, done.stderr
    assert f"{method} does not train pool map, whose weights stay those of source.safetensors" in done.stdout


def test_a_run_from_rotary_positions_is_repeated_from_its_recipe(tmp_path, vitreous):
    source = dataclasses.replace(TINY, width=32, position=Rope2d())
    pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    save_model(tmp_path / "source.safetensors", build(source), ModelInfo((), pipeline))
    first = vitreous("pretrain", "digits", "--from=source.safetensors", "--steps=2", "--device=cpu", "--out=first")
    assert first.returncode == 0, first.stderr
    second = vitreous("pretrain", "--config=first/recipe.yaml", "--out=second")
    assert second.returncode == 0, second.stderr
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    refused = vitreous("pretrain", "digits", "--from=source.safetensors", "--model.position.resample=google")
    assert refused.returncode != 0


def test_a_decoder_is_half_as_wide_as_its_encoder():
    wide, _, _ = configure(["digits", "--method=mae", "--model=S/16", "--model.image_size=32"])
    pipeline = EvalPipeline((32, 32), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.2,) * 3))
    assert Mae(build(wide.model), pipeline, wide.mae).decoder.width == 192


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


@pytest.mark.parametrize(
    ("method", "parts"), [("visreg", ("backbone.", "projector.")), ("dino", ("backbone.", "teacher", "head."))]
)
def test_a_replay_does_not_blame_what_the_failing_step_has_left_in_buffers(tmp_path, method, parts):
    huge = OptimConfig(lr=1e30, clip=None, warmup=0.0, schedule="constant")
    with pytest.raises(NonFiniteError):
        pretrain(config(method, tmp_path / "run", optim=huge))
    found = replay(tmp_path / "run/nonfinite.replay")
    assert "before the step" not in found.text
    assert str(found.module).startswith(parts), found


@pytest.mark.parametrize("method", PRETRAINING)
def test_recipes_are_what_their_command_resolves_to(method):
    own = pretraining_recipe(method)
    words = importlib.import_module(f"vitreous.recipes.pretraining.{method}").__doc__.split("pretrain ")[1].split()
    assert configure(words[:3])[0] == own
    assert own.verb == "pretrain"
