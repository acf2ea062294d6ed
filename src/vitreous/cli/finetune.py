"""`vitreous finetune`: from a trained model and labelled pictures to a model for these."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from vitreous.cli.opening import size_in_pixels
from vitreous.cli.parsing import Parser
from vitreous.cli.train import add_looks, carry_out, given_fields, overlaid, split_words
from vitreous.data.config import DataConfig
from vitreous.errors import UsageError
from vitreous.recipes import recipe, recipe_for
from vitreous.recipes.finetune import finetune
from vitreous.train.config import RunConfig, TuneConfig

__all__ = ["configure", "run"]

_SHORT = {
    "--from": "--tune.source",
    "--tune": "--tune.mode",
    "--no-probe": "--tune.probe=false",
    "--no_probe": "--tune.probe=false",
    "--resample": "--model.resample",
    "--data-dir": "--data.dir",
    "--data_dir": "--data.dir",
    "--strict": "--data.strict",
    "--exclude": "--data.exclude",
}
_PROTOCOLS = {"modern": "finetune", "paper": "paper-finetune"}

_HELP = """\
Fine-tune a trained model on labelled pictures. It gets a new head, which starts at zero, with the data's classes; it \
keeps its structure and its evaluation pipeline. Before it trains, it says what the frozen features are worth by k \
nearest neighbours and a linear probe; after it, whether fine-tuning did better, and if not, why that may be.

examples:
  vitreous finetune flowers/ --from runs/photos-1
      a model of one's own, on other classes
  vitreous finetune flowers/ --from timm/vit_small_patch16_224.augreg_in21k --image-size 384
      a published one, by its hub id, at a higher resolution: position embeddings are resampled
  vitreous finetune flowers/ --from B_16.npz --tune last-2
      train the last two blocks and the head
  vitreous finetune cifar10 --from B_16.npz --protocol paper --image-size 384 --steps 10000
      as arXiv 2010.11929, table 4
  vitreous finetune rare/ --from runs/photos-1 --class-weights effective
      classes of unlike size

common options:
  --from SOURCE               a model.safetensors, a run folder, or any family's file, folder or hub id
  --tune PART                 full, last-K (such as last-2), linear (the head alone), or lora
  --protocol NAME             modern (AdamW, layer-wise rates, drop path), or paper (SGD, no decay, dropout 0)
  --image-size N              see pictures at 384, or 480x640, pixels
  --resample FAMILY           whose function resizes position embeddings (--model.resample)
  --no-probe                  train at once
  --epochs N   --steps N   --budget 25m   how long
  --data-dir FOLDER           where known sets are (--data.dir)
  --exclude FILE              leave out the pictures it lists, one a line (--data.exclude)
  --out FOLDER                where to write, instead of runs/NAME-1
  --resume                    go on where the same command stopped, or begin where there is nothing to go on from
"""


def run(argv: Sequence[str]) -> int:
    """Run the verb; 130 if Ctrl-C ended the training, 143 if SIGTERM did."""
    return carry_out(argv, configure)


def configure(argv: Sequence[str]) -> tuple[RunConfig, frozenset[str], Mapping[str, Any]]:
    """Resolve the words of the command: protocol, then --config, then every other option.

    Returns:
        As :func:`vitreous.cli.train.configure`.

    Raises:
        UsageError: If a word cannot be meant.
    """
    parser = _parser()
    files, words = split_words(argv, _SHORT)
    stored = parser.parse_args(files, defaults=False).as_dict() if files else {}
    typed = parser.parse_args(words, defaults=False).as_dict()
    for fields in (typed, stored):
        if fields.get("source"):
            fields.setdefault("data", {})["source"] = fields["source"]
    if typed.get("image_size"):
        typed.setdefault("model", {})["image_size"] = size_in_pixels("--image-size", typed["image_size"])
    name = typed.get("recipe") or _PROTOCOLS.get(str(typed.get("protocol"))) or stored.get("recipe") or "finetune"
    wanted: dict[str, Any] = {**stored.get("tune", {}), **typed.get("tune", {})}
    if "source" not in {**stored.get("data", {}), **typed.get("data", {})}:
        raise UsageError("DATA is missing: `vitreous finetune FOLDER --from MODEL`")
    if not wanted.get("source"):
        raise UsageError("--from is missing: a model.safetensors, a run folder, or any family's file, folder or hub id")
    mode = TuneConfig(**wanted).mode
    config = finetune(mode) if name == "finetune" else recipe(name)
    source = typed.get("data", {}).get("source") or stored["data"]["source"]
    flip = recipe(recipe_for(source)).augment.flip  # a mirrored digit is another one
    config = dataclasses.replace(config, augment=dataclasses.replace(config.augment, flip=flip))
    # The source's structure is not known yet: with one head and patches of a pixel, whatever is asked for can be meant.
    model = dataclasses.replace(config.model, patch_size=1, heads=1)
    config = dataclasses.replace(config, data=DataConfig(), model=model)
    config = overlaid(overlaid(config, stored), typed)
    anew = "source" in typed.get("data", {}) or "source" in typed.get("tune", {})
    given = given_fields([typed] if anew else [typed, stored])
    return dataclasses.replace(config, recipe=name), given, typed


def _parser() -> Parser:
    parser = Parser("finetune", "DATA --from SOURCE [options]", _HELP)
    add = parser.add_argument
    add("source", type=str, nargs="?", metavar="DATA", help="a folder, a manifest, or a known set such as cifar10")
    add("--protocol", type=Literal["modern", "paper"] | None, help="modern or paper: the settings to begin with")
    add("--image-size", type=str | None, metavar="N", help="height and width in pixels, such as 384 or 480x640")
    add("--config", action="config", help="a YAML file of options, such as the recipe.yaml of a run")
    add_looks(parser)
    parser.add_class_arguments(RunConfig)
    return parser
