"""Which of timm's and transformers' Vision Transformers open, compute the same, and are written back bit for bit.

    pip install -e '.[dev]'
    python benchmarks/coverage.py [--only TEXT ...] [--small] [--depth 2] [--largest 350] [--markdown FILE]

Walks the lists of models of timm and transformers by name pattern. Every tensor is random. For each
entry its library builds the model and writes it as files; this package opens them, and both compute the same noise,
also at another size and aspect ratio where the library's model takes one. The model is written back, and each tensor
is compared with the original; the library then loads what was written and computes once more.

An entry is `read` (outputs within 1e-5 of the largest value, all tensors bit-equal), `read only` (equal outputs, but
not all tensors are written back), `refused` with the reason, or `WRONG`. By default all models have two blocks, so
that L, H and g sizes fit; --depth 0 keeps each model's own. Models of more than --largest million parameters are then
skipped. Prints a line for each entry, the refusals by reason, and totals, also for the entries of up to 120 M
parameters; exits 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import gc
import importlib.metadata
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the hub client is imported

import timm
import torch
import transformers
from safetensors.torch import load_file
from timm.models import save_for_hf
from torch import Tensor, nn
from torch.nn import functional

from vitreous.checkpoint.conversion.witness import reference_outputs, run_huggingface
from vitreous.checkpoint.conversion.writing import adopted, export, write_files
from vitreous.checkpoint.opening import OpenedCheckpoint, OpenOptions, open_with_details
from vitreous.errors import CheckpointError
from vitreous.model.config import pair

BOUND = 1e-5
TIMM = ("vit_*", "deit*", "flexivit*", "eva*", "beit*", "cait*", "samvit*", "naflexvit*", "test_vit*")
SMALL = 120e6  # parameters: the entries that the totals count apart
HUGGING_FACE = (
    *("ViTForImageClassification", "ViTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
    *("DeiTModel", "Dinov2Model", "Dinov2ForImageClassification", "Dinov2WithRegistersModel"),
    *(
        "Dinov2WithRegistersForImageClassification",
        "DINOv3ViTModel",
        "SiglipVisionModel",
        "SiglipForImageClassification",
    ),
    *("Siglip2VisionModel", "Siglip2ForImageClassification", "CLIPVisionModel", "CLIPVisionModelWithProjection"),
    *("CLIPForImageClassification", "BeitModel", "BeitForImageClassification", "Data2VecVisionModel", "ViTMAEModel"),
    *("ViTMAEForPreTraining", "ViTMSNModel", "ViTMSNForImageClassification", "IJepaModel"),
    *("IJepaForImageClassification", "YolosModel", "SwinModel", "PvtModel"),
)


OTHERS = ("*ViT*Model", "*Vit*Model", "*VisionModel", "*VisionModelWithProjection", "*ForImageClassification")
"""Patterns of further classes of transformers, so that new releases show new gaps."""


@dataclass(frozen=True)
class Row:
    """What became of one entry; ``verdict`` is `read`, `read only`, `refused`, `WRONG` or `skipped`."""

    entry: str
    verdict: str
    parameters: float
    difference: float = 0.0  # largest, relative to the largest output
    sizes: int = 1  # sizes of images that were compared
    back: str = ""  # of the way back: `bit-equal`, or what it lacks
    reason: str = ""


def randomise(model: nn.Module) -> nn.Module:
    """Randomise every tensor: norms around 1, matrices by fan-in, biases and tokens too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim == 1 and name.endswith("weight"):
                tensor.copy_(1 + 0.2 * noise)
            elif re.search(r"(gamma|gamma_[12]|lambda_?[12])$", name):
                tensor.copy_(0.5 + 0.2 * noise)
            elif name.endswith("rope.freqs") or ".rope_embeddings." in name:
                tensor.mul_(1 + 0.1 * noise)
            elif name.endswith(("running_var", "input_std")):
                tensor.copy_(1 + noise.abs())
            elif tensor.ndim == 4 or (tensor.ndim == 2 and name.endswith("weight")):
                tensor.copy_(noise / tensor[0].numel() ** 0.5)
            else:
                tensor.copy_(0.3 * noise)
    return model.eval()


def apart(a: Tensor, b: Tensor) -> float:
    """Return the largest difference relative to the largest value of the first."""
    return float((a - b).abs().max() / a.abs().max()) if a.shape == b.shape else float("inf")


