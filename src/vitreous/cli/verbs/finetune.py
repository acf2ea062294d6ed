"""`vitreous finetune`: train a classifier on labelled images, starting from a trained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from vitreous.cli.options.config_files import split_config_files
from vitreous.cli.options.conflicts import reject_idle_options, resolve_length
from vitreous.cli.options.help import VerbHelp, print_help, split_help
from vitreous.cli.options.model import parse_image_size
from vitreous.cli.options.model_parts import add_model_options
from vitreous.cli.options.outputs import add_preview_options
from vitreous.cli.options.parser import Parser
from vitreous.cli.verbs.train import (
    data_source,
    effective_defaults,
    explicit_fields,
    overlay,
    parse,
    run_training,
)
from vitreous.data.config import DataConfig
from vitreous.errors import UsageError, VitreousError
from vitreous.recipes import recipe, recipe_for

if TYPE_CHECKING:
    from vitreous.model.config import ViTConfig
    from vitreous.train.config import RunConfig

__all__ = ["configure", "placeholder_model", "run"]

_SHORT = {
    "--from": "--tune.source",
    "--tune": "--tune.mode",
    "--teacher": "--distil.teacher",
    "--aux": "--aux.method",
    "--unlabelled": "--aux.unlabelled",
    "--no-probe": "--tune.probe=false",
    "--no_probe": "--tune.probe=false",
    "--resample": "--model.position.resample",
    "--data-dir": "--data.dir",
    "--cache-size": "--data.cache_gb",
    "--cache_size": "--data.cache_gb",
    "--data_dir": "--data.dir",
    "--strict": "--data.strict",
    "--exclude": "--data.exclude",
}
_NO_DATA = "DATA is missing: `vitreous finetune FOLDER`, or `vitreous finetune FOLDER --from MODEL`"
_PROTOCOLS = {"modern": "finetune", "paper": "paper-finetune"}
_OWN_MODEL_FIELDS = (
    *("model.dropout", "model.patch_dropout", "model.attention.dropout", "model.attention.proj_dropout"),
    *("model.block.drop_path", "model.head.zero"),
)

_HELP = VerbHelp(
    "finetune",
    "DATA [--from SOURCE] [options]",
    """\
Fine-tune a trained model on labelled images. The model keeps its structure and its evaluation pipeline, and gets a \
new head for the classes of the data.

Cheap methods come first: features of the frozen model are computed once and kept, and a linear head and an attentive \
probe are fitted to them. If the time, the memory and the number of images allow it, the last blocks, adapters or all \
weights are then trained from the best head, and averaged with their start. The best on the validation split is saved, \
and the report lists every stage, or why it was skipped. With --tune, one method runs alone, from a head of zeros, and \
the frozen features are scored before it.

Without --from, a row of `vitreous models --pretrained` is chosen for this machine, the budget and the images, named \
with its reason and licence, and downloaded once.

examples:
  vitreous finetune flowers/
      the pretrained model that suits this machine and these images
  vitreous finetune flowers/ --from dinov2-s
      a model by its short name in `vitreous models --pretrained`
  vitreous finetune flowers/ --from runs/photos-1 --budget 5m
      your own model, on other classes: the best that five minutes allow
  vitreous finetune flowers/ --from timm/vit_small_patch16_224.augreg_in21k --image-size 384
      a published model by its hub id, at a higher resolution: position embeddings are resampled
  vitreous finetune flowers/ --from B_16.npz --tune last-2
      train only the last two blocks and the head
  vitreous finetune cifar10 --from B_16.npz --protocol paper --image-size 384 --steps 10000
      the protocol of arXiv 2010.11929, table 4
  vitreous finetune rare/ --from runs/photos-1 --class-weights effective
      imbalanced classes

