"""`vitreous plan`: what a training will take on this machine, before it is begun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from vitreous.cli.options.outputs import files_of_data, files_of_model, outputs, write_document
from vitreous.cli.output.terminal import narrate, number, print_table
from vitreous.cli.verbs.train import process_started, resolve, train_parser
from vitreous.data.sources.listing import many
from vitreous.errors import UsageError

if TYPE_CHECKING:
    from vitreous.train.planning.plan import Plan

__all__ = ["run"]

_HELP = """\
Tell what a training will take on this machine: memory, time of an epoch and of all, operations, and the largest batch \
that fits. It makes a few of the run's own steps, keeps nothing of them, and writes no folder.

examples:
  vitreous plan photos/ --model S/16 --epochs 30
      the words of the training that is meant: every option of `vitreous train` can be given
  vitreous plan cifar10 --budget 25m --json plan.json
      how many epochs a budget allows, and all figures for a program

recipes:
"""


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    end = argv.index("--") if "--" in argv else len(argv)
    words = [word for n, word in enumerate(argv) if n >= end or word != "--resume"]
    parser = train_parser("plan", "DATA [--json FILE] [options of vitreous train]", _HELP)
    config, given, typed = resolve(words, parser)
    if typed.get("show_batch") or typed.get("print_config"):
        raise UsageError("--show-batch and --print-config train nothing, so there is nothing to plan: leave them away")
    where = files_of_data(config.data.source, config.data.dir, config.data.exclude)
    files = outputs(typed, each=(where, files_of_model(config.tune.source)))
    files.claim("--json", typed.get("json"))
    from vitreous.train.planning.plan import plan  # here: torch takes seconds, a typo should not

    if sys.stderr.isatty():  # somebody waits
        narrate("measuring: some steps of this run are made, which takes minutes where the model is large")
    found = plan(config, keep=given, started=process_started())
    if typed.get("json"):
        write_document(files, str(typed["json"]), found.to_dict())
    if typed.get("json") != "-":
        print_table(_table(found), sys.stdout)
        from vitreous.train.console import View

        View().advice(found.advice)
    return 0


def _table(found: Plan) -> Table:
    """The figures for people."""
    from vitreous.train.console import duration

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    memory, part = found.memory, -(-found.batch_size // found.parts)
    low, high = (f"{seconds:.3g}" for seconds in found.step_spread)
    cut = f" in {found.parts} parts of {part}" if found.parts > 1 else ""
    pictures = ", ".join(f"{count:,} {name}" for name, count in found.pictures.items())
    held = (
        f"{_size(memory.pictures)} of main memory" if memory.pictures else "none are held: they are read as they come"
    )
    fits = "" if memory.left is None else f", of {_size(memory.left)} that were free"
    spread = f"{low} to {high}, the middle half of {found.steps_timed}"
    rows = [
        ("model", found.model),
        ("machine", found.machine),
        ("pictures", pictures),
        ("batch", f"{many(found.batch_size, 'picture')}{cut}, {many(found.steps_per_epoch, 'step')} per epoch"),
        ("memory", _total(found) + fits),
        ("  weights and optimiser", _size(memory.weights)),
        (
            "  activations of a step",
            "not known on this device" if memory.activations is None else _size(memory.activations),
        ),
        ("  pictures held", held),
        ("time per step", f"{found.step_seconds:.3g} s ({spread})"),
        ("time per epoch", f"{_time(found.epoch_seconds)} with its validation"),
        ("epochs", f"{found.epochs:.3g}" if found.epochs < 1000 else f"{found.epochs:,.0f}"),
        (
            "time in all",
            f"about {duration(found.total_seconds)}, {_time(found.start_seconds)} of it before the first step",
        ),
        ("operations", f"{number(found.total_flops)}FLOPs"),
        ("largest batch", _largest(found)),
    ]
    for label, text in rows:
        table.add_row(label, Text(text))
    return table


def _total(found: Plan) -> str:
    total = found.memory.total
    return "not known on this device" if total is None else f"{_size(total)} at most"


def _largest(found: Plan) -> str:
    if found.largest_batch is None:
        return "not known on this device"
    limit = ", all there are for training" if found.largest_batch >= found.pictures["train"] else ""
    how = "a step of them was made" if found.checked else "from the growth of smaller ones"
    return f"{many(found.largest_batch, 'picture')} in one part{limit} ({how})"


def _size(count: int) -> str:
    """Write a number of bytes: 85 MiB, 1.4 GiB."""
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"


def _time(seconds: float) -> str:
    """Write a time: 0.42 s, 7:10."""
    from vitreous.train.console import duration

    return f"{seconds:.2g} s" if seconds < 60 else duration(seconds)
