"""Runs with a teacher: what they store, resume, refuse and say of it."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from types import SimpleNamespace

import pytest
import torch

from vitreous.accelerate.cost import cost
from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.cli.main import main
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.config import AugmentConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, NonFiniteError, UsageError
from vitreous.model.config import ViTConfig
from vitreous.runs.state_file import read_state
from vitreous.train.assembly import own_share
from vitreous.train.config import OptimConfig
from vitreous.train.console import Display
from vitreous.train.distil.answers import FOLDER, Answers, AnswerStore
from vitreous.train.distil.config import DistilConfig
from vitreous.train.distil.phase import answer_once, answering_seconds
from vitreous.train.planning.plan import plan
from vitreous.train.resume.replay import REPLAY, replay
from vitreous.train.setup import prepare

PLAIN = AugmentConfig(flip=0.0)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The user's cache folder of a test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vitreous" / FOLDER


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A model file with random weights, its classes in another order than the data's, under a licence."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=16, patch_size=4, in_channels=1, num_classes=10, width=24, depth=1, heads=2, mlp_dim=48
    )
    pipeline = EvalPipeline((16, 16), 1, PreprocessConfig(mean=(0.3,), std=(0.3,)))
    info = ModelInfo(tuple("9876543210"), pipeline, provenance={"licence": "MIT"})
    save_model(path := tmp_path_factory.mktemp("teacher") / "model.safetensors", build(config), info)
    return path


def asked(runs, out, teacher, augment=PLAIN, **options):
    distil = DistilConfig(teacher=str(teacher), **options)
    return runs.config(out, distil=distil, augment=augment, batch_size=428)  # three steps per epoch


def final(folder):
    state = read_state(folder / "last.ckpt")
    return {**state["model"], **{f"projection.{k}": v for k, v in state["distil"]["projection"].items()}}


@pytest.mark.parametrize(
    ("augment", "options"),
    [
        (AugmentConfig(flip=0.5, pad_crop=2, mixup=0.2), {"targets": "both", "features": "patches"}),
        (AugmentConfig(flip=0.5, pad_crop=2), {"targets": "features", "views": 2}),
    ],
    ids=["in the loop", "fixed views"],
)
def test_a_killed_run_ends_in_the_same_bits(runs, selected, tmp_path, teacher, augment, options):
    for name in ("whole", "killed"):
        run_config = asked(runs, tmp_path / name, teacher, augment, **options)
        if name == "killed":
            runs.broken_off(run_config, 4)
        with pytest.raises(runs.Killed):
            runs.train(run_config, resume=name == "killed")
    whole, resumed = final(tmp_path / "whole"), final(tmp_path / "killed")
    assert "projection.weight" in whole
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert torch.equal(*selected)


def test_a_replay_shows_the_images_of_the_view_that_failed(runs, tmp_path, teacher, monkeypatch):
    shown, original = [], BatchAugment.augment_batch

    def look(self, batch, progress=0.0):
        images, targets = original(self, batch, progress)
        shown.append(images)
        return images, targets

    monkeypatch.setattr(BatchAugment, "augment_batch", look)
    run_config = asked(runs, tmp_path / "run", teacher, AugmentConfig(flip=0.5, pad_crop=2), views=2)
    diverges = OptimConfig(name="sgd", lr=1e30, schedule="constant", warmup=0.0)
    with pytest.raises(NonFiniteError):
        runs.train(dataclasses.replace(run_config, optim=diverges))
    failed = shown[-1]
    shown.clear()
    replay(tmp_path / "run" / REPLAY)
    assert torch.equal(shown[0], failed)


def test_answers_are_stored_once_per_view_and_reused(runs, tmp_path, teacher, cache):
    setup = prepare(asked(runs, tmp_path / "a", teacher, AugmentConfig(flip=0.5), targets="both"), (), Display())
    notes, done = [], []
    setup.data_module.setup("fit")

    def answer():
        setup.distiller.answers = None
        source = answer_once(setup, setup.distiller, notes.append, lambda *count: done.append(count), 1e9)
        return source, setup.distiller.answers

    _, first = answer()
    assert len(list(cache.glob("*.state"))) == 2
    assert done[-1] == (2568, 2568)
    assert first.logits.shape == (1284, 2, 10)
    assert first.features.shape == (1284, 2, 24)
    assert answer()[0] == "from the cache"
    victim = sorted(cache.glob("*.state"))[1]
    content = bytearray(victim.read_bytes())
    content[-100] ^= 1
    victim.write_bytes(content)
    _, again = answer()
    assert "do not match its checksum" in notes[-1]
    assert torch.equal(first.logits, again.logits)
    assert done[-1] == (1284, 1284)  # only the damaged view


def test_a_slow_teacher_is_timed_on_few_images_before_any_is_decoded(runs, tmp_path, teacher, monkeypatch):
    setup = prepare(asked(runs, tmp_path / "a", teacher, AugmentConfig(flip=0.5)), (), Display())
    sizes, kind = [], type(setup.distiller)
    ask = kind.ask
    monkeypatch.setattr(kind, "ask", lambda self, images, *rest: sizes.append(len(images)) or ask(self, images, *rest))
    assert answering_seconds(setup, setup.distiller, at_most=0.0) > 0
    assert sizes == [2, 2]
    assert not setup.data_module._datasets
    assert answering_seconds(setup, setup.distiller) > 0
    assert sizes == [2, 2, 2, 2, 428, 428, 428]
    assert setup.distiller.answers is None


def test_answers_that_a_killed_process_left_unfinished_a_day_ago_are_removed(cache):
    def store():
        AnswerStore({"teacher": "x"}, print).save(0, Answers(torch.zeros(2, 3), None))

    store()
    (whole,) = cache.iterdir()
    old, new, other = (
        cache / name for name in (f".{whole.name}.00000000.tmp", f".{whole.name}.0a1b2c3d.tmp", ".diary.00000000.tmp")
    )
    for path in (old, new, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (time.time() - 100_000,) * 2)
    store()
    assert {*cache.iterdir()} == {whole, new, other}


def test_stored_answers_are_those_of_the_loop(runs, tmp_path, teacher, monkeypatch):
    for place in ("train.distil.teacher", "engines.choose"):
        monkeypatch.setattr(f"vitreous.{place}.computes_bf16", lambda device: False)
    run_config = asked(runs, tmp_path, teacher, AugmentConfig(flip=0.5), targets="both", features="patches")
    setup = prepare(run_config, (), Display())
    setup.data_module.setup("fit")
    distiller = setup.distiller
    answer_once(setup, distiller, print, lambda *count: None, 1e9)
    batch = next(iter(setup.data_module.train_dataloader()))
    images, _ = setup.data_module.batch_augment.augment_batch(batch)
    stored = distiller.answers.at(batch["index"], distiller.views.shown(batch, distiller.augment))
    asked_now = distiller.ask(images, distiller.teacher.in_loop(setup.device, "patches"), distiller.grid)
    torch.testing.assert_close(stored.logits, asked_now.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stored.features.float(), asked_now.features, rtol=2e-3, atol=2e-3)
    model, info = load_model(teacher)
    expected = model.eval()(distiller.teacher.pipeline.normalise(torch.zeros(1, 1, 16, 16, dtype=torch.uint8)))
    assert info.classes == tuple("9876543210")
    assert expected.shape == (1, 10)
    assert distiller.order.tolist() == list(range(9, -1, -1))


def test_the_model_file_and_the_report_name_the_teacher(runs, tmp_path, teacher):
    run_config = dataclasses.replace(asked(runs, tmp_path / "r", teacher, temperature=2.0), epochs=1)
    result, text = runs.train(run_config)
    line = next(line for line in text.splitlines() if line.startswith("teacher"))
    assert "model.safetensors (vitreous)" in line
    assert "logits (temperature 2, weight 0.9)" in line
    assert "licence   of the teacher: MIT: commercial use allowed" in text
    provenance = load_model(tmp_path / "r" / "model.safetensors")[1].provenance
    found = provenance["distilled_from"]
    assert found["licence"] == "MIT"
    assert found["name"] == str(teacher)
    assert len(found["digest"]) == 64
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert report["distil"] == {
        "teacher": found, "targets": "logits", "temperature": 2.0, "weight": 0.9, "views": 1,
    }  # fmt: skip
    assert f'teacher: "{teacher}"' in (tmp_path / "r" / "recipe.yaml").read_text()
    assert result.folder == tmp_path / "r"
    assert report["training"]["seconds"]["teacher"] >= 0


def test_another_teacher_at_the_same_path_is_refused_on_resume(runs, tmp_path, teacher):
    path = tmp_path / "model.safetensors"
    path.write_bytes(teacher.read_bytes())
    run_config = asked(runs, tmp_path / "r", path)
    runs.broken_off(run_config, 2)
    model, info = load_model(path)
    torch.nn.init.ones_(model.head.bias)
    save_model(path, model, info)
    with pytest.raises((CheckpointError, UsageError), match="the teacher's weights have changed"):
        runs.train(run_config, resume=True)


def test_a_plan_counts_the_teacher(runs, tmp_path, teacher, monkeypatch):
    for name, value in (("_SECONDS", 0.1), ("_MIN_STEPS", 2), ("_MAX_STEPS", 2), ("_LARGER_SIZES", 0)):
        monkeypatch.setattr(f"vitreous.train.planning.trials.{name}", value)
    monkeypatch.setattr("vitreous.train.results.report_seconds", lambda *given: 1.0)
    once = plan(asked(runs, tmp_path, teacher))
    flops = cost(load_model(teacher)[0].config).flops
    assert once.teacher_seconds > 0
    assert once.total_flops > 1284 * flops
    assert once.total_seconds > once.start_seconds + once.teacher_seconds
    assert not (tmp_path / "cache" / "vitreous" / FOLDER).exists()


def test_validations_are_estimated_without_the_teachers_part_of_a_step():
    teacher = SimpleNamespace(flops=9e9)
    setup = SimpleNamespace(cost=SimpleNamespace(flops=1e9), distiller=None)
    assert own_share(setup) == 1
    setup.distiller = SimpleNamespace(teacher=teacher, in_loop=True)
    assert own_share(setup) == 0.25  # three parts of twelve: forward and backward take three times a forward pass
    setup.distiller.in_loop = False
    assert own_share(setup) == 1


def test_the_command_takes_a_teacher(capsys, teacher):
    assert main(["train", "digits", "--teacher", str(teacher), "--distil.temperature", "2", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert f'  teacher: "{teacher}"\n  targets: "logits"' in printed
    assert "  temperature: 2.0" in printed
    assert main(["finetune", "digits", "--from", str(teacher), "--teacher", str(teacher), "--print-config"]) == 0
    assert f'  teacher: "{teacher}"' in capsys.readouterr().out
    assert main(["train", "digits", "--distil.temperature", "2"]) == 2
    assert "distil.temperature has no effect here: there is no teacher" in capsys.readouterr().err
    assert main(["train", "digits", "--teacher", f"{teacher}-missing"]) == 1
    assert "missing" in capsys.readouterr().err


def test_a_teacher_without_classes_teaches_its_features(runs, tmp_path):
    config = ViTConfig(
        image_size=16, patch_size=4, in_channels=1, num_classes=0, width=24, depth=1, heads=2, mlp_dim=48
    )
    pipeline = EvalPipeline((16, 16), 1, PreprocessConfig(mean=(0.3,), std=(0.3,)))
    save_model(tmp_path / "bare.safetensors", build(config), ModelInfo((), pipeline))
    _, said = runs.train(dataclasses.replace(asked(runs, tmp_path / "run", tmp_path / "bare.safetensors"), epochs=1))
    assert "has no classes: the model learns its features" in said
    assert 'targets: "features"' in (tmp_path / "run" / "recipe.yaml").read_text()
