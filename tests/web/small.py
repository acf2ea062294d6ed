"""A small model with thresholds, and its graph as an export writes it: from images of any size to decisions."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.evaluate.trust.abstention import AbstentionRule
from vitreous.evaluate.trust.conformal import ConformalSets
from vitreous.evaluate.trust.selective import SelectionScore
from vitreous.export.description import describe
from vitreous.model.config import ViTConfig
from vitreous.model.vit import VisionTransformer

CLASSES = ("ash", "birch", "<b>cedar</b>", "douglas fir", "elm", "fir </script>")
THRESHOLD, HELD = 0.5, 0.15  # highest probability that is unsure; lowest of a class in the set
SIZE = (32, 32)


def model_and_info() -> tuple[VisionTransformer, ModelInfo]:
    """Return a model with decisive predictions, and a description with an abstention rule and conformal sets."""
    torch.manual_seed(1)
    config = ViTConfig(image_size=32, patch_size=8, num_classes=len(CLASSES), width=48, depth=2, heads=3, mlp_dim=96)
    model = VisionTransformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.head.weight.mul_(6)
    info = ModelInfo(
        CLASSES,
        EvalPipeline(SIZE, 3, PreprocessConfig(fit="squash", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))),
        temperature=1.5,
        provenance={"license": "CC-BY-4.0"},
        scores={"test": {"top1": 0.9}},
        abstention=AbstentionRule(SelectionScore("max_probability"), THRESHOLD, 0.95, 0.95, 0.5, 0.97),
        conformal=ConformalSets("lac", 0.9, (1 - HELD,), len(CLASSES)),
    )
    return model, info


class _Decisions(nn.Module):
    def __init__(self, model: VisionTransformer, info: ModelInfo) -> None:
        super().__init__()
        self.model, self.info = model, info

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        mean, std = (
            torch.tensor(each).view(-1, 1, 1)
            for each in (self.info.pipeline.config.mean, self.info.pipeline.config.std)
        )
        features = self.model((pixels / 255 - mean) / std, "features")
        logits = self.model.head(features)
        probabilities = (logits / self.info.temperature).softmax(1)
        return probabilities, logits, features * 1, probabilities.amax(1) <= THRESHOLD, probabilities >= HELD


def write_graph(model: VisionTransformer, info: ModelInfo, file: Path) -> None:
    """Write the graph with native operators, and its description."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    names = ["probabilities", "logits", "features", "unsure", "sets"]
    example = torch.zeros(2, 3, *SIZE)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        after = torch.onnx.export(
            _Decisions(model, info).eval(), (example,), dynamo=True, opset_version=20, verbose=False,
            dynamic_shapes=({0: torch.export.Dim("batch")},), input_names=["pixels"], output_names=names,
        ).model_proto  # fmt: skip
    constants = {"size": np.array(SIZE)}
    nodes = [
        helper.make_node("Transpose", ["images"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Shape", ["planes"], ["sides"], start=0, end=2),
        helper.make_node("Concat", ["sides", "size"], ["shape"], axis=0),
        helper.make_node(
            "Resize", ["planes", "", "", "shape"], ["resized"], mode="cubic", antialias=1, exclude_outside=1,
            cubic_coeff_a=-0.5,
        ),
        helper.make_node("Cast", ["resized"], ["pixels"], to=TensorProto.FLOAT),
    ]  # fmt: skip
    values = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", "height", "width", 3])
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, *SIZE])
    before = helper.make_model(
        helper.make_graph(nodes, "resize", [images], [pixels], values), ir_version=after.ir_version,
        opset_imports=[helper.make_opsetid("", 20)],
    )  # fmt: skip
    whole = onnx.compose.merge_models(before, after, [("pixels", "pixels")])
    helper.set_model_props(whole, words(info))
    onnx.save_model(whole, file)


def words(info: ModelInfo) -> dict[str, str]:
    """Return the description that is stored in a graph."""
    return describe(info, "onnx", "model.onnx", precision="float32", resize="native")
