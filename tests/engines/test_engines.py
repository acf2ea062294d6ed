"""Every engine agrees with PyTorch in float32, for every kind of model and any number of images."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from engine_models import info_of, model_of

from vitreous.engines.choose import EngineChoice
from vitreous.engines.opening import installed
from vitreous.engines.torch_engine import TorchEngine, no_tf32
from vitreous.errors import ConfigError
from vitreous.machine.device import computes_bf16
from vitreous.predictor import Classifier

VARIANTS = {  # each position, stem, pooling and head once; other tests use the plain model
    "rotary, registers, QK-norm, LayerScale, mlp head": {
        "position": "rope-2d",
        "registers": 2,
        "attention": {"qk_norm": True},
        "block": {"layer_scale": 0.3},
        "head": {"kind": "mlp", "hidden": 20},
    },
    "relative, map": {"position": "relative", "pool": "map", "final_norm": "pooled"},
    "learned-2d, linear stem, seq": {"position": "learned-2d", "stem": "linear", "pool": "seq"},
    "sincos, convolutions, no head": {"position": "sincos-2d", "num_classes": 0, "stem": "conv", "pool": "mean"},
}


@pytest.fixture(params=["openvino", "onnxruntime"])
def engine(request) -> str:
    if not installed(request.param):
        pytest.skip(f"{request.param} is not installed: pip install -e '.[dev]'")
    return request.param


def both(changes, engine, precision="float32", merge=0):
    from vitreous.accelerate.merging import merge_tokens

    model = model_of(**changes)
    merge_tokens(model, merge)
    plain = Classifier(model, info_of(model), "cpu")
    return plain, Classifier(model, info_of(model), "cpu", engine=engine, precision=precision)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_and_features_agree_with_pytorch(home, engine, changes, photos):
    plain, other = both(changes, engine)
    for batch_size in (1, 2, 5):
        found, expected = other.logits(photos, batch_size), plain.logits(photos, batch_size)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        found, expected = other.embed(photos, batch_size), plain.embed(photos, batch_size)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert (other.prepare(1).name, other.prepare(1).precision) == (engine, "float32")


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_split_batches_agree_with_pytorch_and_keep_their_order(home, engine, three_threads):
    model = model_of()
    choice = EngineChoice(model, info_of(model).pipeline, 1.0, engine=engine, precision="float32")
    images = torch.randn(131, 3, 32, 32)
    with torch.inference_mode():
        expected = model(images), model(images, "features")
    chosen = choice.engine(1_000, 128)
    for count in (131, 130, 17, 3, 1):  # a full batch, and shorter last ones
        for found, right in zip(chosen(images[:count]), expected, strict=True):
            torch.testing.assert_close(found, right[:count], rtol=1e-4, atol=1e-4 * float(right.abs().max()))
    if engine == "openvino":
        assert len(chosen._requests) == 3
        few = EngineChoice(model, info_of(model).pipeline, 1.0, engine=engine, precision="float32").engine(1, 1)
        assert len(few._requests) == 1  # all threads work on one image


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_torch_splits_large_batches_between_threads(precision, three_threads):
    engine = TorchEngine(model_of(depth=2), precision)
    images = torch.randn(400, 3, 32, 32)
    seen, bound = set(), {"float32": 1e-5, "bf16": 2e-2}[precision]
    engine._outputs.model.norm.register_forward_hook(lambda *_: seen.add(threading.get_ident()))
    found = engine(images)
    assert 1 < len(seen) <= 3  # a thread that is early may take two parts
    whole = [engine(part) for part in images.split(50)]
    assert threading.get_ident() in seen
    for one, parts in zip(found, zip(*whole, strict=True), strict=True):
        exact = torch.cat(parts)
        torch.testing.assert_close(one, exact, rtol=1e-4, atol=float(bound * exact.std()))


def test_merged_tokens_are_converted(home, engine, photos):
    plain, other = both({"depth": 2}, engine, merge=3)
    np.testing.assert_allclose(other.logits(photos), plain.logits(photos), rtol=1e-4, atol=1e-3)
    whole = Classifier(model_of(depth=2), plain.info, "cpu")
    assert np.abs(plain.logits(photos) - whole.logits(photos)).max() > 1e-2


@pytest.mark.parametrize("name", ["torch", "openvino"])
def test_bf16_is_close_to_float32_but_not_equal(home, name, photos):
    if name != "torch" and not installed(name):
        pytest.skip(f"{name} is not installed")
    plain, other = both({"depth": 2}, name, "bf16")
    if name == "openvino" and not computes_bf16(torch.device("cpu")):
        with pytest.raises(ConfigError, match="computes in float32 on this processor: use --precision float32"):
            other.prepare(1)
        return
    found, expected = other.logits(photos), plain.logits(photos)
    assert other.prepare(1).precision == "bf16"
    assert np.abs(found - expected).max() <= 0.05 * np.abs(expected - expected.mean(1, keepdims=True)).max()
    assert found.dtype == np.float32
    assert not np.array_equal(found, expected)


def test_torch_in_float32_is_the_model_itself(photos):
    model = model_of()
    choice = EngineChoice(model, info_of(model).pipeline, 1.0, engine="torch", precision="float32")
    images = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():  # not bit for bit: the last bits depend on memory alignment in MKL
        torch.testing.assert_close(choice.engine(10, 2)(images)[0], model(images))


def test_float32_convolutions_on_a_gpu_do_not_use_tf32():
    from torch.backends import cudnn

    before = (cudnn.allow_tf32, cudnn.enabled, cudnn.benchmark)
    with no_tf32(torch.device("cuda")):
        assert (cudnn.allow_tf32, *before[1:]) == (False, *before[1:])
    assert (cudnn.allow_tf32, cudnn.enabled, cudnn.benchmark) == before
    with no_tf32(torch.device("cpu")):
        assert cudnn.allow_tf32 == before[0]


SIGNALLED = """
import os, signal, sys, threading
from pathlib import Path
from vitreous.engines.openvino_engine import Graph, convert
from vitreous.model.vit import VisionTransformer, ViTConfig

model = VisionTransformer(ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=2, mlp_dim=16, num_classes=2))
convert(model, (16, 16), Path(sys.argv[1]))
graphs = [Graph(Path(sys.argv[1]), "float32", 1)]
freeing = threading.Thread(target=graphs.clear)
freeing.start()
freeing.join()
signal.signal(signal.SIGINT, lambda *_: print("handled"))
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.skipif(not installed("openvino"), reason="openvino is not installed: pip install -e '.[dev]'")
def test_signals_are_handled_after_another_thread_freed_a_graph(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.returncode, run.stdout) == (0, "handled\n"), run.stderr
