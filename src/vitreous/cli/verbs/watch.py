"""`vitreous watch`: predictions of the images that arrive in a folder, appended to a CSV file."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence

from jsonargparse.typing import PositiveFloat, PositiveInt

from vitreous.cli.options.model import MODEL_HELP, add_inference_options, add_threshold_option, load_model
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate
from vitreous.errors import DataError, UsageError, pluralize
from vitreous.files.locating import expand_home
from vitreous.files.text import visible

__all__ = ["run"]


def _parser() -> Parser:
    parser = Parser(
        "watch",
        "FOLDER --model MODEL [options]",
        "Classify the images in a folder, then those that arrive in it, and append a row for each to a CSV file. A "
        "file is read once it has stopped changing. Rows are never repeated or lost: after a restart, or a crash, the "
        "file itself says what is done. Ctrl-C or SIGTERM ends it. An image that cannot be read gets a row with the "
        "reason.",
        [
            ("vitreous watch inbox/ --model runs/photos-1", "rows go to inbox/predictions.csv"),
            ("vitreous watch inbox/ --model runs/photos-1 -o labels.csv --once", "what is there now, then end"),
        ],
    )
    add = parser.add_argument
    add("folder", type=str, metavar="FOLDER", help="folder of images, at any depth")
    add("--model", type=str, metavar="MODEL", required=True, help=MODEL_HELP)
    add("-o", "--output", type=str | None, metavar="FILE", help="CSV file to append to [predictions.csv in FOLDER]")
    add("--top-k", type=PositiveInt, default=1, help="classes per image")
    add("--every", type=PositiveFloat, default=1.0, metavar="S", help="seconds between looks at the folder")
    add("--settle", type=PositiveFloat, default=1.0, metavar="S", help="seconds that a file must not have changed")
    add("--once", type=bool, default=False, help="end when every file that is there is done")
    add_threshold_option(parser)
    add_inference_options(parser, engines=True)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    folder = expand_home(options.folder)
    if not folder.is_dir():
        raise DataError(f"'{visible(options.folder)}' is no folder: name one whose images to classify")
    output = expand_home(options.output) if options.output else folder / "predictions.csv"
    if output.is_dir():
        raise UsageError(f"-o is '{visible(str(output))}', a folder: name a file in it")
    from vitreous.serve.folder_watch import FolderWatch, Table, columns

    classifier = load_model(options)
    classifier.require_classes()
    top_k = min(options.top_k, len(classifier.classes))
    info = classifier.info
    rules = {"unsure": info.abstention, "set": info.conformal, "labels": info.multilabel}
    thresholds = [name for name, rule in rules.items() if rule is not None]
    with Table(output, columns(top_k, thresholds)) as table, _ending() as ended:
        if table.done:
            narrate(f"{pluralize(len(table.done), 'file')} in {visible(str(output))} already")
        watch = FolderWatch(folder, table, classifier, top_k=top_k, batch_size=options.batch_size)
        narrate(
            f"watching {visible(str(folder))}, rows go to {visible(str(output))}" if not options.once else "reading"
        )
        written = watch.run(ended, every=options.every, settle=options.settle, once=options.once, tell=narrate)
    narrate(f"{pluralize(written, 'row')} appended to {visible(str(output))}")
    return 0


class _ending:  # noqa: N801 - used as a function
    """An event that Ctrl-C and SIGTERM set, so that the batch that is computed is written."""

    def __enter__(self) -> threading.Event:
        event = threading.Event()
        self.before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, lambda *_: event.set())
        return event

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