common options:
  --from SOURCE               a model.safetensors, a run directory, a file, folder or hub id of any family, or a short
                              name of `vitreous models --pretrained`; without it, one of those is chosen
  --tune PART                 one method alone: full, last-K (such as last-2), linear (the head alone), or lora; by
                              default auto, the stages
  --protocol NAME             modern (AdamW, layer-wise learning rates, drop path) or paper (SGD, no decay, dropout 0)
  --image-size N              resize images to 384, or 480x640, pixels
  --resample FAMILY           resample position embeddings as this family does (--model.position.resample)
  --no-probe                  do not score the frozen features first: train all weights, or those of --tune, at once
  --teacher MODEL             learn from a larger trained model too (--distil.teacher)
  --epochs N   --steps N   --budget 25m   how long to train
  --data-dir FOLDER           folder of the known datasets (--data.dir)
  --exclude FILE              skip the images listed, one per line (--data.exclude)
  --out FOLDER                run directory, instead of runs/NAME-1
  --resume                    resume the run that the same command started, or start it
  --on ray://ADDRESS          run on a Ray cluster (docs/how-to/cluster.md)""",
)


def run(argv: Sequence[str]) -> int:
    """Run the verb; exit code 130 after Ctrl-C, 143 after SIGTERM."""
    topic, words = split_help(argv)
    if topic is not None:
        return print_help(topic, _HELP, lambda: _parser_with_defaults(words))
    return run_training("finetune", argv, configure)


def configure(argv: Sequence[str]) -> tuple[RunConfig, frozenset[str], Mapping[str, Any]]:
    """Resolve the arguments in this order: protocol, --config, every other option.

    Returns:
        As :func:`vitreous.cli.verbs.train.configure`.

    Raises:
        UsageError: If an option is unknown, or its value does not fit.
    """
    if not argv:
        raise UsageError(_NO_DATA)
    typed, stored = parse(_parser(), *split_config_files(argv, _SHORT))
    _reject_contradictions(typed)
    if typed.get("image_size"):
        typed.setdefault("model", {})["image_size"] = parse_image_size("--image-size", typed["image_size"])
    data = data_source(typed, stored)
    if data is None:
        raise UsageError(_NO_DATA)
    if not {**stored.get("tune", {}), **typed.get("tune", {})}.get("source"):
        from vitreous.train.config import AUTO

        typed.setdefault("tune", {})["source"] = AUTO
    if (mode := _mode(typed, stored)) is not None:
        typed.setdefault("tune", {}).setdefault("mode", mode)
    name, config = _base_config(typed, stored, data)
    placeholder = dataclasses.replace(config, data=DataConfig(), model=placeholder_model(config.model))
    _reject_parts_of_source(stored, placeholder.model)
    before = overlay(placeholder, stored)
    _reject_parts_of_source(typed, before.model)
    typed = resolve_length(typed)
    config = overlay(before, typed)
    reject_idle_options(typed, config, before)
    is_new_task = "source" in typed.get("data", {}) or "source" in typed.get("tune", {})
    explicit = explicit_fields([typed] if is_new_task else [typed, stored])
    return dataclasses.replace(config, recipe=name), explicit, typed


