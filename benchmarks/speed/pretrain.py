"""Time of an MAE epoch over 50,000 images of 32 pixels, ours beside lightly's in turn; width 128, depth 6.

Run with: python benchmarks/speed/pretrain.py [--steps 20] [--rounds 3]

Both encode 16 of 64 patches, decode with width 64 and depth 2, and update with AdamW, under bf16 autocast where the
processor computes in bf16. Ours shares a batch between two threads, as `vitreous pretrain` does. A round times so many
steps of each. lightly needs timm, and is left out where it is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import torch

from vitreous.accelerate.batch_parts import add_gradients, num_parts
from vitreous.accelerate.model import build
from vitreous.data.config import PreprocessConfig
from vitreous.data.preprocess import EvalPipeline
from vitreous.machine.device import computes_bf16
from vitreous.model.pools import Mean
from vitreous.model.sizes import config_of
from vitreous.model.stems import LinearStem
from vitreous.train.pretrain.objectives.mae import Mae, MaeConfig

IMAGES, BATCH = 50_000, 256


def ours() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return our loss of a batch."""
    config = config_of("128x6/4", num_classes=0, heads=4, stem=LinearStem(), pool=Mean())
    pipeline = EvalPipeline((32, 32), 3, PreprocessConfig(mean=(0.5,) * 3, std=(0.25,) * 3))
    objective = Mae(build(config), pipeline, MaeConfig(decoder_width=64)).train()

    def learn(images: torch.Tensor) -> torch.Tensor:
        parts = num_parts(objective.backbone, images)
        if parts == 1:
            return backward(objective((images,)).loss)
        split = objective.in_parts((images,))
        own = {"loss_of": split.loss_of, "extra": split.trained}
        return add_gradients(objective.backbone, images, images, parts, **own)

    return stepping(objective, learn)


def lightlys() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the loss of a batch with lightly's modules, as its MAE example combines them."""
    from lightly.models import utils
    from lightly.models.modules import MAEDecoderTIMM, MaskedVisionTransformerTIMM
    from timm.models.vision_transformer import VisionTransformer

    vit = VisionTransformer(
        img_size=32, patch_size=4, embed_dim=128, depth=6, num_heads=4, mlp_ratio=2.0, num_classes=0
    )
    encoder = MaskedVisionTransformerTIMM(vit=vit)
    decoder = MAEDecoderTIMM(
        num_patches=64,
        patch_size=4,
        embed_dim=128,
        decoder_embed_dim=64,
        decoder_depth=2,
        decoder_num_heads=4,
        mlp_ratio=4.0,
    )
    both = torch.nn.ModuleList((encoder, decoder)).train()

    def loss(images: torch.Tensor) -> torch.Tensor:
        size = (len(images), encoder.sequence_length)
        kept, masked = utils.random_token_mask(size=size, mask_ratio=0.75, device=images.device)
        encoded = decoder.embed(encoder.encode(images=images, idx_keep=kept))
        tokens = utils.repeat_token(decoder.mask_token, size)
        tokens = utils.set_at_index(tokens, kept, encoded.type_as(tokens))
        predicted = decoder.predict(utils.get_at_index(decoder.decode(tokens), masked))
        targets = utils.get_at_index(utils.patchify(images, 4), masked - 1)
        return torch.nn.functional.mse_loss(predicted.float(), utils.normalize_mean_var(targets, dim=-1))

    return stepping(both, lambda images: backward(loss(images)))


def backward(loss: torch.Tensor) -> torch.Tensor:
    """Add the gradients of a loss, and return it without."""
    loss.backward()
    return loss.detach()


def stepping(
    module: torch.nn.Module, learn: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that makes one step on a batch, of whose loss ``learn`` adds the gradients."""
    in_bf16 = computes_bf16(torch.device("cpu"))
    optimizer = torch.optim.AdamW((p for p in module.parameters() if p.requires_grad), lr=1e-3, fused=True)

    def step(images: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
            value = learn(images)
        optimizer.step()
        optimizer.zero_grad()
        return value

    return step


def main() -> None:
    """Time both in turn, and print the time of an epoch at the median of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    steps = {"vitreous": ours()}
    if importlib.util.find_spec("lightly") is not None:
        steps["lightly"] = lightlys()
    images = torch.randn(BATCH, 3, 32, 32)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step(images)
    for _ in range(options.rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            for _ in range(options.steps):
                step(images)
            taken[name].append((time.perf_counter() - started) / options.steps)
    for name, seconds in taken.items():
        epoch = statistics.median(seconds) * IMAGES / BATCH
        spread = f"{min(seconds):.3f} to {max(seconds):.3f} s a step"
        print(f"{name:<10} {epoch:6.1f} s per epoch of {IMAGES:,} images, {spread}")


if __name__ == "__main__":
    main()
