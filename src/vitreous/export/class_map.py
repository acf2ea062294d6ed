"""The class map of :func:`vitreous.explain` as an ONNX graph: its backward pass is part of the graph.

A runtime has no gradients. The pass and the gradients of the class score by each attention are therefore traced
together, and the trace is written like any other graph. Weights may be shared with the graph that predicts
(:mod:`vitreous.export.shared_weights`).

Shapes: C channels, H x W pixels of the model's input, (h, w) patches down and across, L blocks, T tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.checkpoint.model_file import ModelInfo
from vitreous.errors import OutputError, VitreousError, first_line
from vitreous.export.graph.gradients import trace_gradients
from vitreous.export.graph.tracing import forget_machine, quiet
from vitreous.export.verification.bounds import ROUNDINGS
from vitreous.inspection.maps.gradient_attention import GradientAttention, rounding
from vitreous.inspection.maps.readout import on_grid, readout
from vitreous.model.vit import VisionTransformer

__all__ = ["BOUND", "INPUTS", "OUTPUTS", "class_map", "compare", "reference"]

INPUTS = ("pixels", "target")
"""Names of the inputs: the resized image (1, C, H, W), float32 from 0 to 255, and the class to explain (1,) int64.

The first is also the name of a tensor inside the graph that predicts.
"""

OUTPUTS = ("map", "attention")
"""Names of the outputs: the class map (h, w), and the attention of each block (L, h, w), both float32.

The attention of a block is what the tokens that the pooling reads attend to, as :class:`RawAttention` has it.
"""

BOUND = 1e-4
"""Largest accepted difference from PyTorch, as a share of the largest value of a map."""


def class_map(model: VisionTransformer, info: ModelInfo) -> Any:
    """Return the graph as an ``onnx.ModelProto``, checked against PyTorch.

    Args:
        model: In evaluation mode, with classes.
        info: Of the model; its pipeline says how large the input is.

    Raises:
        OutputError: If the model has no classes, its backward pass cannot be written, or the graph gives another map.
    """
    if not model.config.num_classes:
        raise OutputError("a model without classes has no class map: export one with a head")
    pixels = _noise(info)
    with _refusing("the class map of this model cannot be written as a graph"), quiet():
        graph = _to_onnx(_traced(model, info, pixels), pixels)
    compare(graph, model, info)
    return graph


@contextlib.contextmanager
def _refusing(reason: str) -> Iterator[None]:
    """Turn an error of the tracer, the exporter or the runtime, which may have any class, into an OutputError."""
    try:
        yield
    except (OSError, VitreousError):
        raise
    except Exception as error:
        raise OutputError(f"{reason}: {type(error).__name__}: {first_line(error)}") from error


def reference(model: VisionTransformer, info: ModelInfo, pixels: Tensor, target: int) -> tuple[Tensor, Tensor]:
    """Return the map (h, w) and the attentions (L, h, w) as PyTorch computes them, for pixels (1, C, H, W) uint8."""
    images = info.pipeline.normalise(pixels)
    maps = GradientAttention()(model, images, torch.tensor([target]))
    with torch.no_grad():
        return maps.values[0], _attentions(model, images)


def _noise(info: ModelInfo) -> Tensor:
    """Return noise, (1, C, H, W) uint8. The trace does not depend on its values."""
    size = (1, info.pipeline.channels, *info.pipeline.size)
    return torch.randint(0, 256, size, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def _attentions(model: VisionTransformer, images: Tensor) -> Tensor:
    values = model.intermediates(images)
    row = readout(model, values)  # 1 1 T
    return torch.cat([on_grid(row @ layer.weights().mean(1), values) for layer in values.layers])  # L h w


def _traced(model: VisionTransformer, info: ModelInfo, pixels: Tensor) -> nn.Module:
    """Return a module with the operators of the forward and the backward pass, without gradients or mutation."""
    mean, std = (
        torch.tensor(values).view(-1, 1, 1) for values in (info.pipeline.config.mean, info.pipeline.config.std)
    )

    def both(pixels: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        images = ((pixels / 255 - mean) / std).detach()  # C 1 1 each; compute asks for gradients by a leaf
        values = GradientAttention().compute(model, images, target).values[0]
        with torch.no_grad():
            return values, _attentions(model, images)

    return trace_gradients(both, (pixels.float(), torch.zeros(1, dtype=torch.int64)))


def _to_onnx(module: nn.Module, pixels: Tensor) -> Any:
    inputs = pixels.float(), torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        program = torch.onnx.export(
            _Module(module).eval(), inputs, dynamo=True, input_names=INPUTS, output_names=OUTPUTS, verbose=False
        )
    assert program is not None  # None only with dynamo=False
    forget_machine(program)
    return program.model_proto


class _Module(nn.Module):
    """Holds the trace as a submodule, so that the exporter finds its weights."""

    def __init__(self, traced: nn.Module) -> None:
        super().__init__()
        self.traced = traced

    def forward(self, pixels: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return map and attentions."""
        return self.traced(pixels, target)


@_refusing("the graph of the class map cannot be compared with PyTorch")
def compare(graph: Any, model: VisionTransformer, info: ModelInfo, bound: float = BOUND) -> None:
    """Run a graph for the first and the last class, on noise and on noise with larger spots, and compare with PyTorch.

    Raises:
        OutputError: If the graph does not run, or an output differs by more than the bound, a share of its largest
            value, and a map by more than rounding explains.
    """
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    noise = _noise(info)
    spots = (
        noise[..., ::4, ::4].repeat_interleave(4, 2).repeat_interleave(4, 3)[..., : noise.shape[2], : noise.shape[3]]
    )
    for target, pixels in ((0, noise), (model.config.num_classes - 1, spots)):
        feeds = {"pixels": pixels.float().numpy(), "target": torch.tensor([target]).numpy()}
        limits = _limits(model, info, pixels, target, bound)
        pairs = zip(OUTPUTS, session.run(None, feeds), reference(model, info, pixels, target), limits, strict=True)
        for name, found, expected, limit in pairs:
            difference = float((torch.from_numpy(found) - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
            if not difference <= limit:
                raise OutputError(
                    f"the graph of the class map gives another {name}: it differs by {difference:.1e} of the largest "
                    f"value, above {limit:g}"
                )


def _limits(
    model: VisionTransformer, info: ModelInfo, pixels: Tensor, target: int, bound: float
) -> tuple[float, float]:
    """Return the bound of each output; a map may differ by as much as float32 can give."""
    rounded = float(rounding(model, info.pipeline.normalise(pixels), torch.tensor([target])))
    return max(bound, ROUNDINGS * rounded), bound
