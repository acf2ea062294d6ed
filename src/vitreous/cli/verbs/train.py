"""`vitreous train`: from labelled pictures to a model file."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous.cli.options.conflicts import one_length, refuse_idle, refuse_other_size, refuse_two_spellings
from vitreous.cli.options.outputs import (
    JSON_HELP,
    add_overwrite,
    files_of_data,
    files_of_model,
    outputs,
    write_document,
)
from vitreous.cli.options.parser import Parser
from vitreous.errors import UsageError, VitreousError
from vitreous.model.sizes import config_of
from vitreous.recipes import RECIPES, recipe, recipe_for
from vitreous.train.config import RunConfig

__all__ = [
    "add_looks",
    "asks_help",
    "carry_out",
    "configure",
    "explain_defaults",
    "given_fields",
    "overlaid",
    "parsed",
    "process_started",
    "resolve",
    "run",
    "split_words",
    "train_parser",
    "without_help",
]

_STARTED = time.monotonic()
_SHORT = {
    "--data-dir": "--data.dir",
    "--data_dir": "--data.dir",
    "--strict": "--data.strict",
    "--exclude": "--data.exclude",
    "--model": "--size",
}
_SIZE_FIELDS = ("width", "depth", "mlp_dim", "heads")
_HYBRID_FIELDS = ("stem", "resnet_layers")
_FROM_DATA = ("model.num_classes", "model.in_channels")
_FLAGS = ("--print-config", "--print_config", "--resume")  # words of the verb that are no part of a configuration

_HELP = """\
Train a Vision Transformer on labelled pictures. The model file, a report, and pictures of what it learned go to a \
folder under runs/.

examples:
  vitreous train digits
      1,797 real handwritten digits, bundled: works offline
  vitreous train photos/
      your own: one folder per class, named as the class, or train/ val/ [test/] folders of those
  vitreous train labels.csv
      a manifest (.csv or .parquet) with the columns path and label
  vitreous train cifar10 --data-dir ~/data --budget 25m
      a known set that is there or can be downloaded, and a wall-clock limit for all of it
  vitreous train photos/ --model S/16 --model.image_size 224 --optim.lr 5e-4
      another size and other settings: any field below can be set
  vitreous train photos/ --show-batch
      draw an augmented batch to batch.png, and train nothing
  vitreous train --config runs/photos-1/recipe.yaml --seed 1
      the same run again with one thing changed

common options:
  --epochs N   --budget 25m   how long
  --model NAME                which size (`vitreous models` lists them)
  --recipe NAME               which recipe; without it the data's name decides, else it is folder
  --data-dir FOLDER           where known sets are, or are downloaded to (--data.dir)
  --strict                    stop at files that cannot be read (--data.strict)
  --exclude FILE              leave out the pictures it lists, as `vitreous audit --write-exclude` does (--data.exclude)
  --out FOLDER                where to write, instead of runs/NAME-1
  --resume                    go on where the same command stopped, or begin where there is nothing to go on from
  --print-config              print every setting as it stands after all of this, and train nothing