def other_sizes(size: tuple[int, int], patch: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield a smaller square and a rectangle of whole patches."""
    rows, columns = max(2, size[0] // patch[0]), max(2, size[1] // patch[1])
    yield (rows - 1) * patch[0], (columns - 1) * patch[1]
    yield max(1, rows - 3) * patch[0], (columns + 2) * patch[1]


def images(size: tuple[int, int], channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, channels, *size, generator=generator)


def check(
    entry: str, parameters: float, folder: Path, theirs: Callable[[Tensor], Tensor],
    dynamic: Callable[[Tensor], Tensor] | None, family: str,
) -> Row:  # fmt: skip
    """Open the files that a library wrote, compare outputs, write them back, and compare tensors."""
    try:
        opened = open_with_details(folder, OpenOptions())
    except CheckpointError as error:
        return Row(entry, "refused", parameters, reason=re.sub(r"^'[^']*' ?:? ?", "", str(error)))
    config = opened.model.config
    size, patch = pair(config.image_size), pair(config.patch_size)
    with torch.inference_mode():
        batch = images(size, config.in_channels)
        expected = theirs(batch)
        worst, sizes = apart(expected, opened.model(batch)), 1
        for other in other_sizes(size, patch) if dynamic else ():
            batch = images(other, config.in_channels)
            far = apart(dynamic(batch), opened.model(batch))
            worst, sizes = (far if not far <= worst else worst), sizes + 1
    back = way_back(opened, folder, family)
    if not worst <= BOUND or back.startswith("the library computes"):  # NaN is wrong too
        return Row(entry, "WRONG", parameters, worst, sizes, back)
    return Row(entry, "read" if back == "bit-equal" else "read only", parameters, worst, sizes, back)


def way_back(opened: OpenedCheckpoint, folder: Path, family: str) -> str:
    """Write a model back; return `bit-equal`, or what is wrong with the result."""
    used, notes = adopted(opened, family)
    if notes:
        return notes[0]
    try:
        with tempfile.TemporaryDirectory() as out:
            write_files(export(used, family), Path(out) / "model.safetensors")
            before, after = (load_file(Path(place) / "model.safetensors") for place in (folder, out))
            if names := sorted(before.keys() ^ after.keys()):
                return f"tensors missing or added: {', '.join(names[:3])}"
            if differ := [name for name in before if not torch.equal(before[name], after[name])]:
                return f"not bit-equal: {', '.join(differ[:3])}"
            batch = images(pair(used.model.config.image_size), used.model.config.in_channels)
            witness = reference_outputs(family, Path(out) / "model.safetensors", used.model.config, batch)
            with torch.inference_mode():
                far = apart(witness[1], used.model(batch)) if witness else 0.0
            return "bit-equal" if far <= BOUND else f"the library computes something else from it ({far:.1e})"
    except CheckpointError as error:
        return str(error)


def timm_rows(wanted: Callable[[str], bool], depth: int, largest: float, small: bool) -> Iterator[Row]:
    """Yield the row of each of timm's entries."""
    for entry in sorted({name for pattern in TIMM for name in timm.list_models(pattern)}):
        if not wanted(entry):
            continue
        with torch.device("meta"):
            parameters = sum(p.numel() for p in timm.create_model(entry).parameters())
        if small and parameters > SMALL:
            continue
        changes: dict[str, Any] = {"depth": depth} if depth and not entry.startswith(("cait", "samvit")) else {}
        try:
            yield timm_row(entry, parameters, changes, largest)
        except Exception as error:
            yield Row(entry, "WRONG", parameters, reason=f"{type(error).__name__}: {error}".splitlines()[0])
        gc.collect()


def timm_row(entry: str, parameters: float, changes: dict[str, Any], largest: float) -> Row:
    """Return the row of one of timm's entries."""
    try:
        with torch.device("meta"):
            reduced = sum(p.numel() for p in timm.create_model(entry, **changes).parameters())
    except (TypeError, AssertionError):  # some entries fix their depth
        changes, reduced = {}, parameters
    if reduced > largest:
        return Row(entry, "skipped", parameters, reason=f"{reduced / 1e6:.0f} M parameters")
    model = randomise(timm.create_model(entry, **changes))
    dynamic = None
    try:
        dynamic = timm.create_model(entry, **changes, dynamic_img_size=True).eval()
        dynamic.load_state_dict(model.state_dict())
    except (TypeError, RuntimeError):
        dynamic = model if entry.startswith("naflexvit") else None
    with tempfile.TemporaryDirectory() as folder:
        save_for_hf(model, folder, model_args=changes or None, safe_serialization=True)
        return check(entry, parameters, Path(folder), lambda batch: model(whole(batch, model)), dynamic, "timm")


def whole(batch: Tensor, model: nn.Module) -> Tensor:
    """Add what a model of timm takes and leaves out: the pixels behind the last whole patch."""
    height, width = getattr(model.patch_embed, "img_size", None) or batch.shape[2:]
    return functional.pad(batch, (0, width - batch.shape[3], 0, height - batch.shape[2]), value=1.0)


def hugging_face_rows(wanted: Callable[[str], bool], largest: float) -> Iterator[Row]:
    """Yield the row of each encoder of transformers, then of further classes that their names say are for images."""
    for name in (*HUGGING_FACE, *further_classes()):
        if not wanted(name):
            continue
        if not hasattr(transformers, name):
            yield Row(name, "skipped", 0, reason=f"transformers {transformers.__version__} does not have it")
            continue
        try:
            yield hugging_face_row(name, largest)
        except Exception as error:
            verdict = "WRONG" if name in HUGGING_FACE else "skipped"
            yield Row(name, verdict, 0, reason=f"{type(error).__name__}: {error}".splitlines()[0])


def further_classes() -> Iterator[str]:
    """Yield names of classes of transformers that are not in the list, and whose configuration has blocks."""
    for name in sorted(dir(transformers)):
        if name in HUGGING_FACE or not any(fnmatch.fnmatchcase(name, pattern) for pattern in OTHERS):
            continue
        kind = getattr(transformers, name)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel) and kind.config_class is not None:
            yield name


