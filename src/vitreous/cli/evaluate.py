"""`vitreous evaluate`: how good a model is on labelled pictures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from jsonargparse.typing import PositiveInt

from vitreous.cli.opening import (
    MODEL_HELP,
    add_augmentation_option,
    add_engine_options,
    add_size_options,
    computed_by,
    opened,
    pace,
)
from vitreous.cli.outputs import JSON_HELP, add_overwrite, files_of_data, files_of_model, outputs
from vitreous.cli.parsing import Parser
from vitreous.cli.terminal import narrate, print_table

__all__ = ["run"]


def _parser() -> Parser:
    parser = Parser(
        "evaluate",
        "MODEL DATA [options]",
        "Score a model on labelled pictures: log loss, top-1, top-5, precision, recall and F1 per class and overall, "
        "and how well its probabilities are calibrated. Classes are matched by name.\n"
        "Which pictures: the data's test split; else its val split; a folder of classes without splits as a whole, "
        "unless the model was trained on it, then the val split that training held out.",
        [
            ("vitreous evaluate runs/photos-1 more-photos/", "one folder per class, named as in training"),
            ("vitreous evaluate runs/digits-1 digits --json scores.json", "a known set; all numbers to a file too"),
            ("vitreous evaluate runs/photos-1 more-photos/ --tta", "what averaging over mirror images gains there"),
        ],
    )
    parser.add_argument("model", type=str, metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "data", type=str, metavar="DATA", help="a folder, a .csv or .parquet manifest, or a known set, as for training"
    )
    parser.add_argument(
        "--split",
        type=Literal["val", "test", "train", "all"] | None,
        metavar="val|test|train|all",
        help="which pictures, if not those said above",
    )
    parser.add_argument("--data-dir", type=str, metavar="DIR", help="where the known sets are [~/.cache/vitreous]")
    parser.add_argument("--json", type=str, metavar="FILE", help=JSON_HELP)
    add_overwrite(parser)
    parser.add_argument("--batch-size", type=PositiveInt, default=32, help="pictures per forward pass")
    parser.add_argument("--device", type=str, default="auto", metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps")
    add_engine_options(parser)
    add_augmentation_option(
        parser,
        "test-time augmentation: average the probabilities of each image and its mirror image, and say what that gains "
        "on these images; takes three times as long, as the scores without are computed too",
    )
    add_size_options(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    files = outputs(options, each=(files_of_model(options.model), files_of_data(options.data, options.data_dir)))
    files.claim("--json", options.json)
    from vitreous.cli import scoring  # here: torch takes seconds, a wrong option should not
    from vitreous.evaluate.calibration import calibrate
    from vitreous.evaluate.metrics import evaluate

    classifier = opened(options)
    classifier.require_classes()
    data = scoring.open_data(classifier.info, options.data, options.data_dir, options.split)
    name, split = scoring.choose_split(data, options.split)
    labels = scoring.labels_by_name(classifier.classes, data, split)
    for note in scoring.remarks(classifier.info, data, name):
        narrate(note)
    engine = classifier.prepare(len(split), options.batch_size)
    if options.merge_tokens:  # now: what does not open should not cost the scores
        whole = opened(options, merge_tokens=0, engine=engine.name, precision=engine.precision)
        whole.prepare(len(split), options.batch_size)
    start = time.perf_counter()
    logits = scoring.logits_of(classifier, split, options.batch_size)
    seconds = time.perf_counter() - start
    narrate(pace(len(split), seconds, classifier, engine))
    scores = evaluate(logits / classifier.info.temperature, labels)
    calibration = calibrate(logits, labels, classifier.info.temperature)
    merging = gain = None
    if options.tta:
        gain = scoring.gain_of_augmentation(
            classifier, split, labels, options.batch_size, logits=logits, seconds=seconds
        )
    if options.merge_tokens:
        merging = scoring.loss_of_merging(whole, split, labels, options.batch_size, scores=scores, seconds=seconds)
    if options.json != "-":
        title = f"{data.name}, {'all pictures' if name == 'all' else name + ' split'}: {scores.n:,} pictures"
        for table in scoring.tables(title, scores, calibration, classifier.classes):
            print_table(table, shorten=range(min(2, len(table.columns) - 2)))  # names of classes
        if merging:
            print_table(scoring.merging_table(options.merge_tokens, merging))
        if gain:
            print_table(scoring.augmentation_table(gain))
    if options.json:
        facts = {"model": options.model, "data": data, "split": name, "classes": classifier.classes}
        how = {**computed_by(classifier, engine), "merge_tokens": options.merge_tokens, "merging": merging}
        how |= {"tta": gain} if gain else {}
        scoring.write_json(files, options.json, scores, calibration, **facts, computed_by=how)
    return 0
