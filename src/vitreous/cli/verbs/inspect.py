"""`vitreous inspect`: what a model looks at, and what it has learned."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from vitreous.cli.options.inputs import expand, image_files
from vitreous.cli.options.map_methods import METHODS, add_method_options, chosen_methods, print_method_help
from vitreous.cli.options.model import MODEL_HELP, add_data_dir, add_inference_options
from vitreous.cli.options.outputs import add_json_options, data_files, make_outputs, model_files, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate, print_table
from vitreous.errors import OutputError, UsageError
from vitreous.files.locating import expand_home
from vitreous.files.text import visible

if TYPE_CHECKING:
    from vitreous.evaluate.scoring.intervals import Interval
    from vitreous.files.writing import Outputs
    from vitreous.report.inspection.results import Comparison, Inspection

__all__ = ["parsed", "run", "written"]


def _parser() -> Parser:
    parser = Parser(
        "inspect",
        "MODEL [IMAGES...] [options]",
        "Look inside a model. The result is a folder with one page for a browser, inspection.html, which needs no "
        "network; the same as PNG files; and every number in inspection.json.\n"
        "Of each image: class maps, that is, which patches speak for a class; attention rollout; what every patch "
        "attends to, by block and head; and patches coloured by their features.\n"
        "With --data, also the most similar training images and patches, accuracy by depth, and a comparison of map "
        "methods: does the prediction depend on the patches that a map shows, more than on random ones? A method that "
        "fails is marked beside its maps. Ten or more IMAGES are compared without --data.\n"
        "Of the model: patch filters and position embeddings; and with images, how far attention reaches, norms of "
        "tokens, and the similarity of blocks. An unreadable image is reported and skipped; the exit code is then 1.",
        [
            ("vitreous inspect runs/photos-1", "the model alone: filters and positions"),
            ("vitreous inspect runs/photos-1 cat.jpg dog.jpg", "two images; the page is runs/photos-1/inspection/"),
            ("vitreous inspect runs/photos-1 cat.jpg --data photos/", "with neighbours, and maps put to the test"),
            ("vitreous inspect model.safetensors cat.jpg --target dog --methods legrad,occlusion", "why not a dog?"),
            ("vitreous inspect runs/photos-1 cat.jpg --register-neurons 10", "without and with a test-time register"),
            ("vitreous inspect runs/photos-1 cat.jpg --rollout.fusion max", "rollout by the head that attends most"),
        ],
    )
    add = parser.add_argument
    add("model", type=str, metavar="MODEL", help=MODEL_HELP)
    images = "files, folders, quoted globs, or - for a list on stdin; a page of more than about 20 is slow to read"
    add("images", type=str, nargs="*", default=[], metavar="IMAGES", help=images)
    add("--data", type=str | None, metavar="DATA", help="labelled images: a folder, a manifest, or a known dataset")
    splits = "images of DATA on which maps are compared, instead of the split that `vitreous evaluate` takes"
    add("--split", type=Literal["val", "test", "train", "all"] | None, metavar="val|test|train|all", help=splits)
    methods = f"map methods, beside rollout, which is always shown: {', '.join(METHODS)}; `--help methods` has their "
    methods += "options, such as --rollout.fusion max"
    add("--methods", type=list[str], default=["gradient-attention"], metavar="A,B", help=methods)
    add("--target", type=str | None, metavar="CLASS", help="name or number of the class to explain [the predicted one]")
    layers = "blocks whose attention is shown, from 0, or from the end with negative numbers [all]"
    add("--layers", type=list[int], default=[], metavar="N,N", help=layers)
    neurons = "move outlier tokens to a test-time register (arXiv 2506.08010): at most so many neurons that cause "
    neurons += "them, such as 10; the page shows norms, maps and accuracy with and without"
    add("--register-neurons", type=NonNegativeInt, default=0, metavar="N", help=neurons)
    budget = "time for comparing map methods, such as 30s or 5m; it decides on how many images of DATA"
    add("--budget", type=str, default="30s", metavar="TIME", help=budget)
    add("--out", type=str | None, metavar="DIR", help="folder to write to [inspection, next to the model]")
    add_data_dir(parser)
    add_json_options(parser)
    add_inference_options(parser)
    return parser


def parsed(argv: Sequence[str]) -> Namespace:
    """Parse the arguments after the verb, and check what needs no model."""
    words = list(argv)[: list(argv).index("--")] if "--" in argv else list(argv)
    if any(pair in (("--help", "methods"), ("-h", "methods")) for pair in itertools.pairwise(words)):
        print_method_help()
        raise SystemExit(0)
    parser = _parser()
    if not {"-h", "--help"} & set(words):  # these options import torch, and have a help of their own
        add_method_options(parser)
    options = parser.parse_args(argv)
    if options.target is not None and not options.images:
        raise UsageError("--target is the class that maps of images explain: give IMAGES too, or remove it")
    if options.register_neurons and not options.images and options.data is None:
        raise UsageError("--register-neurons looks for outlier tokens in images: give IMAGES, --data, or both")
    if options.split is not None and options.data is None:
        raise UsageError(f"--split {options.split} is a split of DATA: give --data too, or remove it")
    from vitreous.train.config import parse_duration  # imports torch

    parse_duration(options.budget)
    chosen_methods(options)
    return options


def run(argv: Sequence[str]) -> int:
    """Run the verb; exit code 1 if an image could not be read."""
    options = parsed(argv)
    files = _outputs(options)
    files.claim("--json", options.json)
    from vitreous.cli.work.inspecting.inspection import inspected

    paths = expand(options.images)
    files.reads(each=lambda: paths)
    result = inspected(options, paths)
    for name, reason in result.failures:
        narrate(f"vitreous: {visible(name)}: {reason}")
    for note in result.notes:
        narrate(note)
    if options.json != "-" and result.comparison is not None:
        print_table(_table(result.comparison))
    written(result, options, files)
    if options.json:
        write_document(files, options.json, result.to_dict())
    return 1 if result.failures else 0


def written(result: Inspection, options: Namespace, files: Outputs | None = None) -> None:
    """Write the page, the JSON document and the PNG files, and say where they are."""
    from vitreous.report.inspection.writing import write

    folder, files = _out_folder(options), files or _outputs(options)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot create '{visible(str(folder))}': {error.strerror or error}; name another") from error
    paths = write(result, folder, files)
    narrate(f"{visible(str(paths[0]))}: open it in a browser; beside it {len(paths) - 1} files")


def _outputs(options: Namespace) -> Outputs:
    """Return the writer of the verb's files, after checking that the page may be written."""
    from vitreous.report.inspection.writing import JSON, PAGE

    inputs = [model_files(options.model), image_files(options.images)]
    inputs += [data_files(options.data, options.data_dir)] if options.data else []
    files, folder = make_outputs(options, inputs), _out_folder(options)
    for name in (PAGE, JSON) if folder.is_dir() else ():
        files.claim("--out", folder / name)
    return files


def _out_folder(options: Namespace) -> Path:
    """Return the folder to write to, which exists or can be created."""
    source = expand_home(options.model)
    beside = source if source.is_dir() else source.parent if source.exists() else Path()
    folder = expand_home(options.out) if options.out else beside / "inspection"
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"cannot write to '{visible(str(folder))}': it is a file; name a folder with --out")
    if not folder.parent.is_dir():
        raise OutputError(
            f"cannot create '{visible(str(folder))}': the folder '{visible(str(folder.parent))}' does not exist"
        )
    return folder


def _table(found: Comparison) -> Table:
    title = f"{found.rows[0].images:,} images of {visible(found.source)}"
    table = Table("map method", box=SIMPLE_HEAD, title=Text(title, style="bold"), title_justify="left")
    for heading in ("SaCo", "95 % interval", "deletion", "insertion", "after randomisation"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in found.rows:
        again = found.randomisation.get(row.method)
        table.add_row(
            row.method,
            f"{row.saco.value:.3f}",
            _range(row.saco),
            f"{row.deletion.value:.3f}",
            f"{row.insertion.value:.3f}",
            f"{again.value:.2f}" if again else "",
            "control" if row.method == "random" else row.verdict,
        )
    return table


def _range(interval: Interval) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f}"