def hugging_face_row(name: str, largest: float) -> Row:
    """Return the row of one encoder with its default sizes and two blocks."""
    kind = getattr(transformers, name)
    arguments: dict[str, Any] = {"num_hidden_layers": 2}
    if "MAE" in name:  # which drops most patches otherwise
        arguments |= {"mask_ratio": 0.0, "decoder_num_hidden_layers": 1}
    if hasattr(kind.config_class(), "vision_config"):
        arguments = {"vision_config": arguments}
    if name.endswith("Classification") or "Teacher" in name:
        arguments["num_labels"] = 7
    with torch.device("meta"):
        parameters = sum(p.numel() for p in kind(kind.config_class(**arguments)).parameters())
    if parameters > largest:
        return Row(name, "skipped", parameters, reason=f"{parameters / 1e6:.0f} M parameters")
    model = randomise(kind(kind.config_class(**arguments)))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)

        def theirs(batch: Tensor) -> Tensor:
            return run_huggingface(model.vit if name == "ViTMAEForPreTraining" else model, batch)

        return check(name, parameters, Path(folder), theirs, theirs if _takes_sizes(name) else None, "huggingface")


def _takes_sizes(name: str) -> bool:
    """Return whether the model takes images of other sizes."""
    return name not in ("SwinModel", "CLIPForImageClassification")


def show(rows: list[Row]) -> None:
    """Print refusals by reason, and totals."""
    reasons = collections.Counter(re.sub(r"\d+", "#", row.reason)[:110] for row in rows if row.verdict == "refused")
    print()
    for reason, count in reasons.most_common():
        print(f"{count:4}  {reason}")
    print()
    for title, chosen in (
        ("timm, all entries", [row for row in rows if row.entry.islower()]),
        ("timm, up to 120 M parameters", [row for row in rows if row.entry.islower() and row.parameters <= SMALL]),
        ("transformers", [row for row in rows if row.entry in HUGGING_FACE]),
        ("transformers, others", [row for row in rows if not row.entry.islower() and row.entry not in HUGGING_FACE]),
    ):
        verdicts = collections.Counter(row.verdict for row in chosen)
        counts = ", ".join(
            f"{verdicts[verdict]} {verdict}" for verdict in ("read", "read only", "refused", "WRONG", "skipped")
        )
        print(f"{title}: {len(chosen)}: {counts}")


def markdown(rows: list[Row]) -> str:
    """Return the table of the documentation."""
    lines = ["| entry | M parameters | verdict | largest difference | sizes | why not |", "|---|---|---|---|---|---|"]
    for row in rows:
        far = f"{row.difference:.1e}" if row.sizes and not row.reason else ""
        why = row.reason or (row.back if row.back != "bit-equal" else "")
        lines.append(
            f"| {row.entry} | {row.parameters / 1e6:.0f} | {row.verdict} | {far} | {row.sizes if far else ''} | {why} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="What opens, computes the same and is written back.")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="TEXT", help="entries whose name contains one of these"
    )
    parser.add_argument("--depth", type=int, default=2, help="blocks of each model; 0 keeps its own (default 2)")
    parser.add_argument("--largest", type=float, default=350, help="million parameters built at most (default 350)")
    parser.add_argument("--small", action="store_true", help="only timm's entries of up to 120 M parameters")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    packages = ("timm", "transformers", "torch")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages), flush=True)

    def wanted(entry: str) -> bool:
        return not arguments.only or any(text in entry for text in arguments.only)

    rows: list[Row] = []
    of_timm = timm_rows(wanted, arguments.depth, arguments.largest * 1e6, arguments.small)
    for make in (hugging_face_rows(wanted, arguments.largest * 1e6), of_timm):
        for row in make:
            rows.append(row)
            detail = row.reason or f"{row.difference:.1e} at {row.sizes} sizes; back: {row.back}"
            print(f"{row.verdict:9} {row.entry:48} {row.parameters / 1e6:7.1f} M  {detail[:200]}", flush=True)
    show(rows)
    if arguments.markdown:
        arguments.markdown.write_text(markdown(rows), encoding="utf-8")
    return 1 if any(row.verdict == "WRONG" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
