"""`vitreous models`: the named model sizes and their cost, or the pretrained models to start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import NonNegativeInt
from rich.box import SIMPLE_HEAD
from rich.table import Table

from vitreous.cli.options.model import parse_image_size
from vitreous.cli.options.outputs import add_json_options, make_outputs, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import format_count, narrate, print_table
from vitreous.cli.work.pretrained_models import pretrained_models
from vitreous.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from vitreous.model.config import ViTConfig

__all__ = ["run"]

_DROP_ORDER = ("MLP", "heads", "depth", "width", "tokens", "patch")  # columns removed from a table that is too wide


def _parser() -> Parser:
    parser = Parser(
        "models",
        "[NAME...] [options]",
        "List the model sizes, or only those named, with any patch size, such as B/16 or H/14: parameters, operations "
        "of a forward pass (2 per multiply-add) and the memory of the activations of one image in training.",
        [
            ("vitreous models", "all sizes at their usual resolution"),
            ("vitreous models B/16 B/32 --image-size 384 --num-classes 100", "two, at another resolution"),
            ("vitreous models --pretrained", "models to fine-tune: size, licence, published accuracy, download"),
        ],
    )
    parser.add_argument("names", type=str, nargs="*", metavar="NAME", help="a size, with or without /patch in pixels")
    parser.add_argument("--image-size", type=str, metavar="N", help="pixels: 384, or height x width as 224x448")
    parser.add_argument("--num-classes", type=NonNegativeInt, default=1000, help="outputs of the head; 0: no head")
    parser.add_argument("--pretrained", action="store_true", help="list the pretrained models that --from takes")
    add_json_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    parser = _parser()
    options = parser.parse_args(argv)
    image_size = parse_image_size("--image-size", options.image_size)
    files = make_outputs(options)
    files.claim("--json", options.json)
    if options.pretrained:
        if options.image_size is not None or options.num_classes != parser.get_default("num_classes"):
            raise UsageError("--image-size and --num-classes have no effect with --pretrained: omit them")
        return pretrained_models(options.names, options.json, files)
    from vitreous.model.sizes import SIZES, config_of  # imports torch

    configs: dict[str, ViTConfig] = {}
    for name in options.names or SIZES:
        config = config_of(name, num_classes=options.num_classes)
        try:
            configs[name] = config if image_size is None else replace(config, image_size=image_size)
        except ConfigError as error:
            if options.names:
                raise
            narrate(f"{name} left out: {str(error).split(':')[0]}")
    if not configs:
        size = options.image_size
        raise UsageError(f"no size has patches that tile {size} pixels: name one with a patch, such as B/15")
    costs = {name: _cost(config) for name, config in configs.items()}
    if options.json != "-":
        print_table(_table(configs, costs), drop=_DROP_ORDER)
        narrate("GFLOPs: one forward pass, 2 per multiply-add. Memory: activations of one image in training, float32.")
    if options.json:
        models = [_to_dict(name, configs[name], costs[name]) for name in costs]
        write_document(files, options.json, {"models": models})
    return 0


def _to_dict(name: str, config: ViTConfig, costs: tuple[int, int, int]) -> dict[str, Any]:
    """Return a model for JSON: sizes as (height, width) in pixels, FLOPs of a forward pass, memory in bytes."""
    from vitreous.model.config import pair

    parameters, flops, activations = costs
    sizes = {"image_size": pair(config.image_size), "patch_size": pair(config.patch_size), "tokens": config.tokens}
    shape = {field: getattr(config, field) for field in ("width", "depth", "heads", "mlp_dim", "num_classes")}
    cost = {"parameters": parameters, "flops": flops, "activation_bytes_per_image": activations}
    return {"name": name, **sizes, **shape, **cost}


def _table(configs: Mapping[str, ViTConfig], costs: Mapping[str, tuple[int, int, int]]) -> Table:
    table = Table("size", box=SIMPLE_HEAD)
    for title in ("image", "patch", "width", "depth", "heads", "MLP", "tokens", "parameters", "GFLOPs", "memory"):
        table.add_column(title, justify="right")
    previous_size = None
    for name, config in configs.items():
        if previous_size not in (None, config.image_size):
            table.add_section()
        previous_size = config.image_size
        parameters, flops, activations = costs[name]
        table.add_row(
            name,
            _sides(config.image_size),
            _sides(config.patch_size),
            *(str(n) for n in (config.width, config.depth, config.heads, config.mlp_dim)),
            f"{config.tokens:,}",
            f"{parameters:,}",
            f"{flops / 1e9:,.2f}",
            f"{format_count(activations)}B",
        )
    return table


def _cost(config: ViTConfig) -> tuple[int, int, int]:
    """Return parameters, FLOPs and activation bytes: linear in depth, so extrapolated from two shallow models."""
    from vitreous.accelerate.cost import cost

    counts = attrgetter("parameters", "flops", "activation_bytes")
    one, two = (counts(cost(replace(config, depth=depth))) for depth in (1, 2))
    first, second, third = (low + (config.depth - 1) * (high - low) for low, high in zip(one, two, strict=True))
    return first, second, third


def _sides(size: int | tuple[int, int]) -> str:
    return str(size) if isinstance(size, int) else f"{size[0]}x{size[1]}"
