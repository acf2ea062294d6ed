"""Features of all images: those of `vitreous embed`, computed once, found by content, and never trusted damaged."""

from __future__ import annotations

import dataclasses
import io
import os
import time

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from vitreous.checkpoint.model_file import ModelInfo, save_model
from vitreous.data.config import AugmentConfig, DataConfig, PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.data.sources.opening import open_source
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer
from vitreous.predictor import load
from vitreous.train.config import RunConfig, TuneConfig
from vitreous.train.console import Display
from vitreous.train.finetune.stages import cache as cache_module
from vitreous.train.finetune.stages.cache import FeatureCache
from vitreous.train.finetune.stages.features import Extractor
from vitreous.train.finetune.stages.views import Views
from vitreous.train.setup import prepare

CONFIG = ViTConfig(image_size=16, patch_size=4, num_classes=4, width=16, depth=2, heads=2, mlp_dim=32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("vitreous.engines.choose.installed", lambda name: False)  # a busy machine would convert


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root, generator = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for label in ("a", "b"):
        (root / label).mkdir()
        for n in range(10):
            pixels = generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{n}.png")
    return root


@pytest.fixture(scope="module", params=["cls", "map"])
def source(request, tmp_path_factory):
    torch.manual_seed(0)
    model = VisionTransformer(dataclasses.replace(CONFIG, pool=request.param))
    pipeline = EvalPipeline((16, 16), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.25,) * 3))
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_model(path, model, ModelInfo(("q", "r", "s", "t"), pipeline))
    return path


def setup_of(folder, source):
    config = RunConfig(data=DataConfig(source=str(folder)), tune=TuneConfig(str(source), "auto"), device="cpu")
    return prepare(config, (), Display(Console(file=io.StringIO())))


