"""`vitreous plan`: the memory and time that a training run takes on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from vitreous.cli.options.help import VerbHelp, print_help, split_help
from vitreous.cli.options.outputs import data_files, make_outputs, model_files, write_document
from vitreous.cli.output.terminal import format_count, narrate, print_table
from vitreous.cli.verbs.train import (
    RECIPE_LIST,
    make_parser,
    parser_with_defaults,
    refuse_missing_data,
    resolve,
)
from vitreous.cli.work.training import process_start
from vitreous.errors import UsageError, pluralize

if TYPE_CHECKING:
    from vitreous.train.planning.plan import Plan

__all__ = ["run"]

_UNKNOWN = "unknown on this device"

_HELP = VerbHelp(
    "plan",
    "DATA [--json FILE] [options of vitreous train]",
    """\
Measure what a training run takes on this machine: memory, time per epoch and in total, operations, and the largest \
batch that fits. The command runs a few steps of the training, discards them, and creates no run directory.

examples:
  vitreous plan photos/ --model S/16 --epochs 30
      the arguments of the training run: every option of `vitreous train` is accepted
  vitreous plan cifar10 --budget 25m --json plan.json
      the number of epochs that fits into a budget, and every number as JSON
  vitreous plan photos/ --method mae --model S/16
      of `vitreous pretrain`, with its options: --method says so

recipes:
"""
    + RECIPE_LIST,
)


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    topic, words = split_help(argv)
    if topic is not None:
        return print_help(topic, _HELP, lambda: parser_with_defaults(_HELP, words))
    end = argv.index("--") if "--" in argv else len(argv)
    words = [word for n, word in enumerate(argv) if n >= end or word != "--resume"]
    refuse_missing_data(words)
    config, explicit, typed = _resolved(words)
    if typed.get("show_batch") or typed.get("print_config"):
        raise UsageError("--show-batch and --print-config train nothing, so there is nothing to plan: remove them")
    sources = [data_files(config.data.source, config.data.dir, config.data.exclude)]
    if config.aux.unlabelled:
        sources.append(data_files(config.aux.unlabelled))
    models = map(model_files, (config.tune.source, config.distil.teacher, *config.aux.model))
    files = make_outputs(typed, inputs=(*sources, *models))
    files.claim("--json", typed.get("json"))
    from vitreous.train.planning.plan import plan

    if sys.stderr.isatty():
        narrate("measuring: running some steps of this training, which takes minutes for a large model")
    result = plan(config, explicit=explicit, started=process_start())
    if typed.get("json"):
        write_document(files, str(typed["json"]), result.to_dict())
    if typed.get("json") != "-":
        print_table(_table(result), sys.stdout)
        from vitreous.train.console import Display

        Display().advice(result.advice)
    return 0


def _resolved(words: list[str]) -> tuple[Any, frozenset[str], Mapping[str, Any]]:
    """Resolve the arguments as `vitreous train` does, or with --method as `vitreous pretrain` does."""
    end = words.index("--") if "--" in words else len(words)
    if not any(word == "--method" or word.startswith("--method=") for word in words[:end]):
        return resolve(words, make_parser(_HELP))
    from vitreous.cli.verbs.pretrain import configure

    return configure(words)


def _table(plan: Plan) -> Table:
    """Return the numbers as a table."""
    from vitreous.train.console import duration

    memory, part_size = plan.memory, -(-plan.batch_size // plan.parts)
    low, high = (f"{seconds:.3g}" for seconds in plan.step_spread)
    parts = f" in {plan.parts} parts of {part_size}" if plan.parts > 1 else ""
    in_memory = f"{_format_bytes(memory.pictures)} of main memory" if memory.pictures else "none: streamed from disk"
    free = "" if memory.left is None else f", of {_format_bytes(memory.left)} free"
    startup = f"including {_format_time(plan.start_seconds)} before the first step"
    rows = [
        ("model", plan.model),
        ("machine", plan.machine),
        ("images", ", ".join(f"{count:,} {name}" for name, count in plan.pictures.items())),
        ("batch", f"{pluralize(plan.batch_size, 'image')}{parts}, {pluralize(plan.steps_per_epoch, 'step')} per epoch"),
        ("memory", (_UNKNOWN if memory.total is None else f"{_format_bytes(memory.total)} at most") + free),
        ("  weights and optimiser", _format_bytes(memory.weights)),
        ("  activations of a step", _UNKNOWN if memory.activations is None else _format_bytes(memory.activations)),
        ("  images in memory", in_memory),
        ("time per step", f"{plan.step_seconds:.3g} s ({low} to {high}, the middle half of {plan.steps_timed})"),
        ("time per epoch", f"{_format_time(plan.epoch_seconds)} including validation"),
        ("epochs", f"{plan.epochs:.3g}" if plan.epochs < 1000 else f"{plan.epochs:,.0f}"),
        ("total time", f"about {duration(plan.total_seconds)}, {startup}"),
        *([("  teacher", f"{_format_time(plan.teacher_seconds)} of it, once")] if plan.teacher_seconds else []),
        ("operations", f"{format_count(plan.total_flops)}FLOPs"),
        ("largest batch", _describe_largest_batch(plan)),
    ]
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for label, text in rows:
        table.add_row(label, Text(text))
    return table


def _describe_largest_batch(plan: Plan) -> str:
    if plan.largest_batch is None:
        return _UNKNOWN
    limit = ", the whole training set" if plan.largest_batch >= plan.pictures["train"] else ""
    method = "verified by a step" if plan.checked else "extrapolated from smaller batches"
    return f"{pluralize(plan.largest_batch, 'image')} in one part{limit} ({method})"


def _format_bytes(count: int) -> str:
    """Format a number of bytes: 85 MiB, 1.4 GiB."""
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"


def _format_time(seconds: float) -> str:
    """Format a duration: 0.42 s, 7:10."""
    from vitreous.train.console import duration

    return f"{seconds:.2g} s" if seconds < 60 else duration(seconds)
