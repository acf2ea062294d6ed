"""Fine-tuning of small models on digits: what is kept, what is trained, what is printed."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch.nn import functional as F

from vitreous.accelerate.model import build
from vitreous.checkpoint.model_file import ModelInfo, load_model, save_model
from vitreous.cli.verbs.finetune import configure
from vitreous.data.augment.mixing import smooth_targets
from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import open_source
from vitreous.errors import CheckpointError, ConfigError, UsageError
from vitreous.evaluate.features.probes import probe_report
from vitreous.model.config import ViTConfig
from vitreous.model.positions import Rope2d
from vitreous.model.positions.resample import resample
from vitreous.model.vit import VisionTransformer
from vitreous.predictor import load
from vitreous.train.assembly import Kit
from vitreous.train.config import OptimConfig, RunConfig, TuneConfig
from vitreous.train.console import Display
from vitreous.train.finetune.first_probe import compare_with_probe, probe_first
from vitreous.train.finetune.trainable import choose_trained, class_weights, freeze_modules, merge_adapters
from vitreous.train.loop.module import VitModule
from vitreous.train.loop.optim import build_optimizer, layer_factors, set_learning_rate
from vitreous.train.loop.progress import Budget, Steps
from vitreous.train.results import SelectedWeights
from vitreous.train.resume.checkpoint import Checkpoint
from vitreous.train.run import probe, run
from vitreous.train.setup import prepare

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DEPTH = 3
SOURCE = ViTConfig(
    image_size=16, patch_size=4, in_channels=1, num_classes=7, width=16, depth=DEPTH, heads=2, mlp_dim=32, dropout=0.1
)


def view() -> tuple[Display, io.StringIO]:
    text = io.StringIO()
    return Display(Console(file=text, soft_wrap=True, width=250)), text


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Folders `old` (digits 0 to 6) and `new` (7 to 9) with 60 PNG files in each class folder."""
    root, data = tmp_path_factory.mktemp("digits"), load_digits()
    for digit, name in enumerate(NAMES):
        folder = root / ("old" if digit < 7 else "new") / name
        folder.mkdir(parents=True)
        for n in np.flatnonzero(data.target == digit)[:60]:
            Image.fromarray((data.images[n] * 255 / 16).astype(np.uint8)).save(folder / f"{n}.png")
    return root


@pytest.fixture(scope="module")
def source(digits, tmp_path_factory):
    """The run directory of a model trained on seven digits."""
    folder = tmp_path_factory.mktemp("runs") / "source"
    config = RunConfig(
        data=DataConfig(source=str(digits / "old")), model=SOURCE, augment=AugmentConfig(flip=0.0),
        optim=OptimConfig(lr=5e-3), batch_size=32, epochs=8, device="cpu", precision="float32", out=str(folder),
    )  # fmt: skip
    return run(config, view=view()[0]).folder


def asked(digits, source, *words, out=None):
    """Resolve the command that fine-tunes on the digits 7 to 9."""
    common = ["--device", "cpu", "--precision", "float32", "--augment.flip", "0", "--batch-size", "16"]
    where = ["--out", str(out)] if out else []
    if not {"--tune", "--protocol"} & set(words):
        where += ["--tune", "full"]
    return configure([str(digits / "new"), "--from", str(source), *common, *where, *map(str, words)])[:2]


def ready_for(digits, source, *words):
    config, given = asked(digits, source, *words)
    return prepare(config, given, view()[0])


def tune(digits, source, out, *words):
    config, given = asked(digits, source, *words, out=out)
    shown, text = view()
    return run(config, explicit=given, view=shown), text.getvalue()


@pytest.fixture(scope="module")
def finished(digits, source, tmp_path_factory):
    """A complete fine-tuning with a probe: its result and its output."""
    return tune(digits, source, tmp_path_factory.mktemp("runs") / "tuned", "--epochs", 12, "--optim.lr", 5e-3)


def test_the_head_is_new_and_zero_and_all_else_is_the_sources(digits, source):
    setup, old = ready_for(digits, source), load_file(source / "model.safetensors")
    assert setup.data.classes == ("eight", "nine", "seven")
    new = setup.model.state_dict()
    assert new["head.weight"].shape == (3, 16)
    assert not new["head.weight"].any()
    assert not new["head.bias"].any()
    for name in old.keys() - {"head.weight", "head.bias"}:
        assert torch.equal(new[name], old[name]), name
    _, info = load_model(source)
    assert setup.pipeline == info.pipeline


