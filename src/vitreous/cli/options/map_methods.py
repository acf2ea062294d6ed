"""Options of map methods: ``--methods rollout --rollout.fusion max``, named like ``--optim.lr``: group, then option."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from vitreous.cli.options.model_parts import field_descriptions
from vitreous.cli.options.parser import Parser
from vitreous.cli.options.types import choices_in, placeholder
from vitreous.errors import UsageError

if TYPE_CHECKING:
    from vitreous.inspection.maps.base import MapMethod

__all__ = ["METHODS", "add_method_options", "chosen_methods", "print_method_help"]

METHODS = (
    "gradient-attention",
    "legrad",
    "grad-cam",
    "integrated-gradients",
    "occlusion",
    "rollout",
    "attention",
    "random",
)
"""Names of the map methods, for a help that loads no torch; a test compares them with those of the package."""

_ALWAYS = ("rollout",)


def print_method_help() -> None:
    """Print each method with its options: ``vitreous inspect --help methods``."""
    from vitreous.inspection.maps import MAPS  # imports torch

    summaries = (" ".join(str(method.__doc__).split("\n\n")[0].split()).replace("`", "") for method in MAPS)
    parser = Parser(
        "inspect",
        "MODEL IMAGES... --methods A,B --METHOD.OPTION VALUE",
        "\n".join(["Methods that map a class, or attention, to the patches of an image:", *summaries]),
        [
            ("vitreous inspect runs/photos-1 cat.jpg --rollout.fusion max", "rollout by the strongest head"),
            ("vitreous inspect runs/photos-1 cat.jpg --methods grad-cam --grad-cam.layer -3", "an earlier block"),
        ],
    )
    add_method_options(parser)
    parser.print_help()


def add_method_options(parser: ArgumentParser) -> None:
    """Add every option of every map method, with the description of its docstring and its default."""
    from vitreous.inspection.maps import MAPS
    from vitreous.model.part import option_types

    group = parser.add_argument_group("options of methods")
    for method in MAPS:
        descriptions, defaults = field_descriptions(method), {f.name: f.default for f in dataclasses.fields(method)}
        for option, hint in option_types(method).items():
            default = "" if defaults[option] is None else f" [{defaults[option]}]"
            text = descriptions[option].replace("`", "") + default
            shown = "|".join(choices_in(hint, None)) or placeholder(hint)
            name = f"--{method.kind}.{option.replace('_', '-')}"
            group.add_argument(name, type=hint | None, metavar=shown, help=text.replace("%", "%%"))


def chosen_methods(options: Namespace) -> list[MapMethod]:
    """Return the methods of ``--methods`` with their options, then rollout, which is always shown.

    Args:
        options: Parsed, with the options of :func:`add_method_options`.

    Raises:
        UsageError: If a method is named twice, or an option is given of a method that is not shown.
        ConfigError: If there is no such method, or a value is none of its choices.
    """
    from vitreous.inspection.explain import map_method

    names = list(options.methods)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"--methods names {', '.join(twice)} twice: name each once")
    for name in names:
        map_method(name)  # first: a misspelt method explains why its options have no effect
    shown = [*names, *(name for name in _ALWAYS if name not in names)]
    for kind, option, _ in _given(options):
        if kind not in shown:
            raise UsageError(
                f"--{kind}.{option.replace('_', '-')} has no effect without the method: add {kind} to --methods"
            )
    return [map_method(name, **{key: value for kind, key, value in _given(options) if kind == name}) for name in shown]


def _given(options: Namespace) -> Iterator[tuple[str, str, Any]]:
    """Yield method, option and value of each option of a method that was given."""
    for kind in METHODS:
        for option, value in vars(options.get(kind.replace("-", "_"), Namespace())).items():
            if value is not None:
                yield kind, option, value
