"""`vitreous shard`: pack labelled images into a few large files, which disks and stores read faster."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse.typing import PositiveInt

from vitreous.cli.options.model import add_data, add_data_dir
from vitreous.cli.options.outputs import add_json_options, data_files, make_outputs, write_document
from vitreous.cli.options.parser import Parser
from vitreous.cli.output.terminal import narrate, progress_bar
from vitreous.data.sources.urls import is_store, refuse_url
from vitreous.errors import UsageError, pluralize
from vitreous.files.locating import expand_home
from vitreous.files.text import visible

__all__ = ["run"]

_MIB = 1 << 20


def _parser() -> Parser:
    parser = Parser(
        "shard",
        "DATA DEST [options]",
        "Pack labelled images into shards: tar files of about 64 MiB in the convention of WebDataset, and an index "
        "with the place, label, size and hash of each image. `train`, `evaluate`, `audit` and other verbs take the "
        "folder in place of the images, with the same results: the files are unchanged, and what training holds out "
        "depends on their content.\n"
        "An interrupted job goes on when the same command is run again. Files that cannot be read are left out and "
        "named.",
        [
            ("vitreous shard photos/ shards/", "about as many bytes, in a few files"),
            ("vitreous shard photos/ s3://bucket/shards", "into a store, with pip install 'vitreous[remote]'"),
            ("vitreous train shards/", "the run that `vitreous train photos/` would be"),
        ],
    )
    add_data(parser, model=False)
    add = parser.add_argument
    add(
        "dest", type=str, metavar="DEST", help="folder for the shards, new or empty, also in s3://, gs://, az://, hf://"
    )
    add("--shard-size", type=PositiveInt, default=64, metavar="MIB", help="MiB of images in a shard")
    add("--workers", type=PositiveInt | None, metavar="N", help="images and shards at a time [one per core]")
    add(
        "--exclude",
        type=str | None,
        metavar="FILE",
        help="leave out the images of a list, as `vitreous audit` writes it",
    )
    add("--strict", type=bool, default=False, help="fail if a file cannot be read")
    add("--no-labels", type=bool, default=False, help="images without a label too, for `vitreous pretrain` and --aux")
    add_json_options(parser, content="counts and the files left out")
    add_data_dir(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run the verb."""
    options = _parser().parse_args(argv)
    files = make_outputs(options, (data_files(options.data, options.data_dir, options.exclude),))
    files.claim("--json", options.json)
    from vitreous.data.config import DataConfig
    from vitreous.data.shards.writing.destination import Destination, LocalDestination
    from vitreous.data.shards.writing.writer import write_shards

    config = DataConfig(
        options.data, dir=options.data_dir or DataConfig.dir, exclude=options.exclude, strict=options.strict
    )
    destination: Destination
    if is_store(options.dest):
        from vitreous.data.shards.writing.remote_destination import RemoteDestination

        destination = RemoteDestination(options.dest, overwrite=options.overwrite)
    else:
        refuse_url(options.dest, as_data=True)
        destination = LocalDestination(expand_home(options.dest), overwrite=options.overwrite)
    if _place(options.data) == _place(options.dest):
        raise UsageError(f"DATA and DEST are both '{visible(options.dest)}': name another folder for the shards")
    if _is_file_in(options.data, options.dest):
        raise UsageError(
            f"DATA lies in DEST, '{visible(options.dest)}', which the shards replace: name another folder for them"
        )
    written = write_shards(
        config,
        destination,
        shard_bytes=options.shard_size * _MIB,
        workers=options.workers,
        needs_labels=not options.no_labels,
        bar=progress_bar,
    )
    for note in written.notes:
        narrate(note)
    if written.unreadable:
        name, reason = written.unreadable[0]
        count = pluralize(len(written.unreadable), "file")
        narrate(f"unreadable: {count} left out (first: {visible(name)}: {reason})")
    earlier = f", {written.kept:,} of them by the interrupted job" if written.kept else ""
    size, dest = f"{written.bytes / _MIB:,.1f} MiB", visible(options.dest)
    narrate(f"{pluralize(written.images, 'image')} in {pluralize(written.shards, 'shard')} of {size}{earlier}: {dest}")
    if options.json:
        left_out = [{"path": name, "reason": reason} for name, reason in written.unreadable]
        counts = {"images": written.images, "shards": written.shards, "bytes": written.bytes, "kept": written.kept}
        write_document(
            files, options.json, {"data": options.data, "dest": options.dest, **counts, "unreadable": left_out}
        )
    return 0


def _place(word: str) -> str:
    """Return where a path or address leads."""
    return word.rstrip("/") if is_store(word) else str(expand_home(word).resolve())


def _is_file_in(data: str, dest: str) -> bool:
    """Whether DATA is a file of the folder DEST, such as one of its shards."""
    if is_store(data) or is_store(dest):
        return False
    path = expand_home(data)
    return path.is_file() and path.resolve().parent == expand_home(dest).resolve()