recipes:
"""


Configure = Callable[[Sequence[str]], tuple[RunConfig, frozenset[str], Mapping[str, Any]]]


def run(argv: Sequence[str]) -> int:
    """Run the verb; 130 if Ctrl-C ended the training, 143 if SIGTERM did."""
    return carry_out(argv, configure)


def carry_out(argv: Sequence[str], resolve: Configure) -> int:
    """Train, or draw a batch, or print the configuration, as the words say; `resolve` is :func:`configure` or alike."""
    end = argv.index("--") if "--" in argv else len(argv)
    flags = {word.replace("_", "-") for word in argv[:end] if word in _FLAGS}
    config, given, typed = resolve([word for n, word in enumerate(argv) if n >= end or word not in _FLAGS])
    picture, document = typed.get("show_batch"), typed.get("json")
    looks = sorted(flags | ({"--show-batch"} if picture is not None else set()))
    if len(looks) > 1:
        raise UsageError(f"{' and '.join(looks)} contradict each other: give one of them")
    files = outputs(
        typed,
        each=(
            lambda: (word.partition("=")[2] for word in split_words(argv, {})[0]),
            files_of_data(config.data.source, config.data.dir, config.data.exclude),
            files_of_model(config.tune.source),
        ),
    )
    files.claim("--show-batch", picture)
    files.claim("--json", document)
    if "--print-config" in flags:
        from vitreous.train.recipe_file import recipe_text  # here and below: torch takes seconds, a typo should not

        sys.stdout.write(recipe_text(config))
        return 0
    if config.tune.source is None:  # in a fine-tuning a source that is not there is told first
        from vitreous.data.sources.opening import find_source

        find_source(config.data.source)
    if picture is not None:
        from vitreous.train.run import show_batch

        show_batch(config, Path(picture), keep=given, write=files.replacing)
        return 0
    from rich.console import Console

    from vitreous.train.console import View
    from vitreous.train.run import run as train

    # With the document on stdout, nothing else goes there.
    view = View(Console(stderr=True, soft_wrap=True)) if document == "-" else None
    result = train(config, keep=given, started=process_started(), view=view, resume="--resume" in flags)
    if document:
        write_document(files, document, result.to_dict())
    return result.exit_code


def configure(argv: Sequence[str]) -> tuple[RunConfig, frozenset[str], Mapping[str, Any]]:
    """Resolve the words of the command: recipe, then --config, then --model, then every other option.

    Returns:
        The configuration; what was set on purpose for this data, as :func:`given_fields` says; every option typed.

    Raises:
        UsageError: If a word cannot be meant.
    """
    return resolve(argv, train_parser("train", "DATA [options]", _HELP))


def resolve(argv: Sequence[str], parser: Parser) -> tuple[RunConfig, frozenset[str], Mapping[str, Any]]:
    """Resolve words as :func:`configure` does.

    Args:
        argv: After the verb.
        parser: Of :func:`train_parser`, which may know options besides.

    Returns:
        The configuration, what was set on purpose, and every option that was typed.

    Raises:
        UsageError: If a word cannot be meant.
    """
    files, words = split_words(argv, _SHORT)
    if asks_help(words):
        explain_defaults(parser, *_defaults(files, words, parser))
    typed, stored = parsed(parser, files, words)
    source, name = _source_and_recipe(typed, stored)
    if name is None or (source is None and name == "folder"):
        raise UsageError(
            "DATA is missing: `vitreous train digits` to try, or `vitreous train FOLDER` for your pictures"
        )
    before = overlaid(recipe(name), stored)
    if typed.get("size"):
        before = _resized(before, typed["size"], typed.get("model", {}))
    typed = one_length(typed)
    config = dataclasses.replace(overlaid(before, typed), recipe=name)
    refuse_idle(typed, config, before)
    for_this_data = [typed, stored] if "source" not in typed.get("data", {}) else [typed]
    return config, given_fields(for_this_data), typed


def parsed(parser: Parser, files: Sequence[str], words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that were typed and those in --config files, by group; the data is in `data.source` of each.

    Raises:
        UsageError: If an option is unknown or a value does not fit, or the data is named twice.
    """
    stored = parser.parse_args(files, defaults=False).as_dict() if files else {}
    typed = parser.parse_args(words, defaults=False).as_dict()
    for fields in (typed, stored):
        if fields.get("source"):
            twice = fields.setdefault("data", {}).setdefault("source", fields["source"])
            if twice != fields["source"]:
                raise UsageError(f"'{fields['source']}' and --data.source {twice} are two sets of images: give one")
    return typed, stored


def _source_and_recipe(typed: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The data and the recipe that are meant; None where nothing says."""
    source = typed.get("data", {}).get("source") or stored.get("data", {}).get("source")
    return source, typed.get("recipe") or stored.get("recipe") or (recipe_for(source) if source else None)


def _defaults(files: Sequence[str], words: Sequence[str], parser: Parser) -> tuple[RunConfig | None, str]:
    """What holds where an option is not typed, and what decides that; None where the words do not say."""
    unknown = "The defaults are those of a recipe, which the data selects: name DATA before --help to see them."
    try:
        typed, stored = parsed(parser, files, without_help(words))
        source, name = _source_and_recipe(typed, stored)
        if name is None:
            return None, unknown
        config = dataclasses.replace(overlaid(recipe(name), stored), recipe=name)
        if typed.get("size"):
            config = _resized(config, typed["size"], typed.get("model", {}))
    except VitreousError:  # help is not the place to complain
        return None, unknown
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, source=source or config.data.source))
    chosen = "--config" if files else "--recipe" if typed.get("recipe") else f"'{source}'"
    return config, f"Defaults in [brackets] are those of the recipe {name}, chosen by {chosen}."


def asks_help(words: Sequence[str]) -> bool:
    """Whether the words ask for help."""
    return without_help(words) != list(words)


def without_help(words: Sequence[str]) -> list[str]:
    """The words but for those that ask for help."""
    end = words.index("--") if "--" in words else len(words)
    return [word for n, word in enumerate(words) if n >= end or word not in ("-h", "--help")]


def explain_defaults(parser: Parser, config: RunConfig | None, how: str, hidden: Collection[str] = ()) -> None:
    """Have the help show a configuration's values as the defaults, and none where there is no configuration.

    Args:
        parser: Of a verb that trains.
        config: What holds where nothing is typed.
        how: A sentence that says what decides that.
        hidden: Fields whose values the data or a source decides.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config) if config is not None else ():
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            values |= {f"{field.name}.{each.name}": getattr(value, each.name) for each in dataclasses.fields(value)}
        else:
            values[field.name] = value
    if values.get("steps") is not None or values.get("budget") is not None:
        values["epochs"] = None  # they decide
    parser.show_defaults({name: value for name, value in values.items() if name not in (*_FROM_DATA, *hidden)})
    parser.description = f"{parser.description}\n\n{how}"


