"""`vitreous probe`: measure how well the frozen features of a model separate classes, its own or new ones."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse.typing import PositiveInt

from vitreous.cli.options.model import add_data, add_data_dir, add_inference_options, load_model
from vitreous.cli.options.outputs import add_json_options, data_files, make_outputs, model_files
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate, print_table, progress_bar
from vitreous.errors import UsageError

__all__ = ["run"]

_SHOTS = "1,5,10,25"


def _parser() -> Parser:
    parser = Parser(
        "probe",
        "MODEL DATA [options]",
        "Measure how well a model's frozen features separate classes: k nearest neighbours, logistic regression (the "
        "linear probe), and least squares on a few images per class. The classes may differ from the model's. "
        "Of several labels, each has a logistic regression, the scores are mAP, and there are no few shots.\n"
        "The probes are fitted on the train split of the data and scored on val, and on test if there is one. The C of "
        "the linear probe is chosen on val if test remains for scoring, else on a fifth of train. Data without a val "
        "split is split as for training.",
        [
            ("vitreous probe runs/photos-1 flowers/", "how well features learned on photos separate flowers"),
            ("vitreous probe model.safetensors digits --shots 1,10 --seeds 20 --json probe.json", "more draws"),
            ("vitreous probe model.safetensors flowers/ --whiten --l2 1024", "few shots by big_vision's protocol"),
        ],
    )
    add_data(parser)
    add = parser.add_argument
    add("--k", type=str, default="10,20,100,200", metavar="N,...", help="neighbours that vote")
    add("--temperature", type=float, default=0.07, help="a neighbour's vote is exp(cosine similarity / temperature)")
    add("--shots", type=str, default=_SHOTS, metavar="N,...", help="images per class for few shots; none: skip")
    add("--seeds", type=PositiveInt, default=5, help="draws of the shots: the mean and standard deviation are shown")
    add("--whiten", type=bool, default=False, help="standardise few-shot features over the shots, as big_vision does")
    add("--l2", type=float | None, help="few-shot regularisation; by default chosen on train images that are not shots")
    add_data_dir(parser)
    add_json_options(parser)
    add_inference_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    parser = _parser()
    options = parser.parse_args(argv)
    neighbours = _parse_numbers("--k", options.k)
    shots = () if options.shots == "none" else _parse_numbers("--shots", options.shots)
    if not shots and (options.whiten or options.l2 is not None or options.seeds != parser.get_default("seeds")):
        raise UsageError("--seeds, --whiten and --l2 are for few shots, which --shots none skips: remove them")
    files = make_outputs(options, (model_files(options.model), data_files(options.data, options.data_dir)))
    files.claim("--json", options.json)
    from vitreous.cli.work import probing  # imports torch
    from vitreous.cli.work.evaluating import scoring
    from vitreous.evaluate.features.probes import probe_report

    classifier = load_model(options)
    # "val", to split as training did
    data = scoring.open_data(
        classifier.info, options.data, options.data_dir, "val", several=True, unlabelled="left out"
    )
    if data.several:
        if options.shots not in (_SHOTS, "none") or options.whiten or options.l2 is not None:
            raise UsageError("few shots need one class of each image: leave --shots, --whiten and --l2 out")
        shots = ()
    for note in probing.data_notes(classifier.info, data):
        narrate(note)
    features = {name: probing.compute_features(classifier, data, name, options.batch_size) for name in data.splits}
    test = data.splits.get("test")
    with progress_bar("probe") as update:
        report = probe_report(
            features["train"],
            data.splits["train"].labels,
            features["val"],
            data.splits["val"].labels,
            test=(features["test"], test.labels) if test else None,
            neighbours=neighbours,
            shots=shots,
            **{name: options[name] for name in ("temperature", "seeds", "whiten", "l2")},
            device=str(classifier.device) if classifier.device.type == "cuda" else "cpu",
            progress=update,
        )
    for note in report.notes:
        narrate(note)
    if options.json != "-":
        print_table(probing.probe_table(data.name, report), drop=("setting",))
    if options.json:
        probing.write_json(files, options.json, report, model=options.model, data=data)
    return 0


def _parse_numbers(option: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.strip("[]()").split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"{option} is '{text}', it must be whole numbers of at least 1, such as 1,5,10")
    return tuple(sorted({int(word) for word in words}))
