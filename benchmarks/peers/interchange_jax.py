"""Check Google's .npz files against a forward pass in JAX, on random weights, in both directions.

    pip install jax flax torch safetensors scikit-learn pillow numpy     # in an environment of its own
    PYTHONPATH=src python benchmarks/peers/interchange_jax.py [--vision-transformer CHECKOUT] [--big-vision CHECKOUT]
        [--full] [--only TEXT]

No package index has Google's code. With checkouts of google-research/vision_transformer and of big_vision, their own
modules compute the reference; otherwise the modules below do, from the same flax layers (LayerNorm,
MultiHeadDotProductAttention, GroupNorm, gelu). Every array is random, norms and biases included. Prints a Markdown
table with the largest difference of two logits relative to the largest logit. Exits 1 above 1e-5 (hybrids 3e-5).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch

from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint

RELEASED = {
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "LayerNorm_1": "LayerNorm_2",
    "MlpBlock_0": "MlpBlock_3",
}


@dataclass(frozen=True)
class Case:
    """A model and the layout of its file."""

    name: str
    width: int
    depth: int
    mlp: int
    heads: int
    patch: int
    side: int = 224
    pool: str = "tok"
    representation: int | None = None
    stages: tuple[int, ...] | None = None
    big_vision: bool = False
    scan: bool = False
    released: bool = True
    bound: float = field(default=1e-5)


TI, S, B, L = (192, 12, 768, 3), (384, 12, 1536, 6), (768, 12, 3072, 12), (1024, 24, 4096, 16)
CASES = [
    Case("Ti/16", *TI, 16),
    Case("S/16", *S, 16),
    Case("S/16 at 384 px", *S, 16, side=384),
    Case("S/16, mean", *S, 16, pool="gap"),
    Case("B/32", *B, 32),
    Case("B/32, pre_logits", *B, 32, representation=768),
    Case("B/32, today's naming", *B, 32, released=False),
    Case("R+Ti/16", *TI, 8, stages=(), bound=3e-5),
    Case("R26+S/32", *S, 1, stages=(2, 2, 2, 2), bound=3e-5),
    Case("R50+B/16", *B, 1, stages=(3, 4, 9), bound=3e-5),
    Case("S/16 of big_vision, mean", *S, 16, pool="gap", big_vision=True),
    Case("S/16 of big_vision, token", *S, 16, pool="tok", big_vision=True),
    Case("S/16 of big_vision, map, pre_logits", *S, 16, pool="map", representation=384, big_vision=True),
    Case("Ti/16 at 64 px of big_vision, map, scanned", *TI, 16, side=64, pool="map", big_vision=True, scan=True),
]
FULL = [
    Case("B/16", *B, 16),
    Case("L/16", *L, 16),
    Case("H/14", 1280, 32, 5120, 16, 14),
    Case("R50+L/16", *L, 1, stages=(3, 4, 9), bound=3e-5),
    Case("R50+L/32", *L, 1, stages=(3, 4, 6, 3), bound=3e-5),
]


class Mlp(nn.Module):
    """Dense, GELU by the tanh approximation, Dense."""

    hidden: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(x.shape[-1], name="Dense_1")(nn.gelu(nn.Dense(self.hidden, name="Dense_0")(x)))


class Block(nn.Module):
    """A pre-norm encoder block."""

    hidden: int
    heads: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.LayerNorm(name="LayerNorm_0")(x)
        x = x + nn.MultiHeadDotProductAttention(self.heads, name="MultiHeadDotProductAttention_0")(y, y)
        return x + Mlp(self.hidden, name="MlpBlock_0")(nn.LayerNorm(name="LayerNorm_1")(x))


class Encoder(nn.Module):
    """Positions if they belong to the encoder, blocks, the last norm."""

    case: Case

    @nn.compact
    def __call__(self, x: Any) -> Any:
        if not self.case.big_vision:
            x = Positions(name="posembed_input")(x)
        for i in range(self.case.depth):
            x = Block(self.case.mlp, self.case.heads, name=f"encoderblock_{i}")(x)
        return nn.LayerNorm(name="encoder_norm")(x)


class Positions(nn.Module):
    """Learned positions, added."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x + self.param("pos_embedding", nn.initializers.normal(), (1, *x.shape[1:]))


class MapHead(nn.Module):
    """A learned probe attends to all tokens, then an MLP."""

    case: Case

    @nn.compact
    def __call__(self, x: Any) -> Any:
        probe = self.param("probe", nn.initializers.normal(), (1, 1, x.shape[-1]))
        probe = jnp.broadcast_to(probe, (len(x), 1, x.shape[-1]))
        x = nn.MultiHeadDotProductAttention(self.case.heads, name="MultiHeadDotProductAttention_0")(probe, x)
        return (x + Mlp(self.case.mlp, name="MlpBlock_0")(nn.LayerNorm(name="LayerNorm_0")(x)))[:, 0]


