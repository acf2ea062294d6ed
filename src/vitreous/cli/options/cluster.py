"""The option `--on`: where a verb computes, if not in this process. Imports nothing of Ray, nor of what uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt

from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate
from vitreous.errors import OutputError, UsageError
from vitreous.files.locating import expand_home

if TYPE_CHECKING:
    from vitreous.predictor import Classifier

__all__ = ["add_cluster_options", "discard_parts", "on_cluster", "refuse_idle", "split_on"]

_ON_HELP = (
    "compute on a Ray cluster: ray://HOST:PORT, ray://auto on one of its machines, or ray://local for a cluster of "
    "this machine (docs/how-to/cluster.md)"
)


def add_cluster_options(parser: Parser, parts: bool = True) -> None:
    """Add ``--on`` and ``--workers``, and for verbs with results in parts ``--parts``."""
    add = parser.add_argument
    add("--on", type=str | None, metavar="ADDRESS", help=_ON_HELP)
    add(
        "--workers",
        type=PositiveInt | None,
        metavar="N",
        help="with --on, processes that keep the model loaded [one per GPU; without GPUs one per machine, at least 2]",
    )
    if not parts:
        return
    add(
        "--parts",
        type=str | None,
        metavar="DIR",
        help="with --on, keep the results as Parquet files in DIR, too: the same command continues with those that are "
        "there. Without it they are in FILE.parts beside the output until that is written",
    )


def on_cluster(options: Namespace, local: Mapping[str, Any]) -> Classifier:
    """Return the classifier of a verb with ``--on``; ``local`` are the arguments of ``load`` on this machine."""
    from vitreous.cluster.address import check_address, shared_path

    check_address(options.on)
    from vitreous.cluster.classifier import ClusterClassifier  # imports torch
    from vitreous.cluster.pool import pool_for
    from vitreous.predictor import load

    arguments = {name: value for name, value in local.items() if name != "tell"}
    arguments["source"] = shared_path(local["source"])
    pool = pool_for(options.on, options.workers, options.device, narrate)  # starts while the model is loaded here
    here = load(**{**arguments, "device": "cpu", "engine": "torch", "precision": "float32"})
    return ClusterClassifier(here, pool, arguments, _parts(options))


def discard_parts(options: Namespace) -> None:
    """Remove the parts beside an output that is now complete; those in a folder of the user's remain."""
    if options.on and not options.parts and (folder := _parts(options)) is not None:
        from vitreous.cluster.parts import discard

        discard(folder)


def refuse_idle(options: Namespace) -> None:
    """Raise if options of a cluster are given without one."""
    for name in ("workers", "parts"):
        if options.get(name) and not options.get("on"):
            raise UsageError(f"--{name} is for a cluster: give --on too, such as --on ray://local, or remove it")


def split_on(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of ``--on`` in the arguments of a training, and the other arguments."""
    end = argv.index("--") if "--" in argv else len(argv)
    address, rest, words = None, [], iter(argv[:end])
    for word in words:
        if word == "--on":
            address = next(words, "")
        elif word.startswith("--on="):
            address = word.partition("=")[2]
        else:
            rest.append(word)
    if address is not None:
        from vitreous.cluster.address import check_address

        check_address(address)
    return address, [*rest, *argv[end:]]


def _parts(options: Namespace) -> Path | None:
    """Return the folder of the finished parts; None if the output is no file, and so has no folder beside it."""
    if options.parts:
        folder = expand_home(options.parts)
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"--parts is '{options.parts}', which is a file: name a folder")
        return folder
    output = options.get("output") or options.get("json")
    if not output or output == "-" or (Path(output).exists() and not Path(output).is_file()):
        return None
    return Path(f"{output}.parts")