def given_fields(parts: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The fields of the model, by name, and of the evaluation pipeline, as `preprocess.mean`, in parsed words."""
    model = (field for fields in parts for field in fields.get("model", {}))
    return frozenset((*model, *(f"preprocess.{field}" for fields in parts for field in fields.get("preprocess", {}))))


def split_words(argv: Sequence[str], short: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Part the --config files from the other words, which win over them wherever they stand.

    The short options are spelt in full, and --show-batch gets a file where it has none.
    """
    files: list[str] = []
    words: list[str] = []
    rest = list(argv)
    spelt: dict[str, list[str]] = {}
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name == "--":
            words += [name, *rest]
            break
        if name.startswith("--"):
            spelt.setdefault(short.get(name, name).partition("=")[0].replace("-", "_"), []).append(name)
        if name == "--config" and rest and not equals:
            files.append(f"--config={rest.pop(0)}")
        elif name == "--config":
            files.append(name + equals + value)
        elif name in ("--show-batch", "--show_batch") and not equals:
            words.append(f"--show-batch={rest.pop(0) if rest and rest[0].endswith('.png') else 'batch.png'}")
        else:
            words.append(short.get(name, name) + equals + value)
    refuse_two_spellings(spelt)
    return files, words


def train_parser(verb: str, usage: str, text: str) -> Parser:
    """A parser of every option of `vitreous train`, for a verb with a help text of its own; the recipes end it."""
    recipes = "\n".join(f"  {name:<19}{line}" for name, line in RECIPES.items())
    parser = Parser(verb, usage, text + recipes)
    add = parser.add_argument
    add("source", type=str, nargs="?", metavar="DATA", help="a folder, a manifest, or a known set such as digits")
    add("--size", type=str | None, metavar="NAME", help="what --model NAME means: a size such as S/16")
    add("--config", action="config", help="a YAML file of options, such as the recipe.yaml of a run")
    add_looks(parser)
    parser.add_class_arguments(RunConfig)
    return parser


def add_looks(parser: Parser) -> None:
    """Add the options that look at a run without training, and those of what is written beside its folder."""
    parser.add_argument(
        "--show-batch", type=str | None, metavar="[FILE.png]", help="only draw an augmented batch [batch.png]"
    )
    parser.add_argument("--print-config", action="store_true", help="only print every setting, resolved, as YAML")
    parser.add_argument("--json", type=str | None, metavar="FILE", help=JSON_HELP)
    add_overwrite(parser)


def _resized(config: RunConfig, name: str, typed: Mapping[str, Any]) -> RunConfig:
    """Replace the size of the model by a named one; without a patch size in the name, the recipe's stays."""
    named = config_of(name)
    refuse_other_size(name, named, typed)
    fields = [*_SIZE_FIELDS, *(["patch_size"] if "/" in name or named.stem == "resnet" else [])]
    sizes = {field: getattr(named, field) for field in (*fields, *(_HYBRID_FIELDS if named.stem == "resnet" else ()))}
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **sizes))


def overlaid(config: RunConfig, fields: Mapping[str, Any]) -> RunConfig:
    """Replace the fields that are named, group by group; what is no field of a run is passed over."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.name in fields:
            old, new = getattr(config, field.name), fields[field.name]
            changes[field.name] = dataclasses.replace(old, **new) if isinstance(new, dict) else new
    return dataclasses.replace(config, **changes)


def process_started() -> float:
    """When this process started, in the seconds of time.monotonic(): a budget counts from there."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # field 22: start after boot, in clock ticks
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return min(_STARTED, time.monotonic() - age)
    except (OSError, AttributeError, ValueError, IndexError):  # not Linux: this module is imported first of all
        return _STARTED