def test_dropout_is_the_protocols_not_the_sources(digits, source):
    modern, paper = (ready_for(digits, source, "--protocol", name).config for name in ("modern", "paper"))
    assert (modern.model.dropout, modern.model.block.drop_path) == (0.0, 0.1)
    assert (paper.model.dropout, paper.model.block.drop_path) == (0.0, 0.0)


def test_the_protocols_have_the_published_settings(digits, source):
    paper, modern = (asked(digits, source, "--protocol", name)[0] for name in ("paper", "modern"))
    optim = paper.optim
    assert (optim.name, optim.momentum, optim.weight_decay, optim.clip) == ("sgd", 0.9, 0.0, 1.0)
    assert (optim.schedule, optim.layer_decay) == ("cosine", None)
    assert paper.steps == 10_000
    assert paper.augment.resized_crop < 1
    assert (modern.optim.name, modern.optim.layer_decay, modern.model.block.drop_path) == ("adamw", 0.75, 0.1)
    assert modern.augment.mixup == modern.augment.cutmix == paper.augment.mixup == 0
    assert configure(["photos/", "--from", "x"])[0].augment.flip == 0.5
    assert configure(["digits", "--from", "x"])[0].augment.flip == 0


@pytest.mark.parametrize("mode", ["linear", "last-1", "full", "lora"])
def test_each_mode_trains_what_it_should_and_nothing_else(digits, source, tmp_path, mode):
    before = ready_for(digits, source).model.state_dict()
    result, text = tune(digits, source, tmp_path / "run", "--tune", mode, "--steps", 6, "--no-probe")
    after = load_file(result.model)
    assert after.keys() == before.keys()  # also with adapters: an ordinary model file
    matrices = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight")
    trained = {
        "linear": lambda name: name.startswith("head."),
        "last-1": lambda name: name.startswith((f"blocks.{DEPTH - 1}.", "norm.", "head.")),
        "full": lambda name: True,
        "lora": lambda name: name.startswith("head.") or name.endswith(matrices),
    }[mode]
    for name, value in before.items():
        assert torch.equal(after[name], value) != trained(name), name
    assert f"tune      {mode}: " in text
    assert "probe " not in text
    assert len(load(result.model, device="cpu").predict(np.zeros((8, 8), np.uint8), top_k=9).top) == 3


