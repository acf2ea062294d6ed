"""Class maps as graphs equal those of PyTorch, for each kind of pooling, position and attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import OutputError
from vitreous.model.attention.axial import AxialConfig
from vitreous.model.attention.softmax import AttentionConfig
from vitreous.model.block import BlockConfig
from vitreous.model.config import ViTConfig
from vitreous.model.pools import AttentionPool, Mean, SequencePool
from vitreous.model.positions.relative import Relative
from vitreous.model.positions.rope_2d import Rope2d
from vitreous.model.vit import VisionTransformer

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from vitreous.export import class_map as module  # noqa: E402
from vitreous.export.class_map import OUTPUTS, class_map, compare, reference  # noqa: E402
from vitreous.export.shared_weights import halve  # noqa: E402

INFO = ModelInfo(tuple("abc"), EvalPipeline((8, 12), 3, PreprocessConfig(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))))


def model_of(**parts: Any) -> VisionTransformer:
    torch.manual_seed(0)
    plain = {
        "image_size": (8, 12),
        "patch_size": 4,
        "num_classes": 3,
        "width": 16,
        "depth": 2,
        "heads": 2,
        "mlp_dim": 32,
    }
    model = VisionTransformer(ViTConfig(**(plain | parts))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def test_a_graph_that_does_not_run_is_refused() -> None:
    import onnx

    with pytest.raises(OutputError, match="cannot be compared with PyTorch: "):
        compare(onnx.ModelProto(), model_of(), INFO)


@pytest.mark.parametrize(
    "parts",
    [
        {"registers": 1},
        {"pool": Mean(), "class_token": False, "attention": AxialConfig(), "depth": 1},
        {"pool": AttentionPool(), "position": Rope2d(), "attention": AttentionConfig(qk_norm=True), "depth": 1},
        {"pool": SequencePool(), "position": Relative(), "block": BlockConfig(layer_scale=0.5), "depth": 1},
    ],
    ids=["cls", "mean-axial", "map-rope", "seq-relative"],
)
def test_graph_equals_pytorch(parts: dict[str, Any]) -> None:
    model = model_of(**parts)
    graph = class_map(model, INFO)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = torch.randint(0, 256, (1, 3, 8, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    maps = []
    for target in range(3):
        found = session.run(list(OUTPUTS), {"pixels": pixels.float().numpy(), "target": np.array([target])})
        for one, expected in zip(found, reference(model, INFO, pixels, target), strict=True):
            assert one.shape == tuple(expected.shape)
            assert abs(one - expected.numpy()).max() <= 1e-4 * max(1e-3, float(expected.max()))
        maps.append(found[0])
    assert maps[0].shape == (2, 3)
    assert abs(maps[0] - maps[1]).max() > 1e-3 * maps[0].max()  # the class is an input
    halve(graph)  # as beside a quantised graph
    compare(graph, model, INFO, 1e-2)


def test_a_graph_of_another_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees a map whose gradients are left out, and one of another class."""
    model = model_of(depth=1)
    honest = module._attentions
    monkeypatch.setattr(module, "_attentions", lambda model, images: 1.01 * honest(model, images))
    with monkeypatch.context() as patched:
        patched.setattr(module, "compare", lambda graph, model, info: None)
        graph = class_map(model, INFO)
    monkeypatch.setattr(module, "_attentions", honest)
    with pytest.raises(OutputError, match="gives another attention: it differs by"):
        compare(graph, model, INFO)
    other = model_of(depth=1)
    with torch.no_grad():
        other.head.weight.mul_(-1)
    with pytest.raises(OutputError, match="gives another map"):
        compare(graph, other, INFO)


def test_models_without_classes_have_no_map() -> None:
    with pytest.raises(OutputError, match="no class map"):
        class_map(model_of(num_classes=0), INFO)