class StdConv(nn.Conv):
    """A convolution whose kernel is standardised per output channel."""

    def param(self, name: str, *arguments: Any, **more: Any) -> Any:
        value = super().param(name, *arguments, **more)
        if name != "kernel":
            return value
        centred = value - value.mean((0, 1, 2))
        return centred / (jnp.std(value, (0, 1, 2)) + 1e-5)


class Unit(nn.Module):
    """A bottleneck."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        shortcut, out, stride = x, 4 * self.width, (self.stride, self.stride)
        if x.shape[-1] != out or self.stride != 1:
            shortcut = StdConv(out, (1, 1), stride, use_bias=False, name="conv_proj")(x)
            shortcut = nn.GroupNorm(name="gn_proj")(shortcut)
        y = nn.relu(nn.GroupNorm(name="gn1")(StdConv(self.width, (1, 1), use_bias=False, name="conv1")(x)))
        y = nn.relu(nn.GroupNorm(name="gn2")(StdConv(self.width, (3, 3), stride, use_bias=False, name="conv2")(y)))
        return nn.relu(nn.GroupNorm(name="gn3")(StdConv(out, (1, 1), use_bias=False, name="conv3")(y)) + shortcut)


class Stage(nn.Module):
    """Bottlenecks, the first of them with the stage's stride."""

    length: int
    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for j in range(self.length):
            x = Unit(self.width, self.stride if j == 0 else 1, name=f"unit{j + 1}")(x)
        return x


class OurWords(nn.Module):
    """The models of both repositories, built from flax layers."""

    case: Case
    classes: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        case, patch = self.case, (self.case.patch, self.case.patch)
        if case.stages is not None:
            x = nn.relu(nn.GroupNorm(name="gn_root")(StdConv(64, (7, 7), (2, 2), use_bias=False, name="conv_root")(x)))
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
            for i, length in enumerate(case.stages):
                x = Stage(length, 64 * 2**i, 1 if i == 0 else 2, name=f"block{i + 1}")(x)
        x = nn.Conv(case.width, patch, patch, "VALID", name="embedding")(x)
        x = x.reshape(len(x), -1, case.width)
        if case.big_vision:
            x = x + self.param("pos_embedding", nn.initializers.normal(), (1, *x.shape[1:]))
        if case.pool == "tok":
            cls = self.param("cls", nn.initializers.zeros, (1, 1, case.width))
            x = jnp.concatenate([jnp.broadcast_to(cls, (len(x), 1, case.width)), x], 1)
        x = Encoder(case, name="Transformer")(x)
        x = MapHead(case, name="MAPHead_0")(x) if case.pool == "map" else x[:, 0] if case.pool == "tok" else x.mean(1)
        if case.representation:
            x = jnp.tanh(nn.Dense(case.representation, name="pre_logits")(x))
        return nn.Dense(self.classes, name="head")(x)


def reference(case: Case, classes: int, vision_transformer: Path | None, big_vision: Path | None) -> tuple[Any, Any]:
    """Return the function (variables, images) -> logits, and the shapes of its variables."""
    images = jnp.zeros((1, case.side, case.side, 3))
    if case.big_vision and big_vision is not None:
        return googles_big_vision(case, classes, big_vision, images)
    if not case.big_vision and vision_transformer is not None:
        return googles_vision_transformer(case, classes, vision_transformer, images)
    model = OurWords(case, classes)
    return model.apply, jax.eval_shape(model.init, jax.random.key(0), images)


def googles_vision_transformer(case: Case, classes: int, checkout: Path, images: Any) -> tuple[Any, Any]:
    """google-research/vision_transformer's own module."""
    sys.path.insert(0, str(checkout))
    from vit_jax.models_vit import VisionTransformer

    resnet = None
    if case.stages is not None:
        resnet = types.SimpleNamespace(num_layers=case.stages, width_factor=1)
    model = VisionTransformer(
        num_classes=classes,
        patches=types.SimpleNamespace(size=(case.patch, case.patch)),
        transformer={"num_layers": case.depth, "mlp_dim": case.mlp, "num_heads": case.heads, "dropout_rate": 0.0},
        hidden_size=case.width,
        resnet=resnet,
        representation_size=case.representation,
        classifier={"tok": "token", "gap": "gap"}[case.pool],
    )
    shapes = jax.eval_shape(lambda key: model.init(key, images, train=False), jax.random.key(0))
    return lambda variables, x: model.apply(variables, x, train=False), shapes


def googles_big_vision(case: Case, classes: int, checkout: Path, images: Any) -> tuple[Any, Any]:
    """big_vision's own module; its utilities need TensorFlow, are unused in a forward pass, and are stubbed."""
    sys.path.insert(0, str(checkout))
    for name in ("big_vision.utils", "big_vision.models.common"):
        sys.modules.setdefault(name, types.ModuleType(name))
    import big_vision

    big_vision.utils = sys.modules["big_vision.utils"]
    import big_vision.models

    big_vision.models.common = sys.modules["big_vision.models.common"]
    from big_vision.models.vit import _Model

    model = _Model(
        num_classes=classes, patch_size=(case.patch, case.patch), width=case.width, depth=case.depth, mlp_dim=case.mlp,
        num_heads=case.heads, rep_size=case.representation or False, pool_type=case.pool, scan=case.scan,
    )  # fmt: skip
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
    return lambda variables, x: model.apply(variables, x)[0], shapes


