"""`vitreous train`: train a classifier on labelled images.

The configuration imports torch, which takes seconds. So it, here and in `plan` and `finetune`, is imported late.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitreous.cli.options.cluster import split_on
from vitreous.cli.options.config_files import split_config_files
from vitreous.cli.options.conflicts import SIZE_FIELDS, reject_idle_options, reject_size_mismatch, resolve_length
from vitreous.cli.options.help import VerbHelp, print_help, split_help
from vitreous.cli.options.model_parts import add_model_options, name_kinds
from vitreous.cli.options.outputs import add_preview_options, data_files, make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.options.start import START, check_start, fit_recipe, starts_from_shipped
from vitreous.cli.work.training import train
from vitreous.errors import UsageError, VitreousError
from vitreous.recipes import RECIPES, recipe, recipe_for

if TYPE_CHECKING:
    from vitreous.train.config import RunConfig

__all__ = [
    "Configure",
    "configure",
    "data_source",
    "effective_defaults",
    "explicit_fields",
    "make_parser",
    "overlay",
    "parse",
    "parser_with_defaults",
    "refuse_missing_data",
    "resize",
    "resolve",
    "run",
    "run_training",
]

_SHORT = {
    "--data-dir": "--data.dir",
    "--cache-size": "--data.cache_gb",
    "--cache_size": "--data.cache_gb",
    "--data_dir": "--data.dir",
    "--strict": "--data.strict",
    "--exclude": "--data.exclude",
    "--model": "--size",
    "--teacher": "--distil.teacher",
    "--aux": "--aux.method",
    "--unlabelled": "--aux.unlabelled",
}
_FROM_DATA = ("model.num_classes", "model.in_channels")
_NO_DATA = "DATA is missing: `vitreous train digits` to try, or `vitreous train FOLDER` for your images"
_FLAGS = ("--print-config", "--print_config", "--resume")  # options of the verb that are not in the configuration

RECIPE_LIST = "\n".join(f"  {name:<19}{summary}" for name, summary in RECIPES.items())

_HELP = VerbHelp(
    "train",
    "DATA [options]",
    """\
Train a Vision Transformer on labelled images. The model file, a report and figures go to a run directory under runs/.

examples:
  vitreous train digits
      1,797 real handwritten digits, bundled: works offline
  vitreous train photos/
      your own images: one folder per class, named after it, or train/ val/ [test/] with such folders
  vitreous train labels.csv
      a manifest (.csv, .parquet or .jsonl) with the columns path and label, or labels for several
  vitreous train cifar10 --data-dir ~/data --budget 25m
      a known dataset, downloaded if it is missing, and a limit on the wall-clock time of the whole command
  vitreous train photos/ --model S/16 --model.image_size 224 --optim.lr 5e-4
      another model size and other settings: every option listed by --help all
  vitreous train photos/ --devices 4
      four GPUs, or on a CPU four processes: the same run, faster (docs/explanation/scale.md)
  vitreous train photos/ --show-batch
      draw an augmented batch to batch.png and exit
  vitreous train --config runs/photos-1/recipe.yaml --seed 1
      repeat a run with one setting changed

common options:
  --epochs N   --budget 25m   how long to train
  --model NAME                model size (`vitreous models` lists them)
  --start none                random weights; few images else start from a backbone that saw ImageNet (research use)
  --recipe NAME               recipe; by default the one named like the dataset, else start or folder
  --teacher MODEL             learn from a larger trained model too (--distil.teacher)
  --aux NAME                  few labels: mae, fixmatch or self-training; --unlabelled PATH: other images
  --data-dir FOLDER           folder of the known datasets, for reading and downloading (--data.dir)
  --strict                    stop if a file cannot be read (--data.strict)
  --exclude FILE              skip the images that `vitreous audit` listed (--data.exclude)
  --out FOLDER                run directory, instead of runs/NAME-1
  --resume                    resume the run that the same command started, or start it
  --on ray://ADDRESS          run on a Ray cluster (docs/how-to/cluster.md)
  --print-config              print every setting as resolved, and exit