def test_frozen_parts_have_no_dropout_and_fixed_statistics():
    model = build(dataclasses.replace(SOURCE, stem="conv", block={"drop_path": 0.5}))
    images = torch.randn(4, 1, 16, 16)
    choose_trained(model, TuneConfig("x", "linear"))
    model.train()
    freeze_modules(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, second = (model(images, "tokens") for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.train().requires_grad_(True)
    freeze_modules(model)
    assert not torch.equal(model(images, "tokens"), model(images, "tokens"))


def test_adapters_are_merged_to_their_closed_form():
    torch.manual_seed(0)
    model = build(dataclasses.replace(SOURCE, dropout=0.0)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    choose_trained(model, TuneConfig("x", "lora", lora_rank=3, lora_alpha=12))
    images = torch.randn(2, 1, 16, 16)
    assert torch.allclose(model(images, "tokens"), merge_adapters(model)(images, "tokens"), atol=1e-6)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    with_adapters, state = model.state_dict(), merge_adapters(model).state_dict()
    assert state.keys() == before.keys()
    for name in (f"blocks.{n}.{part}" for n in range(DEPTH) for part in ("attn.qkv", "mlp.fc2")):
        down, up = (with_adapters[f"{name}.lora_{side}.default.weight"] for side in "AB")
        torch.testing.assert_close(state[f"{name}.weight"], before[f"{name}.weight"] + 12 / 3 * up @ down)
    assert torch.allclose(model(images), merge_adapters(model)(images), rtol=1e-4, atol=1e-4)
    whole = build(SOURCE)
    assert merge_adapters(whole) is whole


@pytest.mark.parametrize(("words", "method"), [((), "timm"), (("--resample", "google"), "google")])
def test_another_resolution_resamples_positions_as_the_source_does(digits, source, words, method):
    setup, old = ready_for(digits, source, "--image-size", "24x32", *words), load_file(source / "model.safetensors")
    table = old["pos_embed"]
    expected = torch.cat((table[:, :1], resample(table[:, 1:], (4, 4), (6, 8), method)), 1)
    assert torch.equal(setup.model.pos_embed, expected)
    assert setup.config.model.image_size == (24, 32)
    assert setup.pipeline.size == (24, 32)
    assert setup.pretrained.resampled["positions"] == {"from": [4, 4], "to": [6, 8], "method": method}


def test_the_hidden_layer_of_a_head_is_removed(digits, source, tmp_path):
    model, info = load_model(source)
    hidden = build(dataclasses.replace(model.config, head={"kind": "mlp", "hidden": 24}))
    save_model(tmp_path / "model.safetensors", hidden, info)
    setup = ready_for(digits, tmp_path)
    assert setup.config.model.head.kind == "linear"
    assert setup.model.head.in_features == 16
    kept = ready_for(digits, tmp_path, "--model.head", "mlp")
    assert torch.equal(kept.model.pre_logits.fc.weight, hidden.pre_logits.fc.weight)
    assert kept.model.head.in_features == 24


def test_the_probe_comes_first_and_equals_the_features_own(digits, source, finished):
    result, text = finished
    report = json.loads((result.folder / "report.json").read_text())["finetune"]
    data = open_source(DataConfig(source=str(digits / "new")))
    classifier = load(source, device="cpu", precision="float32")
    features = {
        name: classifier.embed([split.image(n) for n in range(len(split))]) for name, split in data.splits.items()
    }
    labels = {name: split.labels for name, split in data.splits.items()}
    fit, val = ((features[name], labels[name]) for name in ("train", "val"))
    own = probe_report(*fit, *val, shots=()).to_dict()  # as `vitreous probe`
    assert report["probe"]["knn"] == own["knn"]
    for name in ("C", "chosen_on", "accuracy"):
        assert report["probe"]["linear"][name] == own["linear"][name]
    lines = text.splitlines()
    place = {word: next(n for n, line in enumerate(lines) if line.startswith(word)) for word in ("probe", "epoch")}
    assert place["probe"] < place["epoch"]
    assert "linear probe" in lines[place["probe"]]
    assert "k-NN" in lines[place["probe"]]


def test_a_budget_without_time_for_the_probe_skips_it(digits, source):
    shown, text = view()
    setup = ready_for(digits, source)
    assert probe_first(setup, shown, seconds_left=0.0) is None
    said = "probe     skipped: frozen features would take more than 20 % of the 0 s left of the budget"
    assert said in text.getvalue()
    assert probe_first(setup, shown, seconds_left=1e6).best[1] > 0


@pytest.mark.parametrize(
    ("clock", "saved", "probed"),
    [(Steps(1), None, True), (Budget(0.0, 0.0, 0.0), None, False), (Steps(1), "epoch 1, step 1", False)],
    ids=["new", "no time", "resumed without"],
)
def test_only_features_that_are_still_frozen_are_probed(digits, source, clock, saved, probed):
    shown, text = view()
    lock = SimpleNamespace(record=lambda **facts: None)
    session = SimpleNamespace(
        setup=ready_for(digits, source), kit=Kit(), trained=False, probe=None, clock=clock, view=shown, seconds={},
        saver=SimpleNamespace(saved=saved), run_dir=SimpleNamespace(lock=lock),
    )  # fmt: skip
    probe(session)
    assert (session.probe is not None) == ("probe" in session.seconds) == probed
    assert ("linear probe" in text.getvalue()) == probed


def test_a_fine_tuning_is_printed_and_recorded(digits, source, finished):
    result, text = finished
    report = json.loads((result.folder / "report.json").read_text())["finetune"]
    model, info = load_model(result.model)
    assert report["source"] == info.provenance["finetuned_from"]
    assert report["source"]["family"] == "vitreous"
    assert report["trained_parameters"] == sum(p.numel() for p in model.parameters())
    assert info.classes == ("eight", "nine", "seven")
    probes = result.probe.report
    best = max([score["accuracy"]["val"] for score in probes["knn"]["scores"]] + [probes["linear"]["accuracy"]["val"]])
    assert report["verdict"]["worse"] == (result.val.top1 < best)
    assert f"verdict   {report['verdict']['text']}" in text
    assert result.val.top1 > 0.5  # it learns: chance is a third; six sources, seeds and processors gave 0.58 to 0.94


def test_a_run_can_be_repeated_from_its_recipe(digits, source, tmp_path):
    words = ("--tune", "last-2", "--steps", 5, "--no-probe", "--image-size", 24)
    first, _ = tune(digits, source, tmp_path / "first", *words)
    config, given, _ = configure(["--config", str(first.folder / "recipe.yaml"), "--out", str(tmp_path / "second")])
    second = run(config, explicit=given, view=view()[0])
    a, b = load_file(first.model), load_file(second.model)
    assert a.keys() == b.keys()
    assert all(torch.equal(value, b[name]) for name, value in a.items())


def test_a_run_from_rotary_positions_can_be_repeated_from_its_recipe(digits, tmp_path):
    torch.manual_seed(0)
    rotary = dataclasses.replace(SOURCE, position=Rope2d())
    pipeline = EvalPipeline((16, 16), 1, PreprocessConfig(mean=(0.3,), std=(0.4,)))
    save_model(tmp_path / "rotary.safetensors", VisionTransformer(rotary), ModelInfo(tuple("0123456"), pipeline))
    first, _ = tune(digits, tmp_path / "rotary.safetensors", tmp_path / "first", "--steps", 2, "--no-probe")
    config, given, _ = configure(["--config", str(first.folder / "recipe.yaml"), "--out", str(tmp_path / "second")])
    second = run(config, explicit=given, view=view()[0])
    a, b = load_file(first.model), load_file(second.model)
    assert all(torch.equal(value, b[name]) for name, value in a.items())
    for method in ("google", "timm"):  # the latter is the source's own, but typed
        with pytest.raises(ConfigError, match="position rope-2d has nothing to resample"):
            ready_for(digits, tmp_path / "rotary.safetensors", "--resample", method)


HEALTHY = [{"train_loss": 1.0 / n, "step": 300 * n} for n in range(1, 9)]


@pytest.mark.parametrize(
    ("words", "history", "epoch", "reason"),
    [
        ((), [{"train_loss": 1.0, "step": 5}, {"train_loss": 2.0, "step": 900}], 1, "learning rate: .* rose to 2.00"),
        (
            (),
            [{"train_loss": 1.0, "step": 5}, {"train_loss": 0.99, "step": 900}],
            1,
            "learning rate: the .* hardly",
        ),
        ((), HEALTHY, 2, "learning rate: epoch 2 of 8 was the best"),
        ((), [{"train_loss": 1.0, "step": 30}], 1, "too few steps: 30 in all"),
        ((), HEALTHY, 8, "too few steps: the last epoch was the best"),
        (("--image-size", 32), HEALTHY, 5, "resolution: the source was trained at 16 pixels, this run at 32"),
        (("--image-size", 32), HEALTHY, 5, "resolution: images of 8 pixels, enlarged to 32"),
        (("--preprocess.mean", "[0.9]"), HEALTHY, 5, "normalisation does not match the source: mean .0.9,. where"),
        (("--preprocess.fit", "squash"), HEALTHY, 5, "resolution: images of 8"),
    ],
)
def test_worse_than_the_probe_is_said_with_its_reason(digits, source, finished, words, history, epoch, reason):
    setup = ready_for(digits, source, *words)
    scores = dataclasses.replace(finished[0].val, top1=0.2)
    selected = SelectedWeights(scores, torch.empty(0), torch.empty(0), epoch, {})
    verdict = compare_with_probe(setup, finished[0].probe, selected, history)
    assert verdict.worse
    assert "fine-tuning did worse than" in verdict.text
    assert "20.0 % against" in verdict.text
    text = "\n".join(verdict.reasons)
    assert re.search(reason, text), text


def test_better_than_the_probe_needs_no_reason(digits, source, finished):
    setup = ready_for(digits, source)
    selected = SelectedWeights(dataclasses.replace(finished[0].val, top1=1.5), torch.empty(0), torch.empty(0), 1, {})
    verdict = compare_with_probe(setup, finished[0].probe, selected, HEALTHY)
    assert not verdict.worse
    assert verdict.reasons == ()
    assert "points better than" in verdict.text


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (("--model.width", 32), ConfigError, r"model.width is 32, but '.*' has 16: fine-tuning keeps the source's"),
        (("--model.num_classes", 5), ConfigError, r"model.num_classes is 5, but new has 3 classes"),
        (("--image-size", 18), ConfigError, r"image size 18 is not a multiple of patch size 4"),
        (("--image-size", "big"), UsageError, r"--image-size is 'big'"),
        (("--tune", "last-4"), ConfigError, r"tune is last-4, but the model has 3 blocks"),
        (("--tune", "half"), ConfigError, r"tune is 'half', it must be auto, full, linear, lora, or last-K"),
        (("--from", "no-such-file.npz"), CheckpointError, r"no-such-file.npz"),
        (("--class-weights", "inverse", "--balanced-sampling"), ConfigError, "would correct for class imbalance twice"),
    ],
)
def test_wrong_uses_are_one_line(digits, source, words, error, message):
    with pytest.raises(error, match=message) as caught:
        ready_for(digits, source, *words)
    assert "\n" not in str(caught.value)


def test_rotary_positions_may_jitter_in_training_whatever_the_source_did(digits, source, tmp_path):
    config = dataclasses.replace(SOURCE, position=Rope2d(theta=50.0, rescale=1.0))
    save_model(tmp_path / "rope.safetensors", build(config), load_model(source)[1])
    words = ("--from", tmp_path / "rope.safetensors", "--model.position", "rope-2d", "--model.position.jitter", 0.1)
    position = ready_for(digits, source, *words).model.config.position
    assert (position.jitter, position.rescale, position.theta) == (0.1, 1.0, 50.0)
    assert ready_for(digits, source, *words, "--model.position.rescale", 0).model.config.position.rescale == 0
    with pytest.raises(ConfigError, match=r"model\.position\.theta is 20, but .* has 50.0"):
        ready_for(digits, source, *words, "--model.position.theta", 20)
    with pytest.raises(ConfigError, match=r"model\.position is rope-2d, but .* has learned"):
        ready_for(digits, source, *words[2:])


@pytest.mark.parametrize("pool", ["map", "{kind: map}"])
def test_a_part_in_a_file_that_the_source_does_not_have_is_refused(digits, source, pool, tmp_path):
    settings = f"data: {{source: {digits / 'new'}}}\ntune: {{source: {source}}}\nmodel: {{pool: {pool}}}\n"
    (tmp_path / "mine.yaml").write_text(settings)
    config, explicit, _ = configure(["--config", str(tmp_path / "mine.yaml")])
    with pytest.raises(ConfigError, match=r"model\.pool is map, but '.*' has cls: fine-tuning keeps the source's"):
        prepare(config, explicit, view()[0])


def test_layers_have_the_rates_of_the_closed_form():
    model = build(dataclasses.replace(SOURCE, stem="conv", registers=2, pool="map", class_token=True))
    factors = layer_factors((name for name, _ in model.named_parameters()), 0.5)
    for name, factor in factors.items():
        if name.startswith("blocks."):
            assert factor == 0.5 ** (DEPTH - int(name.split(".")[1])), name
        elif name.startswith(("norm.", "attn_pool.", "head.")):
            assert factor == 1, name
        else:
            assert name.startswith(("patch_embed.", "cls_token", "reg_token", "pos_embed"))
            assert factor == 0.5 ** (DEPTH + 1), name
    assert {factors[name] for name in ("cls_token", "blocks.0.norm1.weight", "blocks.2.mlp.fc2.bias", "head.bias")} == {
        *(0.0625, 0.125, 0.5, 1.0)
    }


@pytest.mark.parametrize(("name", "peak"), [("adamw", {"lr": 0.1}), ("sgd", {"lr": 0.1}), ("muon", {"muon_lr": 0.3})])
def test_the_optimiser_has_these_rates_at_every_point_of_the_schedule(name, peak):
    model = build(SOURCE)
    optimizer = build_optimizer(model, OptimConfig(name=name, layer_decay=0.5, **peak))
    set_learning_rate(optimizer, 0.25)
    rates = {n: group["lr"] for group in optimizer.param_groups for n in group["names"]}
    assert rates.keys() == dict(model.named_parameters()).keys()
    weight = peak.get("muon_lr", 0.1)
    assert rates["blocks.0.attn.qkv.weight"] == pytest.approx(0.25 * weight * 0.5**DEPTH)
    assert rates["blocks.2.attn.qkv.weight"] == pytest.approx(0.25 * weight * 0.5)
    rest = OptimConfig(**peak).lr
    assert rates["pos_embed"] == pytest.approx(0.25 * rest * 0.5 ** (DEPTH + 1))
    assert rates["norm.weight"] == rates["head.weight"] == pytest.approx(0.25 * rest)
    assert optimizer.param_groups[-1]["lr"] == pytest.approx(0.25 * rest)  # what the logs show


def test_class_weights_have_their_closed_forms():
    labels = np.repeat([0, 1, 3], [600, 300, 100])
    inverse, effective = (class_weights(labels, 4, kind) for kind in ("inverse", "effective"))
    assert class_weights(labels, 4, "none") is None
    assert inverse.tolist() == pytest.approx([1000 / 3 / 600, 1000 / 3 / 300, 0, 1000 / 3 / 100])
    one = [0.001 / (1 - 0.999**n) if n else 0.0 for n in (600, 300, 0, 100)]
    scale = 1000 / (600 * one[0] + 300 * one[1] + 100 * one[3])
    assert effective.tolist() == pytest.approx([scale * weight for weight in one])
    for weights in (inverse, effective):
        assert float(weights[torch.from_numpy(labels)].mean()) == pytest.approx(1)


def test_a_weighted_loss_of_soft_targets_equals_torchs_of_labels(digits):
    torch.manual_seed(0)
    weights = torch.tensor([0.5, 2.0, 1.0])
    setup = prepare(RunConfig(data=DataConfig(source=str(digits / "new")), model=SOURCE, device="cpu"), (), view()[0])
    module = VitModule(
        setup.model, OptimConfig(), setup.data_module.batch_augment, setup.pipeline, class_weights=weights
    )
    logits, labels = torch.randn(8, 3), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    targets = smooth_targets(labels, 3, 0.1)
    ours = F.cross_entropy(logits, targets, weight=module.class_weights)
    theirs = F.cross_entropy(logits, labels, weight=weights, label_smoothing=0.1, reduction="sum") / len(labels)
    torch.testing.assert_close(ours, theirs)
    assert "class_weights" not in module.state_dict()
    mixed = targets.lerp(targets.flip(0), 0.3)
    parts = [F.cross_entropy(logits, t, weight=weights) for t in (targets, targets.flip(0))]
    torch.testing.assert_close(F.cross_entropy(logits, mixed, weight=weights), 0.7 * parts[0] + 0.3 * parts[1])


@pytest.mark.parametrize(
    "words", [("--class-weights", "effective"), ("--class-weights", "inverse"), ("--balanced-sampling",)]
)
def test_a_run_can_correct_for_imbalance(digits, source, tmp_path, words):
    shutil.copytree(digits / "new", tmp_path / "new")
    for path in sorted((tmp_path / "new" / NAMES[9]).iterdir())[::2]:
        path.unlink()
    digits = tmp_path
    setup = ready_for(digits, source, *words)
    if words[0] == "--balanced-sampling":
        labels = setup.data.splits["train"].labels
        shown = np.concatenate([plan.indices for plan in setup.data_module.train_sampler])
        counts = np.bincount(labels[shown], minlength=3)
        assert counts.max() - counts.min() <= 1 + setup.config.batch_size
    plainly, given = asked(digits, source, "--steps", 3, "--no-probe", out=tmp_path / "a")
    changed, _ = asked(digits, source, "--steps", 3, "--no-probe", *words, out=tmp_path / "b")
    a, b = (load_file(run(c, explicit=given, view=view()[0]).model) for c in (plainly, changed))
    assert not torch.equal(a["head.weight"], b["head.weight"])
    assert all(math.isfinite(float(value.float().sum())) for value in b.values())


def test_a_killed_fine_tuning_goes_on_with_its_probe(digits, source, tmp_path, monkeypatch):
    words = ("--tune", "last-1", "--epochs", 4, "--optim.lr", 5e-3)
    config, given = asked(digits, source, *words, out=tmp_path / "run")
    whole, said = tune(digits, source, tmp_path / "whole", *words)

    class Killed(BaseException):
        pass

    def end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 10:
            self.save(wait=True)
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "on_train_batch_end", end)
        with pytest.raises(Killed):
            run(config, explicit=given, view=view()[0])
    monkeypatch.setattr("vitreous.train.run.probe_first", lambda *_: pytest.fail("probed twice"))
    shown, text = view()
    resumed = run(config, explicit=given, view=shown, resume=True)
    verdicts = [re.search(r"^verdict .*$", each, re.MULTILINE)[0] for each in (said, text.getvalue())]
    assert verdicts[0] == verdicts[1]
    first, second = (load_file(result.model) for result in (whole, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)
    reports = [json.loads((result.folder / "report.json").read_text())["finetune"] for result in (whole, resumed)]
    assert reports[0] == reports[1]