@pytest.mark.parametrize("with_tokens", [True, False])
def test_features_are_those_of_embed_and_a_second_run_computes_none(folder, source, with_tokens):
    setup = setup_of(folder, source)
    split = setup.data.splits["train"]
    first = Extractor(setup, with_tokens, print).extract(split)
    expected = load(source, device="cpu").embed([split.image(n) for n in range(len(split))])
    np.testing.assert_allclose(first.pooled.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert first.computed == len(split)
    assert (first.tokens is not None) == with_tokens
    if with_tokens:
        assert first.tokens.shape == (len(split), setup.config.model.prefix_tokens + 16, 16)
        assert first.tokens.dtype == torch.float16
        exact = Extractor(setup, True, print).extract(split, tokens="exact").tokens
        assert exact.dtype == torch.float32
        assert torch.equal(exact.half(), first.tokens)
    extractor = Extractor(setup, with_tokens, print)
    again = extractor.extract(split)
    assert (again.computed, extractor.engine) == (0, "the cache")
    assert torch.equal(again.pooled, first.pooled)


def test_only_new_images_are_computed_whatever_their_names_labels_and_split(folder, source, tmp_path):
    setup = setup_of(folder, source)
    Extractor(setup, False, print).extract(setup.data.splits["train"])
    Extractor(setup, False, print).extract(setup.data.splits["val"])
    other = tmp_path / "other"
    for n, path in enumerate(sorted(folder.rglob("*.png"))):
        target = other / ("x", "y")[n % 2] / f"{n}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    Image.new("RGB", (8, 8), (1, 200, 3)).save(other / "x" / "new.png")
    renamed = setup_of(other, source)
    found = [Extractor(renamed, False, print).extract(split) for split in renamed.data.splits.values()]
    assert sum(each.computed for each in found) == 1


def test_features_of_one_kind_serve_others_whatever_the_split_and_the_memory(folder, source):
    setup = setup_of(folder, source)
    train, val = setup.data.splits["train"], setup.data.splits["val"]
    exact = Extractor(setup, True, print).extract(val, tokens="exact")
    half = Extractor(setup, True, print).extract(val)  # as if the images had moved to the training split
    alone = Extractor(setup, False, print).extract(val)  # with less free memory
    assert (exact.computed, half.computed, alone.computed) == (len(val), 0, 0)
    assert torch.equal(half.tokens, exact.tokens.half())
    assert alone.tokens is None
    assert torch.equal(half.pooled, exact.pooled)
    assert torch.equal(alone.pooled, exact.pooled)
    Extractor(setup, True, print).extract(train)
    again = Extractor(setup, True, print).extract(train, tokens="exact")  # float16 does not hold these
    assert again.computed == len(train)
    assert again.tokens.dtype == torch.float32


def test_models_that_differ_in_their_pool_alone_share_no_features(folder, source):
    setup = setup_of(folder, source)
    split = setup.data.splits["train"]
    Extractor(setup, True, print).extract(split)
    pool = [each for name, each in setup.model.named_parameters() if name.startswith("attn_pool.")]
    with torch.no_grad():
        for each in pool:
            each.mul_(1.5)
    again = Extractor(setup, True, print).extract(split)
    assert again.computed == (len(split) if pool else 0)


def test_another_view_or_model_is_computed_anew(folder, source):
    setup = setup_of(folder, source)
    split = setup.data.splits["train"]
    extractor = Extractor(setup, False, print)
    plain = extractor.extract(split)
    turned = extractor.extract(split, 1)
    assert turned.computed == len(split)
    assert not torch.equal(turned.pooled, plain.pooled)
    with torch.no_grad():
        next(setup.model.blocks.parameters()).mul_(1.5)
    assert Extractor(setup, False, print).extract(split).computed == len(split)


def test_damaged_features_are_computed_again(folder, source, tmp_path):
    setup = setup_of(folder, source)
    split = setup.data.splits["train"]
    first = Extractor(setup, False, print).extract(split)
    (values,) = (tmp_path / "cache").rglob("*.values")
    content = bytearray(values.read_bytes())
    content[-40] ^= 1  # in the last feature
    values.write_bytes(content)
    again = Extractor(setup, False, print).extract(split)
    assert again.computed == len(split)
    assert torch.equal(again.pooled, first.pooled)


def test_a_killed_extraction_goes_on_where_it_stopped(folder, source, monkeypatch):
    setup = setup_of(folder, source)
    split = setup.data.splits["train"]
    whole = Extractor(setup, False, print)
    monkeypatch.setattr("vitreous.train.finetune.stages.features._BATCH", 4)
    monkeypatch.setattr("vitreous.train.finetune.stages.features._MOST", 4)
    monkeypatch.setattr("vitreous.train.finetune.stages.features._SHARD", 4)
    original, calls = whole._run, []

    def killed(pixels, kinds):
        calls.append(len(pixels))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(pixels, kinds)

    whole._run = killed
    with pytest.raises(KeyboardInterrupt):
        whole.extract(split)
    assert Extractor(setup, False, print).extract(split).computed == len(split) - 8


def test_a_deadline_leaves_images_out_of_both_classes(folder, source, monkeypatch):
    setup = setup_of(folder, source)
    split = setup.data.splits["train"]
    monkeypatch.setattr("vitreous.train.finetune.stages.features._FIRST_BATCH", 8)
    some = Extractor(setup, False, print).extract(split, deadline=time.monotonic())
    assert len(some.pooled) == len(some.labels) == some.computed == 8
    assert set(some.labels.tolist()) == {0, 1}
    assert some.positions == sorted(some.positions)


def test_a_view_depends_on_the_image_alone(folder):
    data = open_source(DataConfig(source=str(folder)))
    split, pipeline = data.splits["train"], EvalPipeline((16, 16), 3, PreprocessConfig())
    views = Views(pipeline, AugmentConfig(flip=0.5, resized_crop=0.5), seed=3)
    alone = dataclasses.replace(split, paths=split.paths[5:6], names=split.names[5:6], digests=split.digests[5:6])
    for view in range(3):
        assert np.array_equal(views.pixels(split, 5, view), views.pixels(alone, 0, view))
    assert np.array_equal(views.pixels(split, 5, 0), pipeline.pixels(split.image(5)))
    assert not np.array_equal(views.pixels(split, 5, 1), views.pixels(split, 5, 2))
    mirrored = Views(pipeline, AugmentConfig(flip=1.0), seed=3)
    assert np.array_equal(mirrored.pixels(split, 5, 1), pipeline.pixels(split.image(5))[:, ::-1])
    shifted = Views(pipeline, AugmentConfig(flip=0.0, pad_crop=2), seed=3).pixels(split, 5, 1)
    assert shifted.shape == (16, 16, 3)
    assert not Views(pipeline, AugmentConfig(flip=0.0), seed=3).vary


def test_the_least_recently_used_features_make_room(tmp_path, monkeypatch):
    values = {"pooled": torch.zeros(100, 100)}
    monkeypatch.setattr(cache_module, "MOST_BYTES", 100_000)
    for name in ("old", "used", "new"):
        cache = FeatureCache({"model": name})
        cache.add([f"{name}{n}" for n in range(100)], values)
        assert cache.problem is None
        os.utime(cache._folder, (1, 1) if name == "old" else None)
        time.sleep(0.01)
    assert not list(FeatureCache({"model": "old"}).find(["old1"], "pooled"))
    assert list(FeatureCache({"model": "new"}).find(["new1"], "pooled"))
    large = FeatureCache({"model": "large"})
    large.add([str(n) for n in range(1000)], {"pooled": torch.zeros(1000, 100)})
    assert "features are not kept for a second run: they would take more than" in large.problem
    assert not list((tmp_path / "cache").rglob(f"{large._folder.name}/*"))


def test_copies_of_an_image_and_values_beyond_float16_are_found():
    values = torch.tensor([[1.0], [torch.inf], [1.0], [3.0]])
    FeatureCache({"model": "copies"}).add(["a", "b", "a", "c"], {"pooled": values})
    ((positions, found),) = FeatureCache({"model": "copies"}).find(["c", "a", "b", "a"], "pooled")
    assert positions == [0, 1, 2, 3]
    assert found["pooled"].flatten().tolist() == [3.0, 1.0, torch.inf, 1.0]


def test_a_folder_of_others_is_not_read(tmp_path):
    cache = FeatureCache({"model": "x"})
    cache.add(["a"], {"pooled": torch.zeros(1, 2)})
    cache._folder.chmod(0o777)
    refused = FeatureCache({"model": "x"})
    assert not list(refused.find(["a"], "pooled"))
    assert "others may write to it" in refused.problem