def random_like(shapes: Any, seed: int) -> dict[str, np.ndarray]:
    """Random arrays by name: norms around 1, kernels by fan-in, biases and tokens small, none of them zero."""
    random = np.random.default_rng(seed)
    arrays = {}
    for path, shape in flax.traverse_util.flatten_dict(flax.core.unfreeze(shapes)["params"], sep="/").items():
        noise = random.standard_normal(shape.shape, dtype=np.float32)
        if path.endswith("/scale"):
            arrays[path] = 1 + 0.2 * noise
        elif path.endswith("/kernel"):
            stacked = "encoderblock/" in path
            inputs = shape.shape[int(stacked) :]
            fan_in = np.prod(inputs[:1] if "MultiHead" in path and "/out/" not in path else inputs[:-1])
            arrays[path] = noise / np.float32(fan_in) ** np.float32(0.5)
        else:
            arrays[path] = 0.3 * noise
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def renamed(name: str, pairs: dict[str, str]) -> str:
    """Return a name inside a block in the other naming."""
    for one, other in pairs.items():
        name = name.replace(f"/{one}/", f"/{other}/") if "/encoderblock_" in name else name
    return name


def as_stored(arrays: dict[str, np.ndarray], case: Case) -> dict[str, np.ndarray]:
    """Rename variables as the file stores them."""
    if case.big_vision:
        return {f"params/{name}": array for name, array in arrays.items()}
    pairs = RELEASED if case.released else {}
    return {renamed(name, pairs): array for name, array in arrays.items()}


def as_run(stored: dict[str, np.ndarray], case: Case) -> Any:
    """Invert :func:`as_stored`."""
    pairs = {old: new for new, old in RELEASED.items()} if case.released and not case.big_vision else {}
    arrays = {renamed(name.removeprefix("params/"), pairs): jnp.asarray(array) for name, array in stored.items()}
    return {"params": flax.traverse_util.unflatten_dict(arrays, sep="/")}


def measure(case: Case, folder: Path, checkouts: tuple[Path | None, Path | None]) -> tuple[float, float, bool]:
    """Return the difference after import, that after export, and whether every array came back with the same bits."""
    apply, shapes = reference(case, 1000, *checkouts)
    stored = as_stored(random_like(shapes, 0), case)
    source = folder / "source.npz"
    np.savez(source, **stored)
    random = np.random.default_rng(1)
    images = random.standard_normal((2, case.side, case.side, 3), dtype=np.float32)
    wanted = np.asarray(jax.jit(apply)(as_run(stored, case), images))
    ours, _ = open_checkpoint(source, OpenOptions())
    with torch.inference_mode():
        found = ours(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    scale = np.abs(wanted).max()
    imported = float(np.abs(found - wanted).max() / scale)
    del ours  # the largest models need the memory
    convert(source, folder / "own.safetensors", "vitreous", overwrite=True)
    convert(folder / "own.safetensors", folder / "back.npz", "google", overwrite=True)
    with np.load(folder / "back.npz") as file:
        back = dict(file)
    same = stored.keys() == back.keys() and all(np.array_equal(stored[name], back[name]) for name in stored)
    again = np.asarray(jax.jit(apply)(as_run(back, case), images))
    return imported, float(np.abs(found - again).max() / scale), same


def main() -> int:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vision-transformer", type=Path, help="a checkout of google-research/vision_transformer")
    parser.add_argument("--big-vision", type=Path, help="a checkout of google-research/big_vision")
    parser.add_argument("--full", action="store_true", help="the large models too")
    parser.add_argument("--only", default="", metavar="TEXT", help="only models whose name contains this")
    options = parser.parse_args()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flax", "torch"))
    print(f"{versions}; float32 on the CPU\n")
    print("| model | computed by | after import | after export | bound | back to the last bit |")
    print("|---|---|---|---|---|---|")
    failed = False
    for case in CASES + FULL * options.full:
        if options.only not in case.name:
            continue
        theirs = options.big_vision if case.big_vision else options.vision_transformer
        if case.scan and theirs is None:
            continue  # the modules here do not scan
        with tempfile.TemporaryDirectory() as folder:
            checkouts = (options.vision_transformer, options.big_vision)
            imported, exported, same = measure(case, Path(folder), checkouts)
        by = ("big_vision" if case.big_vision else "vision_transformer") if theirs else "flax's layers"
        good = same and max(imported, exported) <= case.bound
        failed |= not good
        print(
            f"| {case.name} | {by} | {imported:.1e} | {exported:.1e} | {case.bound:.0e} | {'yes' if same else 'NO'} |",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
