"""`vitreous probe`: how much a model's features know about classes, its own or new ones, without training it."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse.typing import PositiveInt

from vitreous.cli.options.model import MODEL_HELP, add_size_options, opened
from vitreous.cli.options.outputs import JSON_HELP, add_overwrite, files_of_data, files_of_model, outputs
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import bar, narrate, print_table
from vitreous.errors import UsageError

__all__ = ["run"]


def _parser() -> Parser:
    parser = Parser(
        "probe",
        "MODEL DATA [options]",
        "Say how well a model's frozen features tell classes apart: k nearest neighbours, logistic regression (the "
        "linear probe), and least squares from a few pictures per class. The classes may be others than the model's.\n"
        "The data's train split fits; its val split, and its test split where there is one, are scored. The linear "
        "probe's C is chosen on val where a test split remains to judge by, else on a fifth of train. Data without a "
        "val split gives one by content, as for training.",
        [
            ("vitreous probe runs/photos-1 flowers/", "what features learned on photos are worth on flowers"),
            ("vitreous probe model.safetensors digits --shots 1,10 --seeds 20 --json probe.json", "more draws"),
            ("vitreous probe model.safetensors flowers/ --whiten --l2 1024", "few shots by big_vision's protocol"),
        ],
    )
    add = parser.add_argument
    add("model", type=str, metavar="MODEL", help=MODEL_HELP)
    add("data", type=str, metavar="DATA", help="a folder, a .csv or .parquet manifest, or a known set, as for training")
    add("--k", type=str, default="10,20,100,200", metavar="N,...", help="neighbours that vote")
    add("--temperature", type=float, default=0.07, help="a neighbour's vote is exp(cosine similarity / temperature)")
    add("--shots", type=str, default="1,5,10,25", metavar="N,...", help="pictures per class for few shots; none: skip")
    add("--seeds", type=PositiveInt, default=5, help="draws of the shots: the mean and standard deviation are shown")
    add("--whiten", type=bool, default=False, help="standardise few-shot features over the shots, as big_vision does")
    add(
        "--l2", type=float | None, help="few-shot regularisation; not given: chosen on train pictures that are no shots"
    )
    add("--data-dir", type=str, metavar="DIR", help="where the known sets are [~/.cache/vitreous]")
    add("--json", type=str, metavar="FILE", help=JSON_HELP)
    add_overwrite(parser)
    add("--batch-size", type=PositiveInt, default=32, help="pictures per forward pass")
    add("--device", type=str, default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps")
    add_size_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    neighbours = _numbers("--k", options.k)
    shots = () if options.shots == "none" else _numbers("--shots", options.shots)
    files = outputs(options, each=(files_of_model(options.model), files_of_data(options.data, options.data_dir)))
    files.claim("--json", options.json)
    from vitreous.cli.work import (
        probing,
        scoring,  # here: torch takes seconds, a wrong option should not
    )
    from vitreous.evaluate.probes import probe_report

    classifier = opened(options)
    data = scoring.open_data(classifier.info, options.data, options.data_dir, "val")  # any but all: split as training
    for note in probing.remarks(classifier.info, data):
        narrate(note)
    features = {name: probing.features_of(classifier, data, name, options.batch_size) for name in data.splits}
    test = data.splits.get("test")
    with bar("probe") as at:
        report = probe_report(
            features["train"],
            data.splits["train"].labels,
            features["val"],
            data.splits["val"].labels,
            test=(features["test"], test.labels) if test else None,
            neighbours=neighbours,
            temperature=options.temperature,
            shots=shots,
            seeds=options.seeds,
            whiten=options.whiten,
            l2=options.l2,
            device=str(classifier.device) if classifier.device.type == "cuda" else "cpu",
            progress=at,
        )
    for note in report.notes:
        narrate(note)
    if options.json != "-":
        print_table(probing.table(data.name, report), drop=("setting",))
    if options.json:
        probing.write_json(files, options.json, report, model=options.model, data=data)
    return 0


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """Read 1,5,10: whole numbers of at least 1, in rising order."""
    words = [word.strip() for word in text.strip("[]()").split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"{option} is '{text}', it must be whole numbers of at least 1, such as 1,5,10")
    return tuple(sorted({int(word) for word in words}))
