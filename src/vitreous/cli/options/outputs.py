"""What the verbs share in writing where the user said: `--overwrite`, `--json`, and what is refused before any work."""

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
from vitreous.files.text import json_text
from vitreous.files.writing import Outputs, Read

__all__ = ["JSON_HELP", "add_overwrite", "files_of_data", "files_of_model", "outputs", "write_document"]

JSON_HELP = "write one JSON document with every number there; - is standard output, which then has nothing else"

_BESIDE = ("config.json", "preprocessor_config.json")
_WEIGHTS = (".safetensors", ".bin", ".npz", ".pth", ".pt", ".ckpt", ".index.json")


def add_overwrite(parser: Parser) -> None:
    """Add the option without which no file that is there is replaced."""
    parser.add_argument("--overwrite", type=bool, default=False, help="replace output files that are there already")


def outputs(options: Namespace | Mapping[str, Any], each: Iterable[Callable[[], Iterable[Read]]] = ()) -> Outputs:
    """Return what writes a command's files; ``each`` lists files that it reads, and is asked where one would go."""
    made = Outputs(bool(options.get("overwrite")))
    for files in each:
        made.reads(each=files)
    return made


def files_of_model(source: str | None) -> Callable[[], Iterable[Path]]:
    """Return what lists the files that a model is read from, as far as they lie where the user says."""

    def files() -> Iterable[Path]:
        path = Path(source or "").expanduser()
        if source and path.is_file():
            yield from (path, path.with_suffix(".json"), *(path.parent / name for name in _BESIDE))
        elif source and path.is_dir():
            yield from (path / name for name in _BESIDE)
            yield from (file for file in path.iterdir() if file.name.endswith(_WEIGHTS))

    return files


def files_of_data(source: str, folder: str | None = None, *lists: str | None) -> Callable[[], Iterable[Path]]:
    """Return what lists the files that labelled images are read from.

    Args:
        source: A folder, a manifest or a known set, as DATA is given.
        folder: Where known sets are.
        lists: Further files, such as a list of exclusions.
    """

    def files() -> Iterable[Path]:
        yield from (Path(each).expanduser() for each in lists if each)
        path = Path(source).expanduser()
        with contextlib.suppress(VitreousError):  # data that cannot be listed is told where it is opened
            if path.is_file():
                from vitreous.data.sources.manifest import (
                    list_manifest,  # here: it loads Pillow, which is not always needed
                )

                yield path
                yield from (entry.path for entry in list_manifest(path).entries)
            elif path.is_dir():
                from vitreous.data.sources.finding import find_pictures

                yield from find_pictures(path)[0]
            else:
                for parent, _, names in os.walk(Path(folder or DataConfig.dir).expanduser()):
                    yield from (Path(parent, name) for name in names)

    return files


def write_document(files: Outputs, file: str, document: Mapping[str, Any]) -> None:
    """Write a document as JSON, whole or not at all; ``file`` ``-`` is standard output."""
    text = json_text(document, indent=2, ascii_only=True) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    with files.replacing(file) as path:
        path.write_text(text, encoding="utf-8")
