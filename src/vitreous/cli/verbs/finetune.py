"""`vitreous finetune`: from a trained model and labelled pictures to a model for these."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from vitreous.cli.options.conflicts import one_length, refuse_idle
from vitreous.cli.options.model import size_in_pixels
from vitreous.cli.options.parser import Parser
from vitreous.cli.verbs.train import (
    add_looks,
    asks_help,
    carry_out,
    explain_defaults,
    given_fields,
    overlaid,
    parsed,
    split_words,
    without_help,
)
from vitreous.data.config import DataConfig, PreprocessConfig
from vitreous.errors import UsageError, VitreousError
from vitreous.model.config import ViTConfig
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
_FREE = ("zero_head", "dropout", "attention_dropout", "proj_dropout", "drop_path", "patch_dropout")
_OF_SOURCE = (  # fields whose defaults are the source's
    *(f"model.{field.name}" for field in dataclasses.fields(ViTConfig) if field.name not in _FREE),
    *(f"preprocess.{field.name}" for field in dataclasses.fields(PreprocessConfig)),
)

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
        As :func:`vitreous.cli.verbs.train.configure`.

    Raises:
        UsageError: If a word cannot be meant.
    """
    parser = _parser()
    files, words = split_words(argv, _SHORT)
    if asks_help(words):
        explain_defaults(parser, *_defaults(files, words, parser))
    typed, stored = parsed(parser, files, words)
    _refuse_contradictions(typed)
    if typed.get("image_size"):
        typed.setdefault("model", {})["image_size"] = size_in_pixels("--image-size", typed["image_size"])
    wanted: dict[str, Any] = {**stored.get("tune", {}), **typed.get("tune", {})}
    source = typed.get("data", {}).get("source") or stored.get("data", {}).get("source")
    if source is None:
        raise UsageError("DATA is missing: `vitreous finetune FOLDER --from MODEL`")
    if not wanted.get("source"):
        raise UsageError("--from is missing: a model.safetensors, a run folder, or any family's file, folder or hub id")
    name, config = _begin(typed, stored, source)
    # The source's structure is not known yet: with one head and patches of a pixel, whatever is asked for can be meant.
    model = dataclasses.replace(config.model, patch_size=1, heads=1)
    before = overlaid(dataclasses.replace(config, data=DataConfig(), model=model), stored)
    typed = one_length(typed)
    config = overlaid(before, typed)
    refuse_idle(typed, config, before)
    anew = "source" in typed.get("data", {}) or "source" in typed.get("tune", {})
    given = given_fields([typed] if anew else [typed, stored])
    return dataclasses.replace(config, recipe=name), given, typed


def _begin(typed: Mapping[str, Any], stored: Mapping[str, Any], source: str | None) -> tuple[str, RunConfig]:
    """The recipe's name and its configuration, for the part of the weights that is trained."""
    name = typed.get("recipe") or _PROTOCOLS.get(str(typed.get("protocol"))) or stored.get("recipe") or "finetune"
    mode = TuneConfig(**{"source": "", **stored.get("tune", {}), **typed.get("tune", {})}).mode
    config = finetune(mode) if name == "finetune" else recipe(name)
    if source is not None:
        flip = recipe(recipe_for(source)).augment.flip  # a mirrored digit is another one
        config = dataclasses.replace(config, augment=dataclasses.replace(config.augment, flip=flip))
    return name, config


def _defaults(
    files: Sequence[str], words: Sequence[str], parser: Parser
) -> tuple[RunConfig | None, str, Sequence[str]]:
    """What holds where an option is not typed, what decides that, and fields that the data or the source decides."""
    try:
        typed, stored = parsed(parser, files, without_help(words))
        source = typed.get("data", {}).get("source") or stored.get("data", {}).get("source")
        name, config = _begin(typed, stored, source)
        config = dataclasses.replace(config, data=dataclasses.replace(DataConfig(), source=source or ""), recipe=name)
        config = overlaid(config, {key: value for key, value in stored.items() if key != "recipe"})
    except VitreousError:  # help is not the place to complain
        return None, "The defaults are those of --protocol.", ()
    tuned = typed.get("tune", {}).get("mode", "full")
    hidden = _OF_SOURCE if source is not None else (*_OF_SOURCE, "augment.flip", "data.source")
    how = (
        f"Defaults in [brackets] are those of the recipe {name} with --tune {tuned}; a model's structure and its "
        "evaluation pipeline are the source's."
    )
    return config, how, hidden


def _refuse_contradictions(typed: Mapping[str, Any]) -> None:
    """Refuse options of this verb that say two things.

    Raises:
        UsageError: Which they are.
    """
    for one, other in (("protocol", typed.get("recipe")), ("image_size", typed.get("model", {}).get("image_size"))):
        if typed.get(one) and other is not None:
            also = "--recipe" if one == "protocol" else "--model.image_size"
            raise UsageError(f"--{one.replace('_', '-')} and {also} set the same thing: give one of them")


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
