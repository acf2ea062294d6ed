"""Runs in stages: the best stage is saved and reported, everything resumes, and a second run has its features."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.cli.verbs.finetune import configure
from vitreous.data.batches.loaders import ImageLoaders
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError, DataError, TrainingError, UsageError
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer
from vitreous.predictor import load
from vitreous.runs.state_file import read_state
from vitreous.train.console import Display
from vitreous.train.finetune.stages import below_head, ending, staging, story, training, writers
from vitreous.train.finetune.stages.heads import Heads
from vitreous.train.finetune.stages.outcome import Candidate, Outcome
from vitreous.train.finetune.stages.staging import Staging
from vitreous.train.resume.checkpoint import Checkpoint
from vitreous.train.resume.signals import Stopped
from vitreous.train.run import run
from vitreous.train.setup import prepare

SOURCE = ViTConfig(image_size=16, patch_size=4, in_channels=1, num_classes=7, width=16, depth=3, heads=2, mlp_dim=32)


class KilledError(BaseException):
    """The process was killed."""


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Sixty PNG files of each of three digits, and a source model with random weights."""
    root, data = tmp_path_factory.mktemp("digits"), load_digits()
    for digit in (7, 8, 9):
        folder = root / "images" / str(digit)
        folder.mkdir(parents=True)
        for n in np.flatnonzero(data.target == digit)[:60]:
            Image.fromarray((data.images[n] * 255 / 16).astype(np.uint8)).save(folder / f"{n}.png")
    torch.manual_seed(0)
    pipeline = EvalPipeline((16, 16), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    save_model(root / "source.safetensors", VisionTransformer(SOURCE), ModelInfo(tuple("abcdefg"), pipeline))
    return root


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("vitreous.engines.choose.installed", lambda name: False)  # a busy machine would convert
        yield


def start(digits, out, *words, resume=False, started=None, text=None):
    common = ["--device=cpu", "--precision=float32", "--augment.flip=0", "--batch-size=16"]
    common += [] if any(word.startswith("--budget") for word in words) else ["--epochs=2"]
    source = ["--from", str(digits / "source.safetensors"), "--optim.lr=3e-3"]
    config, given, _ = configure([str(digits / "images"), *source, *common, f"--out={out}", *words])
    text = text or io.StringIO()
    view = Display(Console(file=text, soft_wrap=True, width=250))
    result = run(config, explicit=given, started=started, view=view, resume=resume)
    return result, text.getvalue()


@pytest.fixture(scope="module")
def whole(digits, one_cache, tmp_path_factory):
    """A run that nothing disturbed."""
    return start(digits, tmp_path_factory.mktemp("runs") / "whole")


def stages_of(result):
    return {row["stage"]: row for row in json.loads((result.folder / "report.json").read_text())["finetune"]["stages"]}


def test_the_best_stage_is_the_result_and_every_stage_is_listed(digits, whole):
    result, text = whole
    report = json.loads((result.folder / "report.json").read_text())
    rows = stages_of(result)
    assert list(rows)[:4] == ["k-NN", "linear", "linear, 2 views", "attentive"]
    assert {"last-2", "lora", "full"} <= set(rows)
    models = {name: row for name, row in rows.items() if row["macro_f1"] is not None}
    assert set(models) >= {"linear", "attentive", "last-2"}
    best = max(models.values(), key=lambda row: (row["top1"], -row["log_loss"]))
    assert report["finetune"]["chosen"] == best["stage"]
    assert [row["stage"] for row in rows.values() if row["chosen"]] == [best["stage"]]
    assert report["scores"]["val"]["top1"] == best["top1"] == result.val.top1
    for name, row in rows.items():
        assert (row["skipped"] is None) == (row["top1"] is not None), name
        assert f"stage     {name}: " in text
        if row["skipped"] is None:
            assert row["low"] < row["top1"] < row["high"] or row["top1"] in (0, 1)
            assert row["seconds"] > 0
    page = (result.folder / "report.html").read_text()
    assert ">Stages</h2>" in page
    assert f"{best['stage']} (saved)" in page
    assert "neighbours are not a model" in rows["k-NN"]["detail"]


def test_the_file_predicts_what_was_reported(digits, whole):
    result, _ = whole
    _, info = load_model(result.model)
    report = json.loads((result.folder / "report.json").read_text())
    assert info.temperature == report["calibration"]["temperature"]
    assert info.classes == ("7", "8", "9")
    setup = prepared(digits)
    val = setup.data.splits["val"]
    classifier = load(result.model, device="cpu")
    predicted = np.concatenate([classifier.logits(val.image(n))[None] for n in range(len(val))]).argmax(1)
    assert (predicted == val.labels).mean() == pytest.approx(report["scores"]["val"]["top1"])


def prepared(digits, *words):
    config, given, _ = configure(
        [str(digits / "images"), "--from", str(digits / "source.safetensors"), "--device=cpu", *words]
    )
    return prepare(config, given, Display(Console(file=io.StringIO())))


def test_every_model_in_the_journal_gives_the_logits_that_it_was_scored_by(digits, whole):
    stored = read_state(whole[0].folder / "stages.ckpt")["outcomes"]
    setup, checked = prepared(digits, "--precision=float32"), []
    images = torch.stack([setup.pipeline(setup.data.splits["val"].image(n)) for n in range(36)])
    for each in map(staging._restored, stored):
        if each.candidate is not None:
            model = staging.variant(setup, each.candidate).model.eval()
            with torch.no_grad():
                torch.testing.assert_close(model(images), each.candidate.logits, rtol=1e-4, atol=1e-4)
            checked.append(each.stage)
    assert checked[:3] == ["linear", "linear, 2 views", "attentive"]


def test_a_second_run_reads_its_features(digits, whole, tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.train.finetune.stages.features.Extractor._run", lambda *_: pytest.fail("computed"))
    monkeypatch.setattr(story, "_train", lambda this: None)
    result, text = start(digits, tmp_path / "again")
    assert text.count("from the cache") == 2
    rows = stages_of(result)
    assert rows["linear"]["top1"] == stages_of(whole[0])["linear"]["top1"]
    _, info = load_model(result.model)
    assert info.scores["val"]["top1"] == max(rows[name]["top1"] for name in rows if rows[name]["macro_f1"])


HEADS = {"k-NN": "neighbours", "linear": "linear", "linear, 2 views": "linear_on", "attentive": "attentive"}
STAGES = ("features", *HEADS, "last-2", "last-2, averaged", "report")


@pytest.mark.parametrize("where", STAGES)
def test_a_run_that_is_killed_in_any_stage_ends_as_one_that_was_not(digits, whole, tmp_path, monkeypatch, where):
    def end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 12:  # in the second epoch
            self.save(wait=True)
            raise KilledError

    def killed(*_, **__):
        raise KilledError

    places = {
        "features": (story, "Heads"),
        **{stage: (Heads, method) for stage, method in HEADS.items()},
        "last-2": (Checkpoint, "on_train_batch_end"),
        "last-2, averaged": (below_head, "average_with_start"),
        "report": (ending, "finish"),
    }
    with monkeypatch.context() as patched:
        patched.setattr(*places[where], end if where == "last-2" else killed)
        with pytest.raises(KilledError):
            start(digits, tmp_path / "run")
    earlier = [stage for stage in HEADS if STAGES.index(stage) < STAGES.index(where)]
    with monkeypatch.context() as patched:
        for stage in earlier:
            patched.setattr(Heads, HEADS[stage], lambda *_: pytest.fail("fitted twice"))
        resumed, text = start(digits, tmp_path / "run", resume=True)
    assert f"stages.ckpt: done are {', '.join(earlier)}" in text or not earlier
    assert ("last.ckpt: continues from epoch 2, step 3" in text) == (where == "last-2")
    assert ("last.ckpt: continues" in text) == where.startswith("last-2")
    first, second = (load_file(result.model) for result in (whole[0], resumed))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    scores = [[(n, r["top1"], r["skipped"]) for n, r in stages_of(result).items()] for result in (whole[0], resumed)]
    assert scores[0] == scores[1]


def test_a_resumed_run_counts_the_time_of_features_that_was_killed(digits, whole, tmp_path, monkeypatch):
    def killed(*_):
        raise KilledError

    monkeypatch.setattr("vitreous.train.finetune.stages.staging._KEPT_EVERY", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(story, "Heads", killed)
        with pytest.raises(KilledError):
            start(digits, tmp_path / "run", "--budget=600s", started=time.monotonic() - 500)
    with pytest.raises(TrainingError, match=r"used up before the first head: (59|6\d)\d s"):
        start(digits, tmp_path / "run", "--budget=600s", resume=True, started=time.monotonic() - 95)
    with pytest.raises(TrainingError, match="used up before the first head"):
        start(digits, tmp_path / "new", "--budget=20s", started=time.monotonic() - 100)
    assert not (tmp_path / "new").exists()  # with the time that it had written


def test_a_finished_run_whose_report_is_damaged_writes_it_again(digits, whole, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(whole[0].folder, tmp_path / "run"))
    (folder / "report.json").write_text("{")
    for method in HEADS.values():
        monkeypatch.setattr(Heads, method, lambda *_: pytest.fail("fitted twice"))
    monkeypatch.setattr(training, "fit", lambda *_: pytest.fail("trained twice"))
    resumed, text = start(digits, folder, resume=True)
    assert "stages.ckpt: done are k-NN, linear, linear, 2 views, attentive" in text
    assert stages_of(resumed) == stages_of(whole[0])
    (folder / "report.json").write_text("{")
    (folder / "stages.ckpt").unlink()
    with pytest.raises(UsageError, match="is damaged, and there is no checkpoint to write it again from"):
        start(digits, folder, resume=True)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A model of the same classes in another order, with random weights, under a licence."""
    torch.manual_seed(1)
    model = VisionTransformer(dataclasses.replace(SOURCE, num_classes=3, depth=1))
    pipeline = EvalPipeline((16, 16), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    path = tmp_path_factory.mktemp("teacher") / "teacher.safetensors"
    save_model(path, model, ModelInfo(tuple("987"), pipeline, provenance={"licence": "MIT"}))
    return path


@pytest.mark.parametrize(
    "options",
    [["--augment.resized_crop=1"], ["--augment.pad_crop=2", "--distil.targets=both", "--distil.features=patches"]],
    ids=["once", "in steps"],
)
def test_a_training_learns_from_the_teacher_also_after_a_kill(digits, teacher, tmp_path, monkeypatch, options):
    def end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 12:
            self.save(wait=True)
            raise KilledError

    words = ["--teacher", str(teacher), *options]
    first, text = start(digits, tmp_path / "whole", *words)
    assert "licence   of the teacher: MIT" in text
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "on_train_batch_end", end)
        with pytest.raises(KilledError):
            start(digits, tmp_path / "run", *words)
    resumed, text = start(digits, tmp_path / "run", *words, resume=True)
    assert "last.ckpt: continues from epoch 2, step 3" in text
    one, other = (read_state(each.folder / "stages" / "last-2" / "last.ckpt") for each in (first, resumed))
    assert one["distil"]["answers"] == other["distil"]["answers"]
    assert (one["distil"]["answers"] is not None) == options[0].startswith(
        "--augment.resized"
    )  # once, or in every step
    assert one["distil"]["projection"].keys() == other["distil"]["projection"].keys()
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    alone, _ = start(digits, tmp_path / "alone", *[each for each in options if each.startswith("--augment")])
    plain = read_state(alone.folder / "stages" / "last-2" / "last.ckpt")["model"]
    assert any(not torch.equal(one["model"][name], plain[name]) for name in plain)


def test_a_model_whose_heads_alone_are_fitted_names_no_teacher(digits, teacher, tmp_path, monkeypatch):
    setup = prepared(digits, "--teacher", str(teacher))
    logits, labels = torch.eye(3), torch.arange(3)
    found = [staging.variant(setup, Candidate(setup.config.model, {}, logits, labels, epoch)) for epoch in (0, 2)]
    assert [each.distiller for each in found] == [None, setup.distiller]
    monkeypatch.setattr("vitreous.train.finetune.stages.decisions._FEWEST_IMAGES", 1000)
    result, text = start(digits, tmp_path / "run", "--teacher", str(teacher))
    assert "note      the teacher has no part in this model" in text
    _, info = load_model(result.model)
    assert "distilled_from" not in info.provenance
    assert json.loads((result.folder / "report.json").read_text())["distil"] is None


def test_a_signal_leaves_the_best_model_so_far(digits, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise Stopped(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Heads, "attentive", stop)
        result, text = start(digits, tmp_path / "run")
    assert result.exit_code == 143
    assert "terminated: the best model so far (linear" in text
    assert "--resume" in text
    _, info = load_model(result.model)
    assert info.scores["val"]["top1"] == result.val.top1
    assert not (tmp_path / "run" / "report.json").exists()


@pytest.mark.parametrize("head", ["wrong", "right"])
def test_a_signal_in_a_training_leaves_the_best_model_so_far(digits, whole, tmp_path, monkeypatch, head):
    """It is of the first epoch, which was not due to be written yet, unless the head is better."""
    fit_linear, sign = Heads.linear, 1.0 if head == "right" else -1.0

    def linear(self):
        found = fit_linear(self)
        logits = 5 * sign * torch.nn.functional.one_hot(found.candidate.labels, 3)
        return dataclasses.replace(found, candidate=dataclasses.replace(found.candidate, logits=logits))

    def stop(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 12:  # in the second epoch
            raise Stopped(signal.SIGINT)

    monkeypatch.setattr(Heads, "linear", linear)
    for method, stage in (("linear_on", "linear, 2 views"), ("attentive", "attentive")):
        monkeypatch.setattr(Heads, method, lambda *_, stage=stage: Outcome(stage, skipped="it is left out"))
    monkeypatch.setattr(Checkpoint, "on_train_batch_end", stop)
    monkeypatch.setattr("vitreous.train.results._SAVE_EVERY", 1e12)
    result, _ = start(digits, tmp_path / "run")
    assert result.exit_code == 130
    assert load_model(result.model)[1].provenance["epoch"] == (None if head == "right" else 1)


def test_a_training_that_diverges_leaves_the_heads(digits, tmp_path, monkeypatch):
    def diverge(session):
        from vitreous.errors import NonFiniteError

        raise NonFiniteError("the loss is NaN at step 3")

    monkeypatch.setattr(training, "fit", diverge)
    result, _ = start(digits, tmp_path / "run")
    rows = stages_of(result)
    assert rows["last-2"]["skipped"] == "its training failed: the loss is NaN at step 3"
    chosen = json.loads((result.folder / "report.json").read_text())["finetune"]["chosen"]
    assert chosen in {"linear", "linear, 2 views", "attentive"}


def breaking(error):
    def end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 12:  # in the second epoch
            raise error

    return end


def test_an_error_in_a_stage_names_the_command_that_continues_the_run(digits, whole, tmp_path, monkeypatch):
    text, folder = io.StringIO(), tmp_path / "run"
    monkeypatch.setattr(Checkpoint, "on_train_batch_end", breaking(DataError("7/3.png is gone")))
    with pytest.raises(DataError, match="is gone"):
        start(digits, folder, text=text)
    recipe = folder / "recipe.yaml"
    assert f"\ncontinue  vitreous finetune --config {recipe} --out {folder} --resume\n" in text.getvalue()
    assert recipe.is_file()


def test_a_run_goes_on_without_a_stage_whose_worker_is_killed(digits, whole, tmp_path, monkeypatch):
    killed = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    monkeypatch.setattr(Checkpoint, "on_train_batch_end", breaking(killed))
    result, text = start(digits, tmp_path / "run")
    skipped = stages_of(result)["last-2"]["skipped"]
    assert skipped.startswith("its training failed: a data loader worker exited unexpectedly")
    assert "\ncontinue  " not in text


def test_a_stage_is_compared_with_those_before_it_also_in_a_run_that_is_resumed(digits):
    setup, labels = prepared(digits), torch.tensor([0, 1, 2, 0])
    outcomes = []
    for stage, right in (("linear", 2), ("last-2", 3), ("last-2, averaged", 3)):
        logits = torch.nn.functional.one_hot(labels, 3).float()
        logits[right:] = 0  # the first class
        logits[right:, (labels[-1] + 1) % 3] = 1
        outcomes.append(Outcome.of(stage, Candidate(setup.config.model, {}, logits, labels)))
    staged = Staging(setup, None, None, None, 0.0, outcomes=outcomes)
    assert staged.best_before("last-2") is outcomes[0]
    assert staged.best_before("full") is staged.best is outcomes[1]


@pytest.mark.parametrize(
    ("fitting", "counts"), [(8, [2, 8, 32, 16, 8, 32, 16, 8]), (1, [2, 1, 32, 16, 8, 4, 2, 1]), (0, [2, 1])]
)
def test_a_step_that_does_not_fit_is_timed_on_fewer_images(digits, monkeypatch, fitting, counts):
    tried = []

    def short_of_memory(setup, count, step, repeats):
        tried.append(count)
        if count > fitting:
            raise RuntimeError("out of memory")
        return 0.001 * count

    monkeypatch.setattr(training, "_time_step", short_of_memory)
    setup = prepared(digits, "--tune=full")
    batch = min(setup.config.batch_size, len(setup.data.splits["train"]))
    found = training.step_seconds(setup, 1e9)
    assert found == ((pytest.approx(0.001 * batch), pytest.approx(0.001 * batch)) if fitting else None)
    assert tried == counts


def test_on_a_cpu_a_step_is_timed_on_as_many_images_as_the_memory_has_room_for(digits, monkeypatch):
    counts, setup = [], prepared(digits, "--tune=full")
    monkeypatch.setattr(training, "_time_step", lambda setup, count, *_: counts.append(count) or 0.001 * count)
    room = 4 * setup.cost.parameters + 5.5 * setup.cost.activation_bytes
    monkeypatch.setattr(training, "memory_left", lambda: int(room / 0.7))
    assert training.step_seconds(setup, 1e9) is not None
    assert counts == [2, 5, 5]
    monkeypatch.setattr(training, "memory_left", lambda: 0)
    assert training.step_seconds(setup, 1e9) is None


def test_a_run_goes_on_without_trainings_that_do_not_fit_into_memory(digits, whole, tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(training, "_time_step", refuse)
    rows = stages_of(start(digits, tmp_path / "run")[0])
    for mode in ("last-2", "full"):
        assert rows[mode]["skipped"] == "not one image of a training step fits into memory"


def test_slow_steps_are_timed_on_few_images_also_without_a_budget(digits, whole, teacher, tmp_path, monkeypatch):
    """And a teacher is not timed at all for a training that takes too long without it."""
    counts = []
    monkeypatch.setattr(training, "_time_step", lambda setup, count, *_: counts.append(count) or 60.0 * count)
    monkeypatch.setattr("vitreous.train.distil.phase.answering_seconds", lambda *_: pytest.fail("timed"))
    result, _ = start(digits, tmp_path / "run", "--teacher", str(teacher), "--augment.resized_crop=1")
    assert counts == [2] * 4  # of each mode, first few images and then as many as the time allows
    assert "more than 1:00:00: give a --budget" in stages_of(result)["full"]["skipped"]


def test_the_time_of_a_step_counts_the_teacher(digits, teacher, monkeypatch):
    setup = prepared(digits, "--tune=full", "--teacher", str(teacher), "--augment.pad_crop=2")
    asked, ask = [], type(setup.distiller).ask
    monkeypatch.setattr(
        type(setup.distiller), "ask", lambda self, images, *rest: asked.append(len(images)) or ask(self, images, *rest)
    )
    training.step_seconds(setup, 1e9)
    assert asked[:2] == [2, 2]
    assert asked[-3:] == [32] * 3


def test_a_small_budget_is_not_spent_on_timing_steps(digits, tmp_path, monkeypatch):
    counts = []

    def slow(setup, count, step, repeats):
        counts.append((count, repeats))
        return 60.0 * count

    monkeypatch.setattr(training, "_time_step", slow)
    result, _ = start(digits, tmp_path / "run", "--budget=20s")
    assert counts == [(2, 2)]
    assert "epochs would take about" in stages_of(result)["full"]["skipped"]
    counts.clear()
    monkeypatch.setattr(training, "_time_step", lambda setup, count, *_: counts.append(count) or 0.001 * count)
    training.step_seconds(prepared(digits, "--tune=full"), at_most=0.03)
    assert counts[-1] == 10  # 0.03 s over three repeats of 1 ms an image


@pytest.fixture(scope="module")
def splits(digits, tmp_path_factory):
    """The digits as a train, a val and a test split, of 108, 36 and 36 images."""
    root = tmp_path_factory.mktemp("splits")
    shutil.copy(digits / "source.safetensors", root)
    for digit in "789":
        for n, path in enumerate(sorted((digits / "images" / digit).iterdir())):
            folder = root / "images" / ("train", "train", "train", "val", "test")[n % 5] / digit
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder)
    return root


def test_a_budget_reserves_the_time_of_the_test_split(digits, splits, tmp_path, monkeypatch):
    setup, counts = prepared(splits, "--budget=600s"), []
    assert writers.seconds_of_test(setup) > 0
    assert setup.model.training
    monkeypatch.setattr(writers, "_time_scoring", lambda setup, count: counts.append(count) or 0.01 * count)
    assert writers.seconds_of_test(prepared(digits)) == 0
    new = SimpleNamespace(has_run=False)
    opened = Staging.open(setup, new, None, None, started=time.monotonic(), exit_seconds=0.0)
    assert counts == [2, 2, 8, 8, 32, 32]
    assert opened.testing == pytest.approx(0.01 * 36)
    assert opened.left <= 600 - opened.reporting - opened.testing
    monkeypatch.setattr(writers, "_time_scoring", lambda setup, count: 1e6)
    with pytest.raises(TrainingError, match=r"\d s are reserved for the test split and the report\. Give a larger"):
        start(splits, tmp_path / "run", "--budget=60s")


def test_a_training_is_skipped_if_reading_its_images_takes_all_the_time(digits, whole, tmp_path, monkeypatch):
    clock, decode, late = time.monotonic, ImageLoaders.setup, [0.0]

    def slow(self, stage=None):
        decode(self, stage)
        late[0] = 1000.0

    monkeypatch.setattr(time, "monotonic", lambda: clock() + late[0])
    monkeypatch.setattr(ImageLoaders, "setup", slow)
    monkeypatch.setattr(training, "_time_step", lambda setup, count, *_: 1e-4 * count)
    rows = stages_of(start(digits, tmp_path / "run", "--budget=600s")[0])
    assert "the budget of 600 s is used up before the first step" in rows["full"]["skipped"]


def test_a_budget_that_is_used_up_before_the_first_head_is_an_error(digits, whole, tmp_path):
    with pytest.raises(TrainingError, match=r"^the budget of 20 s is used up before the first head: 1\d\d s went into"):
        start(digits, tmp_path / "run", "--budget=20s", started=time.monotonic() - 100)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("cache", "kept"), [("cache", ", which are kept for a second run"), ("file", "")])
def test_features_are_said_to_be_kept_only_where_they_are(digits, tmp_path, monkeypatch, cache, kept):
    (tmp_path / "file").touch()  # no folder can be made in it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    said = rf"features of \d+ of 36 val images{kept}; \d+ s are reserved for the report\. Give a larger --budget"
    with pytest.raises(TrainingError, match=said):
        start(digits, tmp_path / "run", "--budget=20s", started=time.monotonic() - 100)


@pytest.mark.parametrize(("cache", "kept"), [("cache", "; features computed so far are kept"), ("file", "")])
def test_a_signal_before_the_first_head_says_whether_features_are_kept(digits, tmp_path, monkeypatch, cache, kept):
    def stop(*_):
        raise Stopped(signal.SIGTERM)

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    monkeypatch.setattr(story, "Heads", stop)
    _, text = start(digits, tmp_path / "run")
    assert f"terminated before the first head{kept}\n" in text


def test_heads_that_would_take_too_long_are_fitted_to_fewer_images(digits, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(Heads, "seconds", lambda this: 1e6)
    monkeypatch.setattr(story, "_train", lambda this: None)
    rows = stages_of(start(digits, tmp_path / "run", "--budget=60s")[0])
    for stage in ("k-NN", "linear", "attentive"):
        assert rows[stage]["detail"].endswith(", on the 32 of 144 images that the budget allows")
    assert rows["linear, more views"]["skipped"] == "the budget has no time for heads on all images"


def test_a_resumed_run_keeps_to_the_images_of_its_first_head(digits, whole, tmp_path, monkeypatch):
    def killed(*_):
        raise KilledError

    monkeypatch.setattr(story, "_train", lambda this: None)
    with monkeypatch.context() as patched:
        patched.setattr(Heads, "seconds", lambda this: 1e6)
        patched.setattr(Heads, "attentive", killed)
        with pytest.raises(KilledError):
            start(digits, tmp_path / "run", "--budget=600s")
    rows = stages_of(start(digits, tmp_path / "run", "--budget=600s", resume=True)[0])
    assert rows["attentive"]["detail"].endswith(", on the 32 of 144 images that the budget allows")


def test_no_attentive_head_is_begun_without_time():
    tokens = SimpleNamespace(tokens=torch.zeros(1))
    heads = SimpleNamespace(train=tokens, attentive=lambda *_: pytest.fail("begun"))
    found = story._attentive(SimpleNamespace(left=0.0), heads, None, 1.0)
    assert found.skipped == "the budget has no time for it"


def test_a_negative_seed_is_one_as_any_other(digits, whole, tmp_path, monkeypatch):
    """In the views of images, and in the choice of those that a budget has time for."""
    monkeypatch.setattr(Heads, "seconds", lambda this: 1e6)
    monkeypatch.setattr(story, "_train", lambda this: None)
    rows = stages_of(start(digits, tmp_path / "limited", "--seed=-1", "--budget=600s")[0])
    assert "on the 32 of 144 images" in rows["linear"]["detail"]
    rows = stages_of(start(digits, tmp_path / "run", "--seed=-1")[0])
    assert rows["linear, 2 views"]["skipped"] is None


@pytest.mark.parametrize(("budget", "expected"), [(None, 0.7 * 0.25 + 0.3), ("60s", 1 / (0.7 / 0.25 + 0.3))])
def test_the_time_of_a_step_is_the_mean_over_a_run_whose_images_grow(digits, monkeypatch, budget, expected):
    def by_area(setup, count, step, repeats):
        return 0.001 * count * (step.size[0] / setup.pipeline.size[0]) ** 2

    monkeypatch.setattr(training, "_time_step", by_area)
    options = ["--tune=full", "--augment.small_first=0.5", "--augment.small_until=0.7"]
    setup = prepared(digits, *options, *([f"--budget={budget}"] if budget else []))
    batch = min(setup.config.batch_size, len(setup.data.splits["train"]))
    mean, full = training.step_seconds(setup, 1e9)
    assert full == pytest.approx(0.001 * batch)
    assert mean == pytest.approx(expected * full)


def test_the_time_of_a_step_counts_the_patches_that_are_dropped_at_first(digits, monkeypatch):
    timed, seen = training._time_step, []

    def watched(setup, count, step, repeats):
        setup.model.register_forward_pre_hook(lambda model, _: seen.append(model.patch_dropout))
        timed(setup, count, step, repeats)
        return 1 - step.dropped

    monkeypatch.setattr(training, "_time_step", watched)
    setup = prepared(digits, "--tune=full", "--model.patch_dropout=0.5", "--patches_last=0.4")
    mean, full = training.step_seconds(setup, 10.0)
    assert mean == pytest.approx(0.7 * full)  # 0.6 of the run with half of the patches
    assert {*seen} == {0.0, 0.5}
    assert setup.model.patch_dropout == 0.5


def test_averages_are_on_the_line_between_start_and_end():
    before, after = {"a": torch.zeros(3), "n": torch.tensor(1)}, {"a": torch.full((3,), 4.0), "n": torch.tensor(7)}
    found = training._mean(before, after, 0.25)
    assert found["a"].tolist() == [1.0, 1.0, 1.0]
    assert found["n"] == 7
    assert all(0 < alpha < 1 for alpha in training.ALPHAS)


def test_a_link_in_the_place_of_the_stages_is_refused(digits, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "stages").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="is a link or a file where a run keeps its stages"):
        training._folder(tmp_path / "run", "full")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_a_killed_process_left_unfinished_in_a_stage_is_removed(tmp_path):
    folder = training._folder(tmp_path, "full")
    kept = {"last.ckpt", ".diary.00000000.tmp", ".metrics.csv.00000000.tmp"}
    (folder / ".metrics.csv.00000000.tmp").symlink_to(tmp_path)
    for name in ("last.ckpt", ".diary.00000000.tmp", ".last.ckpt.00000000.tmp"):
        (folder / name).write_bytes(b"half")
    training._folder(tmp_path, "full")
    assert {path.name for path in folder.iterdir()} == kept


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ((), "auto"),
        (("--tune", "full"), "full"),
        (("--tune", "auto", "--protocol", "paper"), "auto"),
        (("--protocol", "paper"), "full"),
        (("--recipe", "folder"), "full"),
        (("--no-probe",), "full"),
    ],
)
def test_stages_are_the_default_of_the_recipe_for_any_images(words, mode):
    assert configure(["photos", "--from", "x", *words])[0].tune.mode == mode


def test_a_journal_without_intervals_begins_again():
    row = dict.fromkeys(staging._FIELDS) | {"stage": "linear", "model": None, "mean_ap": 0.5}
    with pytest.raises(CheckpointError, match="from an earlier version of vitreous"):
        staging._restored(row)
    assert staging._restored(row | {"mean_ap": (0.5, 0.4, 0.6)}).mean_ap == (0.5, 0.4, 0.6)


def test_heads_wait_for_no_library_that_only_training_needs():
    late = ("lightning", "matplotlib", "torch._dynamo", "torchvision", "sklearn")
    script = "import sys, vitreous.cli.work.training, vitreous.train.run, vitreous.train.finetune.stages.story\n"
    script += f"print([name for name in {late} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
