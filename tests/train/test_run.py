"""Whole runs on the bundled digits, and what holds around them: repeatability, selection, stops, non-finite values."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import time

import lightning
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_pre_hook

from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import load_model
from vitreous.cli.verbs.train import configure
from vitreous.data.augment.pipeline import BatchAugment
from vitreous.data.batches.data_module import ImageDataModule
from vitreous.data.batches.loaders import ImageLoaders
from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import open_source
from vitreous.errors import ConfigError, NonFiniteError, UsageError
from vitreous.evaluate.scoring.metrics import evaluate
from vitreous.model.block import Block
from vitreous.model.config import ViTConfig
from vitreous.predictor import load
from vitreous.recipes import recipe
from vitreous.runs.state_file import read_state
from vitreous.train.config import OptimConfig, RunConfig
from vitreous.train.console import Display
from vitreous.train.loop.module import VitModule
from vitreous.train.loop.progress import Budget, Steps
from vitreous.train.loop.silence import silence_lightning
from vitreous.train.preference import is_better
from vitreous.train.resume.non_finite import FiniteWatch, Step
from vitreous.train.resume.state import RunState
from vitreous.train.run import run, show_batch

LOOKS_AT_REPORTS = True  # conftest.py

TINY = ViTConfig(image_size=8, patch_size=4, in_channels=1, num_classes=10, width=16, depth=2, heads=2, mlp_dim=32)


def view() -> tuple[Display, io.StringIO]:
    text = io.StringIO()
    return Display(Console(file=text, soft_wrap=True, width=200)), text


def config(out, **options) -> RunConfig:
    model = {"model": dataclasses.replace(TINY, **options.pop("model", {}))}
    plain = {"out": str(out), "epochs": 2, "device": "cpu", "ema": None, "optim": OptimConfig(lr=3e-3)}
    return dataclasses.replace(recipe("digits"), **(plain | model | options))


def train(out, **options):
    return run(config(out, **options), view=view()[0])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run: its result, what it printed, and its configuration."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    asked = config(folder, epochs=3, optim=OptimConfig(lr=3e-3), ema=0.9, select="top1")
    shown, text = view()
    return run(asked, view=shown), text.getvalue(), asked


def test_the_folder_holds_what_is_promised(finished):
    result, text, _ = finished
    names = {path.name for path in result.folder.iterdir()}
    figures = {"curves.png"}
    assert names == figures | {
        *("model.safetensors", "report.json", "report.html", "metrics.csv", "recipe.yaml", "last.ckpt", "example.png")
    }
    for name in figures:
        with Image.open(result.folder / name) as figure:
            figure.load()
            assert min(figure.size) > 200
    report = json.loads((result.folder / "report.json").read_text())
    assert report["scores"]["test"]["top1"] == result.test.top1
    assert report["training"]["selected_epoch"] == result.selected_epoch
    assert f"vitreous predict {result.model} {result.folder / 'example.png'}" in text
    for word in ("data ", "split ", "model ", "machine ", "epoch 3/3", "val ", "test ", "next "):
        assert f"\n{word}" in f"\n{text}", word


def test_one_row_an_epoch_in_metrics_csv(finished):
    result, _, _ = finished
    with (result.folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    steps = [int(row["step"]) for row in rows]
    assert steps == [steps[0], 2 * steps[0], 3 * steps[0]]
    scores = ["log_loss", "top1", "top5", "macro_precision", "macro_recall", "macro_f1", "precision", "recall", "f1"]
    for name in ("lr", "train_loss", *(f"val_{score}" for score in scores), "images_per_second", "seconds"):
        assert all(math.isfinite(float(row[name])) for row in rows), name
    best = max(range(3), key=lambda n: (float(rows[n]["val_top1"]), -float(rows[n]["val_log_loss"])))
    assert result.selected_epoch == best + 1
    assert float(rows[best]["val_top1"]) == result.val.top1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_after_training_in_bf16_every_place_says_the_same_score_and_what_it_was_computed_in(tmp_path, seed):
    shown, text = view()
    result = run(config(tmp_path, epochs=1 + seed, seed=seed, precision="bf16", select="top1"), view=shown)
    report = json.loads((tmp_path / "report.json").read_text())
    with (tmp_path / "metrics.csv").open() as file:
        row = list(csv.DictReader(file))[result.selected_epoch - 1]
    with Image.open(tmp_path / "curves.png") as curves:
        title = curves.text["Title"]
    exact, trained = report["scores"]["val"], report["training"]["selected_val"]
    assert {name: exact[name] for name in trained} == result.val.summary() == load_model(result.model)[1].scores["val"]
    top1, macro_f1 = f"top-1 {100 * exact['top1']:.1f} %", f"macro F1 {exact['macro_f1']:.2f}"
    assert f"\nval  {top1}, {macro_f1}, log loss {exact['log_loss']:.2f} (best, " in text.getvalue()
    assert f"validation {top1}, {macro_f1} in float32" in title
    assert {name: float(row[f"val_{name}"]) for name in trained} == trained
    assert (row["validated_in"], report["training"]["validated_in"]) == ("bf16", "bf16")
    was = f"top-1 {100 * trained['top1']:.1f} %, macro F1 {trained['macro_f1']:.2f}"
    assert f"in float32; in bf16, while training: {was}\n" in text.getvalue()
    assert trained["log_loss"] != exact["log_loss"]
    planned = "1 epoch" if seed == 0 else f"{1 + seed} epochs"
    assert f"; {planned}, about " in text.getvalue()
    assert title.startswith(f"{planned} of training; ")


def test_in_float32_there_is_one_figure_and_calibration_says_where_it_was_measured(finished):
    result, text, _ = finished
    report = json.loads((result.folder / "report.json").read_text())
    assert report["training"]["selected_val"] == {n: report["scores"]["val"][n] for n in result.val.summary()}
    assert "while training" not in text
    assert "which is fitted on val; measured on test\n" in text
    for word in ("advice", "imbalanced"):  # 1,257 images of 8x8 pixels, as many of each class
        assert word not in text


def test_the_saved_model_gives_the_reported_scores_on_real_images(finished):
    result, _, asked = finished
    classifier = load(result.model, device="cpu", precision="float32")
    split = open_source(asked.data).splits["test"]
    predicted = classifier.predict([split.image(n) for n in range(len(split))])
    right = sum(p.label == classifier.classes[label] for p, label in zip(predicted, split.labels, strict=True))
    assert right / len(split) == pytest.approx(result.test.top1, abs=1e-9)
    assert classifier.predict(result.folder / "example.png").label in classifier.classes
    _, info = load_model(result.model)
    assert info.scores["test"]["top1"] == result.test.top1
    assert info.temperature > 0
    assert info.provenance["recipe"] == "digits"
    assert len(info.provenance["data"]["fingerprint"]) >= 16
    assert info.provenance["config"]["optim"]["lr"] == 3e-3


def test_the_recipe_runs_again_as_it_is(finished):
    result, _, asked = finished
    again, given, _ = configure(["--config", str(result.folder / "recipe.yaml")])
    assert again == dataclasses.replace(asked, out=None)
    assert "num_classes" in given


def test_the_checkpoint_holds_the_end_of_training(finished):
    result, _, _ = finished
    state = RunState.from_dict(read_state(result.folder / "last.ckpt"))
    assert (state.trained, state.epoch, state.step, len(state.history)) == (True, 3, 0, 3)
    saved = load_file(result.model)
    assert state.average.keys() == state.model.keys() == state.best["weights"].keys() == saved.keys()
    assert all(torch.equal(saved[name], state.best["weights"][name]) for name in saved)


@pytest.mark.parametrize("options", [{}, {"model": {"dropout": 0.1, "block": {"drop_path": 0.2}}, "optim": "muon"}])
def test_the_same_seed_gives_the_same_bits(tmp_path, options):
    options = {**options, "optim": OptimConfig(name=options.get("optim", "adamw"), lr=3e-3)}
    first, second, third = (
        load_file(train(tmp_path / str(n), seed=seed, select="last", epochs=1, **options).model)
        for n, seed in enumerate((7, 7, 8))
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)


def test_accumulation_does_not_change_the_step(tmp_path):
    whole, parts = (
        load_file(train(tmp_path / str(n), accumulate=n, select="last", epochs=1, optim=OptimConfig(name="sgd")).model)
        for n in (1, 4)
    )
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-6)


def test_steps_are_counted_and_the_last_weights_are_saved_when_asked(tmp_path):
    result = train(tmp_path / "run", steps=21, select="last")
    assert read_state(tmp_path / "run" / "last.ckpt")["history"][-1]["step"] == 21
    assert result.epochs == result.selected_epoch == 2


def tokens_of_steps(folder, **settings):
    """How many tokens each step of a run has."""
    seen = []

    def look(block, args):
        if isinstance(block, Block) and block.training and args[0].device.type == "cpu":  # on meta, costs are counted
            seen.append(args[0].shape[1])

    hook = register_module_forward_pre_hook(look)
    try:
        train(folder, steps=10, **settings)
    finally:
        hook.remove()
    return seen


def test_patches_are_dropped_until_the_last_part_of_a_run(tmp_path):
    model = {"patch_dropout": 0.5, "depth": 1, "pool": "mean"}
    assert tokens_of_steps(tmp_path / "run", model=model, patches_last=0.4) == [2] * 6 + [4] * 4


def test_images_are_smaller_in_the_first_part_of_a_run(tmp_path):
    model = {"patch_size": 4, "image_size": 16, "depth": 1, "pool": "mean"}
    growing = AugmentConfig(small_first=(0.25, 0.5), small_until=0.6)
    assert tokens_of_steps(tmp_path / "run", model=model, augment=growing) == [1] * 3 + [4] * 3 + [16] * 4
    with pytest.raises(ConfigError, match=r"small_first 0.4 makes 6 of 16 pixels, .* of patch 4: use 0.25, 0.5, 0.75"):
        train(tmp_path / "no", model=model, augment=AugmentConfig(small_first=(0.5, 0.4)))


def test_scores_are_those_of_the_saved_model_in_use(tmp_path):
    result = train(tmp_path / "run", precision="bf16")
    classifier = load(result.model, device="cpu", precision="float32")
    data = open_source(recipe("digits").data)
    for name, scores in (("val", result.val), ("test", result.test)):
        split = data.splits[name]
        logits = classifier.logits([split.image(index) for index in range(len(split))])
        used = evaluate(torch.from_numpy(logits), torch.from_numpy(split.labels))
        assert used.confusion.tolist() == scores.confusion.tolist()
        assert used.log_loss == pytest.approx(scores.log_loss, rel=1e-5)  # bfloat16 would be 1e-3 away


def test_patience_ends_a_run_that_does_not_improve(tmp_path):
    result = train(tmp_path / "run", epochs=50, patience=2, select="top1", optim=OptimConfig(lr=1e-12))
    assert result.epochs < 50  # the score stands still, whatever its log loss does


def test_the_test_split_is_read_once_and_after_training(tmp_path, monkeypatch):
    calls = []
    for name in ("test_dataloader", "train_dataloader"):
        original = getattr(ImageLoaders, name)
        monkeypatch.setattr(
            ImageLoaders, name, lambda self, name=name, original=original: calls.append(name) or original(self)
        )
    train(tmp_path / "run")
    assert calls == ["train_dataloader", "test_dataloader"]


def test_a_folder_with_a_run_is_refused_before_anything_is_touched(finished):
    result, _, asked = finished
    before = {path: path.is_file() and path.read_bytes() for path in result.folder.rglob("*")}
    with pytest.raises(UsageError, match=r"holds a run already .*--out"):
        run(asked, view=view()[0])
    assert {path: path.is_file() and path.read_bytes() for path in result.folder.rglob("*")} == before


def test_classes_come_from_the_data_and_a_wrong_number_is_refused(tmp_path):
    asked = config(tmp_path / "run", model={"num_classes": 7})
    with pytest.raises(ConfigError, match=r"num_classes is 7, but digits has 10 classes"):
        run(asked, explicit={"num_classes"}, view=view()[0])
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_evidence(tmp_path):
    with pytest.raises(NonFiniteError) as caught:
        train(tmp_path / "run", optim=OptimConfig(name="sgd", lr=1e30, schedule="constant", warmup=0.0))
    message = str(caught.value)
    for part in ("epoch 1, step ", "learning rate 1e+30", "vitreous replay ", "last-good.safetensors"):
        assert part in message, message
    (batch,) = read_state(tmp_path / "run" / "nonfinite.replay")["batches"]
    assert batch["images"].dtype == torch.uint8
    assert batch["images"].shape[1:] == (1, 8, 8)
    assert len(batch["labels"]) == len(batch["images"])
    model, _ = load_model(tmp_path / "run" / "last-good.safetensors")
    assert model(torch.zeros(1, 1, 8, 8)).isfinite().all()


def test_the_check_names_the_first_bad_step_and_keeps_the_weights_of_the_last_check():
    model = torch.nn.Linear(2, 1)
    watch = FiniteWatch(model, interval=3)
    good = model.weight.detach().clone()

    def step(n, norm):
        batch = {"images": torch.full((1,), n), "labels": torch.zeros(1)}
        loss, norm = torch.tensor(1.0), torch.tensor(norm)
        watch.check(Step([batch], epoch=4, step=10 + n, progress=0.5, lr=0.25, loss=loss, norm=norm))
        with torch.no_grad():
            model.weight.add_(1)

    step(0, 1.0)
    step(1, float("inf"))
    with pytest.raises(NonFiniteError, match=r"gradient norm is inf in epoch 5, step 11, at learning rate 0.25") as e:
        step(2, float("nan"))
    assert e.value.batches[0]["images"].item() == 1
    assert torch.equal(e.value.good["weight"], good)
    assert e.value.behind == 1  # one update was made between these weights and the bad step


def test_the_module_and_the_data_module_work_in_a_script_of_the_users_own(tmp_path):
    data = open_source(DataConfig("digits"))
    pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    loading = ImageDataModule(data, pipeline, AugmentConfig(flip=0.0), batch_size=64)
    module = VitModule(build(TINY), OptimConfig(lr=3e-3), loading.batch_augment, pipeline)
    with silence_lightning():
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path, num_sanity_val_steps=0,
        )  # fmt: skip
        trainer.fit(module, datamodule=loading)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert logged["val_top1"] == pytest.approx(evaluate(module.logits, module.labels).top1)
    assert logged["train_loss"] < math.log(10)
    assert trainer.global_step == 2 * loading.steps_per_epoch


def test_the_average_follows_its_closed_form():
    pipeline = EvalPipeline((8, 8), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    augment = BatchAugment(AugmentConfig(), pipeline, 10, 0)
    module = VitModule(build(TINY), OptimConfig(), augment, pipeline, ema=0.9)
    start = module.model.head.bias.detach().clone()
    expected = start.clone()
    for step in range(4):
        with torch.no_grad():
            module.model.head.bias.add_(1)
        module._update_average(module.average, 0.75)
        expected = 0.75 * expected + 0.25 * (start + step + 1)
    torch.testing.assert_close(module.average.head.bias, expected)
    assert module.eval_model is module.average


def test_is_better_knows_which_way_each_metric_goes():
    labels = torch.tensor([0, 1, 0, 1])
    sure = evaluate(torch.tensor([[4.0, 0], [0, 4], [4, 0], [4, 0]]), labels)
    unsure = evaluate(torch.tensor([[0.1, 0], [0, 0.1], [0.1, 0], [0.1, 0]]), labels)
    wrong = evaluate(torch.tensor([[0.0, 4], [4, 0], [4, 0], [4, 0]]), labels)
    assert is_better("top1", sure, wrong)
    assert is_better("top1", sure, unsure) == (sure.log_loss < unsure.log_loss)  # equal shares
    assert not is_better("top1", sure, sure)
    assert is_better("macro_f1", sure, wrong)
    assert is_better("log_loss", unsure, wrong)
    assert not is_better("log_loss", wrong, unsure)
    assert is_better("last", wrong, sure)


def test_steps_divide_a_run_evenly_and_a_budget_follows_the_clock(monkeypatch):
    steps = Steps(4)
    assert [steps.progress(n) for n in range(4)] == [0.125, 0.375, 0.625, 0.875]
    assert [steps.over(n) for n in (3, 4)] == [False, True]
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    budget = Budget(started=90.0, seconds=60.0, reserve=10.0)  # training from 100 to 140
    budget.begin()
    assert budget.progress(0) == 0.0
    now = 120.0
    assert budget.progress(99) == 0.5
    budget.reserve = 0.0  # a correction never takes progress back
    assert budget.progress(100) == 0.5
    budget.reserve = 20.0
    assert budget.progress(101) == pytest.approx(20 / 30)
    assert not budget.over(101)
    now = 130.0
    assert budget.over(102)
    assert budget.progress(102) == 1.0


def test_an_augmented_batch_is_drawn(tmp_path):
    show_batch(config(tmp_path / "run"), tmp_path / "batch.png", view=view()[0])
    with Image.open(tmp_path / "batch.png") as figure:
        assert min(figure.size) > 200
    assert not (tmp_path / "run").exists()
