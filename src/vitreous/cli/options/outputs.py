"""Options of the files that a verb writes, and the checks that no file it reads or keeps is overwritten."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from vitreous.cli.options.parser import Parser
from vitreous.data.config import DataConfig
from vitreous.errors import VitreousError
from vitreous.files.locating import expand_home
from vitreous.files.text import json_text
from vitreous.files.writing import Outputs, Read

__all__ = ["add_json_options", "add_preview_options", "data_files", "make_outputs", "model_files", "write_document"]

_CONFIG_FILES = ("config.json", "preprocessor_config.json")
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".npz", ".pth", ".pt", ".ckpt", ".index.json")


def add_json_options(parser: Parser, content: str = "every number") -> None:
    """Add ``--json`` and ``--overwrite``; ``content`` says what the JSON document contains."""
    parser.add_argument(
        "--json",
        type=str | None,
        metavar="FILE",
        help=f"write one JSON document with {content}; - is standard output, which then has nothing else",
    )
    parser.add_argument("--overwrite", type=bool, default=False, help="replace existing output files")


def add_preview_options(parser: Parser) -> None:
    """Add the options that inspect a run without training, and those of the JSON document."""
    parser.add_argument(
        "--show-batch", type=str | None, metavar="[FILE.png]", help="draw an augmented batch and exit [batch.png]"
    )
    parser.add_argument("--print-config", action="store_true", help="print every setting as YAML and exit")
    add_json_options(parser)


def make_outputs(
    options: Namespace | Mapping[str, Any], inputs: Iterable[Callable[[], Iterable[Read]]] = ()
) -> Outputs:
    """Return the writer of a verb's output files; ``inputs`` list the files it reads, which are never overwritten."""
    files = Outputs(bool(options.get("overwrite")))
    for list_files in inputs:
        files.reads(each=list_files)
    return files


def model_files(source: str | None) -> Callable[[], Iterable[Path]]:
    """Return a function that lists the local files a model is read from."""

    def list_files() -> Iterable[Path]:
        path = expand_home(source or "")
        if source and path.is_file():
            yield from (path, path.with_suffix(".json"), *(path.parent / name for name in _CONFIG_FILES))
        elif source and path.is_dir():
            yield from (path / name for name in _CONFIG_FILES)
            yield from (file for file in path.iterdir() if file.name.endswith(_WEIGHT_SUFFIXES))

    return list_files


def data_files(source: str, folder: str | None = None, *lists: str | None) -> Callable[[], Iterable[Path]]:
    """Return a function that lists the files of DATA, with ``folder`` that of the known datasets, and further files."""

    def list_files() -> Iterable[Path]:
        yield from (expand_home(each) for each in lists if each)
        path = expand_home(source)
        with contextlib.suppress(VitreousError):  # reported when the data is opened
            if path.is_file():
                from vitreous.data.sources.manifest import list_manifest  # imports Pillow

                yield path
                yield from (Path(entry.path) for entry in list_manifest(path, needs_labels=False).entries)
            elif path.is_dir():
                from vitreous.data.sources.finding import find_images

                yield from find_images(path)[0]
                yield from (*path.glob("*.tar"), *path.glob("*.parquet"), path / "index.json")  # shards
            else:
                for parent, _, names in os.walk(expand_home(folder or DataConfig.dir)):
                    yield from (Path(parent, name) for name in names)

    return list_files


def write_document(files: Outputs, file: str, document: Mapping[str, Any]) -> None:
    """Write a document as JSON, completely or not at all; ``-`` is standard output."""
    text = json_text(document, indent=2, ascii_only=True) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    with files.atomic_write(file) as path:
        path.write_text(text, encoding="utf-8")
