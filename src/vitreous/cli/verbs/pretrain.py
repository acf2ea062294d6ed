"""`vitreous pretrain`: train a backbone on images without labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitreous.cli.options.config_files import split_config_files
from vitreous.cli.options.conflicts import reject_idle_options, resolve_length
from vitreous.cli.options.help import VerbHelp, print_help, split_help
from vitreous.cli.options.model_parts import add_model_options
from vitreous.cli.options.outputs import add_json_options
from vitreous.cli.options.parser import Parser
from vitreous.cli.verbs.finetune import placeholder_model
from vitreous.cli.verbs.train import (
    data_source,
    effective_defaults,
    explicit_fields,
    overlay,
    parse,
    refuse_missing_data,
    resize,
    run_training,
)
from vitreous.errors import UsageError, VitreousError
from vitreous.recipes.pretraining import PRETRAINING, pretraining_recipe

if TYPE_CHECKING:
    from vitreous.train.config import RunConfig
    from vitreous.train.pretrain.config import PretrainConfig

__all__ = ["configure", "run"]

_SHORT = {
    "--from": "--tune.source",
    "--data-dir": "--data.dir",
    "--cache-size": "--data.cache_gb",
    "--cache_size": "--data.cache_gb",
    "--data_dir": "--data.dir",
    "--strict": "--data.strict",
    "--exclude": "--data.exclude",
    "--model": "--size",
}
_NO_DATA = "DATA is missing: `vitreous pretrain FOLDER`"
_DEFAULT = "mae"

_METHODS = "\n".join(f"  {name:<10}{summary}" for name, summary in PRETRAINING.items())

_HELP = VerbHelp(
    "pretrain",
    "DATA [options]",
    """\
Train a backbone on images; labels are not needed. The run directory gets a model file without a head, which \
`finetune --from`, `probe`, `embed` and `inspect` take as it is, and a report with reconstructions and nearest \
neighbours. Where there are labels, k nearest neighbours and a linear probe show how the features improve. A \
collapse is named, and stops the run.

examples:
  vitreous pretrain photos/
      images at any depth of a folder, with or without class folders, train/ and val/
  vitreous pretrain images.csv --method visreg
      a manifest with a column path; label may be missing, or empty for some
  vitreous pretrain photos/ --from dinov2-s
      continue from a pretrained model on your own images
  vitreous pretrain photos/ --model S/16 --model.image_size 224 --budget 8h
      a larger model, and a limit on the wall-clock time
  vitreous finetune labelled/ --from runs/photos-1
      afterwards: a classifier from the backbone, at any resolution

common options:
  --method NAME               how to learn [mae], see below; options of a method begin with its name, as --mae.mask 0.6
  --from SOURCE               start from a model that `finetune --from` takes, instead of random weights
  --epochs N   --budget 25m   how long to train
  --model NAME                model size (`vitreous models` lists them)
  --data-dir FOLDER           folder of the known datasets, for reading and downloading (--data.dir)
  --exclude FILE              skip the images listed, as by `vitreous audit --write-exclude` (--data.exclude)
  --out FOLDER                run directory, instead of runs/NAME-1
  --resume                    resume the run that the same command started, or start it
  --print-config              print every setting as resolved, and exit

methods:
"""
    + _METHODS,
)


def run(argv: Sequence[str]) -> int:
    """Run the verb; exit code 130 after Ctrl-C, 143 after SIGTERM."""
    topic, words = split_help(argv)
    if topic is not None:
        return print_help(topic, _HELP, lambda: _parser_with_defaults(words))
    if not argv:
        raise UsageError(_NO_DATA)
    refuse_missing_data(argv)
    return run_training("pretrain", argv, configure)


def configure(argv: Sequence[str]) -> tuple[RunConfig, frozenset[str], Mapping[str, Any]]:
    """Resolve the arguments in this order: the recipe of the method, --config, --model, every other option.

    Returns:
        As :func:`vitreous.cli.verbs.train.configure`.

    Raises:
        UsageError: If an option is unknown, its value does not fit, or it is one of another method.
    """
    typed, stored = parse(_parser(), *split_config_files(argv, _SHORT))
    if data_source(typed, stored) is None:
        raise UsageError(_NO_DATA)
    before = _base_config(typed, stored)
    typed = resolve_length(typed)
    config = overlay(before, typed)
    _reject_other_methods(typed, config)
    if typed.get("size") and config.tune.source is not None:
        raise UsageError(f"--from {config.tune.source} keeps the model of the source: omit --model {typed['size']}")
    reject_idle_options(typed, config, before)
    explicit = explicit_fields([typed] if "source" in typed.get("data", {}) else [typed, stored])
    return dataclasses.replace(config, recipe=before.recipe), explicit, typed


def _base_config(typed: Mapping[str, Any], stored: Mapping[str, Any]) -> PretrainConfig:
    """Return what applies before the single options typed."""
    method = typed.get("method") or stored.get("method") or _DEFAULT
    config: Any = pretraining_recipe(method, data_source(typed, stored))
    if {**stored.get("tune", {}), **typed.get("tune", {})}.get("source"):
        config = dataclasses.replace(config, model=placeholder_model(config.model))
    config = overlay(config, stored)
    if typed.get("size"):
        config = resize(config, typed["size"], typed.get("model", {}))
    found: PretrainConfig = dataclasses.replace(config, recipe=method)
    return found


def _reject_other_methods(typed: Mapping[str, Any], config: Any) -> None:
    """Reject options of a method that is not the chosen one, and of a head."""
    groups = {*PRETRAINING, "views"} - {config.method} - ({"views"} if config.compares_views else set())
    if idle := sorted(f"--{group}.{name}" for group in groups for name in typed.get(group) or ()):
        raise UsageError(f"{' and '.join(idle)}: no effect with --method {config.method}. Remove it")
    if typed.get("model", {}).get("num_classes"):
        raise UsageError(
            "--model.num_classes has no effect here: pretraining has no classes and saves no head. Omit it"
        )


def _parser_with_defaults(words: Sequence[str]) -> tuple[Parser, str]:
    """Return a parser whose help shows the defaults that apply to the other arguments, and a sentence on them."""
    parser = _parser()
    try:
        config = _base_config(*parse(parser, *split_config_files(words, _SHORT)))
    except VitreousError:  # invalid arguments are not reported in the help
        parser.show_defaults({})
        return parser, "The defaults are those of --method."
    hidden = ["augment.flip", "data.source", "model.image_size", "model.patch_size"]
    parser.show_defaults(effective_defaults(config, hidden))
    return parser, f"Defaults in [brackets] are those of the method {config.method}."


def _parser() -> Parser:
    from vitreous.train.pretrain.config import PretrainConfig

    parser = Parser(*_HELP)
    add = parser.add_argument
    add("source", type=str, nargs="?", metavar="DATA", help="a folder, a manifest, or a known dataset such as cifar10")
    add("--size", type=str | None, metavar="NAME", help="model size such as S/16; --model NAME is short for it")
    add("--config", action="config", help="a YAML file of options, such as the recipe.yaml of a run")
    add("--print-config", action="store_true", help="print every setting as YAML and exit")
    add_json_options(parser)
    parser.add_class_arguments(PretrainConfig, skip={"model"})
    parser.parts = add_model_options(parser)
    return parser