recipes:
"""
    + RECIPE_LIST,
)


Configure = Callable[[Sequence[str]], "tuple[RunConfig, frozenset[str], Mapping[str, Any]]"]
"""Takes the words after the verb; returns the configuration, the options that were given, and notes."""


def run(argv: Sequence[str]) -> int:
    """Run the verb; exit code 130 after Ctrl-C, 143 after SIGTERM."""
    topic, words = split_help(argv)
    if topic is not None:
        return print_help(topic, _HELP, lambda: parser_with_defaults(_HELP, words))
    refuse_missing_data(argv)
    return run_training("train", argv, configure)


def refuse_missing_data(argv: Sequence[str]) -> None:
    """Report missing DATA before the slow imports, where the first argument is not an option.

    Raises:
        VitreousError: If there are no arguments, or the first is not an existing path or a known dataset.
    """
    if not argv:
        raise UsageError(_NO_DATA)
    if not argv[0].startswith("-") and "=" not in argv[0] and not {"--print-config", "--print_config"} & set(argv):
        from vitreous.data.sources.locating import find_source

        find_source(argv[0])


def run_training(verb: str, argv: Sequence[str], configure: Configure) -> int:
    """Train, draw a batch, or print the configuration.

    Args:
        verb: The verb.
        argv: The arguments after the verb.
        configure: Resolves them, as :func:`configure` does.
    """
    address, argv = split_on(argv)
    end = argv.index("--") if "--" in argv else len(argv)
    flags = {word.replace("_", "-") for word in argv[:end] if word in _FLAGS}
    config, explicit, typed = configure([word for n, word in enumerate(argv) if n >= end or word not in _FLAGS])
    batch_image, document = typed.get("show_batch"), typed.get("json")
    modes = sorted(flags | ({"--show-batch"} if batch_image is not None else set()))
    if len(modes) > 1:
        raise UsageError(f"{' and '.join(modes)} contradict each other: give one of them")
    files = make_outputs(
        typed,
        inputs=(
            lambda: (word.partition("=")[2] for word in split_config_files(argv, {})[0]),
            data_files(config.data.source, config.data.dir, config.data.exclude),
            *([data_files(config.aux.unlabelled)] if config.aux.unlabelled else []),
            *map(model_files, (config.tune.source, config.distil.teacher, *config.aux.model)),
        ),
    )
    files.claim("--show-batch", batch_image)
    files.claim("--json", document)
    if "--print-config" in flags:
        from vitreous.train.recipe_file import recipe_text

        sys.stdout.write(recipe_text(config))
        return 0
    if not config.tune.names_model:  # in fine-tuning, a missing source model is reported first
        from vitreous.data.sources.locating import find_source

        find_source(config.data.source)
    if batch_image is not None:
        from vitreous.train.run import show_batch

        show_batch(config, Path(batch_image), explicit=explicit, write=files.atomic_write)
        return 0
    result = train([verb, *argv], config, explicit, to_stderr=document == "-", resume="--resume" in flags, on=address)
    if isinstance(result, int):
        return result
    if document:
        write_document(files, document, result.to_dict())
    return result.exit_code


def configure(argv: Sequence[str]) -> tuple[RunConfig, frozenset[str], Mapping[str, Any]]:
    """Resolve the arguments in this order: recipe, --config, --model, every other option.

    Returns:
        The configuration; the fields set explicitly for this data (see :func:`explicit_fields`); every option typed.

    Raises:
        UsageError: If an option is unknown, or its value does not fit.
    """
    return resolve(argv, make_parser(_HELP))


def resolve(argv: Sequence[str], parser: Parser) -> tuple[RunConfig, frozenset[str], Mapping[str, Any]]:
    """Resolve arguments as :func:`configure` does, with a parser from :func:`make_parser`."""
    files, words = split_config_files(argv, _SHORT)
    typed, stored = parse(parser, files, words)
    source, name = _source_and_recipe(typed, stored)
    if name is None or (source is None and name == "folder"):
        raise UsageError(_NO_DATA)
    before = _base_config(name, typed, stored)
    typed = resolve_length(typed)
    config = dataclasses.replace(overlay(before, typed), recipe=name)
    check_start(typed, config)
    reject_idle_options(typed, config, before)
    for_this_data = [typed, stored] if "source" not in typed.get("data", {}) else [typed]
    return config, explicit_fields(for_this_data), typed


def parse(parser: Parser, files: Sequence[str], words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options typed and those of --config files by group, with DATA as `data.source` and parts as mappings.

    Raises:
        UsageError: If an option is unknown, a value does not fit, or two sources of images are given.
    """
    stored = parser.parse_args(files, defaults=False).as_dict() if files else {}
    typed = parser.parse_args(words, defaults=False).as_dict()
    for fields in (typed, stored):
        if fields.get("source"):
            source = fields.setdefault("data", {}).setdefault("source", fields["source"])
            if source != fields["source"]:
                raise UsageError(f"'{fields['source']}' and --data.source {source} are two sets of images: give one")
        fields["model"] = name_kinds(fields.get("model", {}), parser.parts)
    return typed, stored


def data_source(typed: Mapping[str, Any], stored: Mapping[str, Any]) -> str | None:
    """Return the images that :func:`parse` found, or None; the typed ones override those of a file."""
    source: str | None = typed.get("data", {}).get("source") or stored.get("data", {}).get("source")
    return source


