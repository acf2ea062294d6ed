"""`vitreous models`: the sizes there are, and what a model of each costs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import NonNegativeInt
from rich.box import SIMPLE_HEAD
from rich.table import Table

from vitreous.cli.options.outputs import JSON_HELP, add_overwrite, outputs, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate, number, print_table
from vitreous.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from vitreous.model.config import ViTConfig

__all__ = ["run"]

_LEAST_ASKED_FOR = ("MLP", "heads", "depth", "width", "tokens", "patch")  # left out first where the terminal is narrow


def _parser() -> Parser:
    parser = Parser(
        "models",
        "[NAME...] [options]",
        "List the model sizes, or one of them with any patch size, such as B/16 or H/14: parameters, operations of a "
        "forward pass (2 per multiply-add) and what training keeps of each picture in memory.",
        [
            ("vitreous models", "all sizes at their usual resolution"),
            ("vitreous models B/16 B/32 --image-size 384 --num-classes 100", "two, at another resolution"),
        ],
    )
    parser.add_argument("names", type=str, nargs="*", metavar="NAME", help="a size, with or without /patch in pixels")
    parser.add_argument("--image-size", type=str, metavar="N", help="pixels: 384, or height x width as 224x448")
    parser.add_argument("--num-classes", type=NonNegativeInt, default=1000, help="outputs of the head; 0: no head")
    parser.add_argument("--json", type=str, metavar="FILE", help=JSON_HELP)
    add_overwrite(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    image_size = _image_size(options.image_size)
    files = outputs(options)
    files.claim("--json", options.json)
    from vitreous.model.config import pair
    from vitreous.model.sizes import SIZES, config_of

    configs: dict[str, ViTConfig] = {}
    for name in options.names or SIZES:
        config = config_of(name, num_classes=options.num_classes)
        try:
            configs[name] = config if image_size is None else replace(config, image_size=image_size)
        except ConfigError as error:
            if options.names or min(pair(image_size or 0)) < 1:
                raise
            narrate(f"{name} left out: {str(error).split(':')[0]}")
    if not configs:
        raise UsageError(
            f"no size has patches that tile {options.image_size} pixels: name one with a patch, such as B/15"
        )
    costs = {name: _cost(config) for name, config in configs.items()}
    if options.json != "-":
        print_table(_table(configs, costs), drop=_LEAST_ASKED_FOR)
        narrate("GFLOPs: one forward pass, 2 per multiply-add. Memory: what training keeps of each picture, float32.")
    if options.json:
        write_document(
            files, options.json, {"models": [_described(name, configs[name], costs[name]) for name in costs]}
        )
    return 0


def _image_size(text: str | None) -> int | tuple[int, int] | None:
    """Read 384 or 224x448."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)(?:\s*[x,]\s*(\d+))?", text.strip().strip("[]()"))
    if not found:
        raise UsageError(f"--image-size is '{text}', it must be pixels such as 384, or height x width such as 224x448")
    return int(found[1]) if found[2] is None else (int(found[1]), int(found[2]))


def _described(name: str, config: ViTConfig, costs: tuple[int, int, int]) -> dict[str, Any]:
    """A model as JSON has it; sizes are height and width in pixels, FLOPs of a forward pass, memory in bytes."""
    from vitreous.model.config import pair

    parameters, flops, activations = costs
    sizes = {"image_size": pair(config.image_size), "patch_size": pair(config.patch_size), "tokens": config.tokens}
    shape = {field: getattr(config, field) for field in ("width", "depth", "heads", "mlp_dim", "num_classes")}
    cost = {"parameters": parameters, "flops": flops, "activation_bytes_per_image": activations}
    return {"name": name, **sizes, **shape, **cost}


def _table(configs: Mapping[str, ViTConfig], costs: Mapping[str, tuple[int, int, int]]) -> Table:
    """A row per model; a line between those for pictures of different size."""
    table = Table("size", box=SIMPLE_HEAD)
    for title in ("image", "patch", "width", "depth", "heads", "MLP", "tokens", "parameters", "GFLOPs", "memory"):
        table.add_column(title, justify="right")
    before = None
    for name, config in configs.items():
        if before not in (None, config.image_size):
            table.add_section()
        before = config.image_size
        parameters, flops, activations = costs[name]
        table.add_row(
            name,
            _sides(config.image_size),
            _sides(config.patch_size),
            *(str(n) for n in (config.width, config.depth, config.heads, config.mlp_dim)),
            f"{config.tokens:,}",
            f"{parameters:,}",
            f"{flops / 1e9:,.2f}",
            f"{number(activations)}B",
        )
    return table


def _cost(config: ViTConfig) -> tuple[int, int, int]:
    """Parameters, FLOPs and activation bytes: exactly linear in depth, so two shallow models tell them in no time."""
    from vitreous.model.cost import cost

    one, two = (cost(replace(config, depth=depth)) for depth in (1, 2))
    more = config.depth - 1
    return (
        one.parameters + more * (two.parameters - one.parameters),
        one.flops + more * (two.flops - one.flops),
        one.activation_bytes + more * (two.activation_bytes - one.activation_bytes),
    )


def _sides(size: int | tuple[int, int]) -> str:
    return str(size) if isinstance(size, int) else f"{size[0]}x{size[1]}"