def _recipe_name(typed: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    protocol = _PROTOCOLS.get(str(typed.get("protocol")))
    return str(typed.get("recipe") or protocol or stored.get("recipe") or "finetune")


def _mode(typed: Mapping[str, Any], stored: Mapping[str, Any]) -> str | None:
    """Return `auto` if no option says what to train, and the recipe is the one for any images.

    Without the probe, no head is wanted before the training.
    """
    tune = {**stored.get("tune", {}), **typed.get("tune", {})}
    is_open = "mode" not in tune and tune.get("probe", True)
    return "auto" if is_open and _recipe_name(typed, stored) == "finetune" else None


def _base_config(typed: Mapping[str, Any], stored: Mapping[str, Any], data: str | None) -> tuple[str, RunConfig]:
    """Return the recipe's name and its configuration for the weights that are trained."""
    from vitreous.recipes.finetune import finetune
    from vitreous.train.config import TuneConfig

    name = _recipe_name(typed, stored)
    mode = TuneConfig(**{"source": "", **stored.get("tune", {}), **typed.get("tune", {})}).mode
    config = finetune(mode) if name == "finetune" else recipe(name)
    if data is not None:
        flip = recipe(recipe_for(data)).augment.flip  # mirroring would change the class of a digit
        config = dataclasses.replace(config, augment=dataclasses.replace(config.augment, flip=flip))
    return name, config


def placeholder_model(model: ViTConfig) -> ViTConfig:
    """Return a recipe's model with a structure that any option may be set on: that of the source is not known yet.

    One head and patches of one pixel accept every image size and width; learned positions have every option of
    positions that fine-tuning may set.
    """
    from vitreous.model.positions import Learned
    from vitreous.model.stems import PatchStem

    return dataclasses.replace(model, patch_size=1, heads=1, stem=PatchStem(), position=Learned())


def _reject_parts_of_source(fields: Mapping[str, Any], model: ViTConfig) -> None:
    """Refuse options of a part that ``model``, a placeholder for the source, cannot have.

    The source keeps its parts, so that such an option has no effect at best. The head is not the source's.

    Raises:
        UsageError: If another kind of a part has an option, or another stem is given without the size of its patches.
    """
    from vitreous.model.config import PARTS
    from vitreous.model.part import option_types

    chosen = fields.get("model", {})
    for part in (name for name in chosen if name in PARTS and name != "head"):
        options, present = chosen[part], getattr(model, part)
        elsewhere = {option for kind in PARTS[part] for option in option_types(kind)} - {*option_types(type(present))}
        refused = [option for option in options if option in elsewhere and "kind" not in options]
        if part == "stem" and options.get("kind", present.kind) != present.kind and "patch_size" not in chosen:
            refused = list(options)
        if refused:
            names = " and ".join(f"--model.{part}.{option}".removesuffix(".kind") for option in refused)
            in_training = part == "position" and {*refused} <= {"shift", "jitter", "rescale"}
            rotary = ", or say that it rotates with --model.position rope-2d" * in_training
            raise UsageError(f"fine-tuning keeps the source's {part}: omit {names}{rotary}")


def _parser_with_defaults(words: Sequence[str]) -> tuple[Parser, str]:
    """Return a parser whose help shows the defaults that apply to the other arguments, and a sentence on them."""
    parser = _parser()
    try:
        typed, stored = parse(parser, *split_config_files(words, _SHORT))
        data = data_source(typed, stored)
        name, config = _base_config(typed, stored, data)
        config = dataclasses.replace(config, data=dataclasses.replace(DataConfig(), source=data or ""), recipe=name)
        config = overlay(config, {key: value for key, value in stored.items() if key != "recipe"})
    except VitreousError:  # invalid arguments are not reported in the help
        parser.show_defaults({})
        return parser, "The defaults are those of --protocol."
    values = effective_defaults(config, hidden=["augment.flip", "data.source"] if data is None else [])
    from_source = [
        name for name in values if name.startswith(("model.", "preprocess.")) and name not in _OWN_MODEL_FIELDS
    ]
    values["tune.mode"] = _mode(typed, stored) or values["tune.mode"]
    parser.show_defaults({name: value for name, value in values.items() if name not in from_source})
    mode = typed.get("tune", {}).get("mode") or _mode(typed, stored) or "full"
    return parser, (
        f"Defaults in [brackets] are those of the recipe {name} with --tune {mode}; "
        "the structure of the model and its evaluation pipeline are those of the source."
    )


def _reject_contradictions(typed: Mapping[str, Any]) -> None:
    """Reject two options of this verb that set the same thing."""
    for option, other, value in (
        ("protocol", "--recipe", typed.get("recipe")),
        ("image_size", "--model.image_size", typed.get("model", {}).get("image_size")),
    ):
        if typed.get(option) and value is not None:
            raise UsageError(f"--{option.replace('_', '-')} and {other} set the same thing: give one of them")


def _parser() -> Parser:
    from vitreous.train.config import RunConfig

    parser = Parser(*_HELP)
    add = parser.add_argument
    add("source", type=str, nargs="?", metavar="DATA", help="a folder, a manifest, or a known dataset such as cifar10")
    add("--protocol", type=Literal["modern", "paper"] | None, help="recipe to start from: modern or paper")
    add("--image-size", type=str | None, metavar="N", help="height and width in pixels, such as 384 or 480x640")
    add("--config", action="config", help="a YAML file of options, such as the recipe.yaml of a run")
    add_preview_options(parser)
    parser.add_class_arguments(RunConfig, skip={"model"})
    parser.parts = add_model_options(parser)
    return parser
