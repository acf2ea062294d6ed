"""Check full-size checkpoints of timm, torchvision and Hugging Face in both directions.

    pip install -e '.[dev]'
    python benchmarks/peers/interchange.py [--full] [--only TEXT]

Every tensor is random. For each model: its own library writes it, this package opens it, and the logits are compared;
it is converted to a model file of this package and back, its library loads the result, and the logits are compared
again; and every tensor is compared with the original bit for bit. Prints a Markdown table with the largest difference
of two logits relative to the largest logit. Exits 1 above 1e-5. Google's files are in interchange_jax.py.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the hub client is imported

import timm
import torch
import torchvision
import transformers
from safetensors.torch import load_file
from timm.models import save_for_hf
from torch import Tensor, nn

from vitreous.checkpoint.conversion.convert import convert
from vitreous.checkpoint.opening import OpenOptions, open_checkpoint

BOUND = 1e-5
Read = Callable[[Any], Tensor]
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


def randomise(model: nn.Module) -> nn.Module:
    """Randomise every tensor: norms around 1, matrices by fan-in, biases and tokens too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim == 1 and name.endswith("weight"):
                tensor.copy_(1 + 0.2 * noise)
            elif name.endswith(("gamma", "lambda1")):
                tensor.copy_(0.5 + 0.2 * noise)
            elif tensor.ndim == 4 or (tensor.ndim == 2 and name.endswith("weight")):
                tensor.copy_(noise / tensor[0].numel() ** 0.5)
            else:
                tensor.copy_(0.3 * noise)
    return model.eval()


def apart(a: Tensor, b: Tensor) -> float:
    """Return the largest difference relative to the largest value of the first."""
    return float((a - b).abs().max() / a.abs().max())


def tensors_in(place: Path) -> dict[str, Tensor]:
    """Read the tensors of a folder or file, by name."""
    if place.is_dir():
        return load_file(place / "model.safetensors")
    loaded: dict[str, Tensor] = torch.load(place, weights_only=True)
    return loaded


def measure(
    theirs: nn.Module, read: Read, source: Path, family: str, load: Callable[[Path], nn.Module], side: int
) -> Any:
    """Return the difference after import, that after export, and whether every tensor came back with the same bits."""
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))
    back = source.with_name("back" + source.suffix)
    with torch.inference_mode():
        wanted = read(theirs(images))
        ours, _ = open_checkpoint(source, OpenOptions())
        imported = apart(wanted, ours(images))
        del ours  # the largest models need the memory
        own = source.with_name("own.safetensors")
        convert(source, own, "vitreous")
        convert(own, back, family)  # type: ignore[arg-type]
        exported = apart(wanted, read(load(back).eval()(images)))
    before, after = tensors_in(source), tensors_in(back)
    same = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    return imported, exported, same


def from_timm(entry: str, folder: Path, **arguments: Any) -> Any:
    """Write a timm model as timm does for the hub."""
    model = randomise(timm.create_model(entry, **arguments))
    save_for_hf(model, folder / "in", model_args=arguments or None, safe_serialization=True)
    return measure(
        model,
        lambda output: output,
        folder / "in",
        "timm",
        lambda place: timm.create_model(f"local-dir:{place}", pretrained=True),
        model.patch_embed.img_size[0],
    )


def from_torchvision(entry: str, folder: Path) -> Any:
    """Write a torchvision state dict."""
    build = getattr(torchvision.models, entry)
    model = randomise(build())
    torch.save(model.state_dict(), folder / "in.pth")

    def load(place: Path) -> nn.Module:
        again: nn.Module = build()
        again.load_state_dict(tensors_in(place))
        return again

    return measure(model, lambda output: output, folder / "in.pth", "torchvision", load, 224)


def from_huggingface(kind: str, read: Read, folder: Path, config: Any, **arguments: Any) -> Any:
    """Write a transformers folder."""
    build = getattr(transformers, kind)
    model = randomise(build(config, **arguments))
    model.save_pretrained(folder / "in")
    return measure(
        model,
        read,
        folder / "in",
        "huggingface",
        lambda place: build.from_pretrained(place, **arguments),
        config.image_size,
    )


def cases(full: bool) -> dict[str, Callable[[Path], Any]]:
    """Map the name of a model to the function that measures it in a folder."""
    vit, dino = transformers.ViTConfig, transformers.Dinov2Config
    small = {"hidden_size": 384, "num_attention_heads": 6, "image_size": 224, "patch_size": 14}
    found: dict[str, Callable[[Path], Any]] = {}
    entries = [
        "vit_tiny_patch16_224",
        "vit_small_patch16_224",
        "vit_base_patch32_224",
        "vit_small_patch14_dinov2",
        "vit_small_patch14_reg4_dinov2",
        "vit_base_patch16_siglip_224",
        "deit3_small_patch16_224",
        "vit_small_r26_s32_224",
        "vit_base_r50_s16_224",
    ] + ["vit_large_patch16_384", "vit_large_r50_s32_384", "vit_huge_patch14_224"] * full
    for entry in entries:
        size = {"img_size": 224} if "dinov2" in entry else {}  # the published 518 px take minutes
        found[f"timm {entry}"] = lambda folder, entry=entry, size=size: from_timm(entry, folder, **size)
    for entry in ["vit_b_16", "vit_b_32", "vit_l_16"] + ["vit_l_32", "vit_h_14"] * full:
        found[f"torchvision {entry}"] = lambda folder, entry=entry: from_torchvision(entry, folder)
    found["Hugging Face ViTForImageClassification, base"] = lambda folder: from_huggingface(
        "ViTForImageClassification", lambda output: output.logits, folder, vit(num_labels=1000)
    )
    found["Hugging Face ViTModel, base, pooler"] = lambda folder: from_huggingface(
        "ViTModel", lambda output: output.pooler_output, folder, vit()
    )
    found["Hugging Face ViTModel, base, no pooler"] = lambda folder: from_huggingface(
        "ViTModel", lambda output: output.last_hidden_state[:, 0], folder, vit(), add_pooling_layer=False
    )
    found["Hugging Face Dinov2Model, small"] = lambda folder: from_huggingface(
        "Dinov2Model", lambda output: output.pooler_output, folder, dino(**small)
    )
    found["Hugging Face Dinov2WithRegistersModel, small"] = lambda folder: from_huggingface(
        "Dinov2WithRegistersModel",
        lambda output: output.pooler_output,
        folder,
        transformers.Dinov2WithRegistersConfig(**small),
    )
    return found


def main() -> int:
    """Measure every model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the large models too: up to 8 GB of memory, half an hour")
    parser.add_argument("--only", default="", metavar="TEXT", help="only models whose name contains this")
    options = parser.parse_args()
    packages = ("torch", "timm", "torchvision", "transformers")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages) + "; float32 on the CPU\n")
    print("| model | after import | after export | back to the last bit |")
    print("|---|---|---|---|")
    failed = False
    for name, run in cases(options.full).items():
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            imported, exported, same = run(Path(folder))
        failed |= not (same and max(imported, exported) <= BOUND)
        print(f"| {name} | {imported:.1e} | {exported:.1e} | {'yes' if same else 'NO'} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