def _source_and_recipe(typed: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the data and the recipe's name, each None where the options do not decide it."""
    source = data_source(typed, stored)
    default = recipe_for(source) if source else None
    if source is not None and (default == "folder" or typed.get("start") == "shipped"):
        default = START if starts_from_shipped(source, typed, stored) else default
    return source, typed.get("recipe") or stored.get("recipe") or default


def _base_config(name: str, typed: Mapping[str, Any], stored: Mapping[str, Any]) -> RunConfig:
    """Return what applies before the single options typed: a recipe, the --config files, and the size of --model."""
    config = recipe(name)
    if name == START:
        config = fit_recipe(config, typed, data_source(typed, stored))
    config = overlay(config, stored)
    return resize(config, typed["size"], typed.get("model", {})) if typed.get("size") else config


def parser_with_defaults(verb: VerbHelp, words: Sequence[str]) -> tuple[Parser, str]:
    """Return a parser whose help shows the defaults that apply to the other arguments, and a sentence on them."""
    parser = make_parser(verb)
    files, words = split_config_files(words, _SHORT)
    try:
        typed, stored = parse(parser, files, words)
        source, name = _source_and_recipe(typed, stored)
        config = dataclasses.replace(_base_config(name, typed, stored), recipe=name) if name else None
    except VitreousError:  # invalid arguments are not reported in the help
        config = None
    if config is None:
        parser.show_defaults({})
        return parser, "The defaults depend on the recipe, and so on the data: name DATA before --help to see them."
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, source=source or config.data.source))
    parser.show_defaults(effective_defaults(config))
    chosen_by = "--config" if files else "--recipe" if typed.get("recipe") else f"'{source}'"
    return parser, f"Defaults in [brackets] are those of the recipe {name}, chosen by {chosen_by}."


def effective_defaults(config: RunConfig, hidden: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of a configuration by option name, without those that are decided later.

    Args:
        config: The configuration without the single options typed.
        hidden: Further fields to leave out, because the data or the source model decides them.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "model":
            for name, item in value.to_dict().items():
                options = item if isinstance(item, dict) else {"kind": item}
                values[f"model.{name}"] = options.pop("kind")
                values |= {f"model.{name}.{option}": each for option, each in options.items()}
        elif dataclasses.is_dataclass(value):
            values |= {f"{field.name}.{each.name}": getattr(value, each.name) for each in dataclasses.fields(value)}
        else:
            values[field.name] = value
    if values["steps"] is not None or values["budget"] is not None:
        values["epochs"] = None  # without effect
    return {name: value for name, value in values.items() if name not in (*_FROM_DATA, *hidden)}


def explicit_fields(parts: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the fields set by parsed options: `width` or `pool.kind` for the model, `preprocess.mean` for others."""
    names = []
    for fields in parts:
        names += [f"preprocess.{field}" for field in fields.get("preprocess", {})]
        for field, value in fields.get("model", {}).items():
            names += [f"{field}.{option}" for option in value] if isinstance(value, dict) else [field]
    return frozenset(names)


def make_parser(verb: VerbHelp) -> Parser:
    """Return a parser of every option of `vitreous train`, for train or plan."""
    from vitreous.train.config import RunConfig

    parser = Parser(*verb)
    add = parser.add_argument
    add("source", type=str, nargs="?", metavar="DATA", help="a folder, a manifest, or a known dataset such as digits")
    add("--size", type=str | None, metavar="NAME", help="model size such as S/16; --model NAME is short for it")
    add(
        "--start",
        type=Literal["auto", "shipped", "none"] | None,
        help="where few images start: from the small backbone in the package, or from random weights (none)",
    )
    add("--config", action="config", help="a YAML file of options, such as the recipe.yaml of a run")
    add_preview_options(parser)
    parser.add_class_arguments(RunConfig, skip={"model"})
    parser.parts = add_model_options(parser)
    return parser


def resize(config: RunConfig, name: str, typed: Mapping[str, Any]) -> RunConfig:
    """Replace the model's size by a named one; a name without a patch size keeps the patch size of the recipe."""
    from vitreous.model.sizes import config_of

    named = config_of(name)
    reject_size_mismatch(name, named, typed)
    is_hybrid = named.stem.kind == "resnet"
    fields = [*SIZE_FIELDS, *["patch_size"] * ("/" in name or is_hybrid), *["stem"] * is_hybrid]
    sizes = {field: getattr(named, field) for field in fields}
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **sizes))


def overlay(config: RunConfig, fields: Mapping[str, Any]) -> RunConfig:
    """Replace the named fields of a configuration, group by group; names that are not fields are ignored."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.name in fields:
            old, new = getattr(config, field.name), fields[field.name]
            if field.name == "model":
                changes["model"] = old.with_options(new)
            else:
                changes[field.name] = dataclasses.replace(old, **new) if isinstance(new, dict) else new
    return dataclasses.replace(config, **changes)
