"""Checks a .pt2 archive that may come from anyone, before torch reads it: it must not hold what torch would execute.

:func:`torch.export.load` unpickles some entries, evaluates expressions of sizes as Python, and loads libraries.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import CheckpointError, first_line

__all__ = ["COMPILED", "checked_archive"]

COMPILED = "data/aotinductor/"
"""Where an archive has machine code."""

_MAX_JSON = 256 << 20  # bytes of the graph
_PLAIN = re.compile(r"data/(weights|constants)/(weight|tensor)_\d+|extra/[\w.]+|\.?\w[\w./]*(version|format)|byteorder")
_JSON = re.compile(r"models/\w+\.json|data/(weights|constants)/\w+_config\.json")
_FUNCTIONS = {"Symbol", "Integer", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "PythonMod", "FloorDiv"}
_WORDS = _FUNCTIONS | {"positive", "nonnegative", "integer", "real", "True", "False"}
_SYMBOL = re.compile(r"'([su]\d+)'")
_EXPRESSION = re.compile(r"[\w\s+*/(),=-]{0,2000}")
_TARGET = re.compile(r"torch\.ops\.(aten|higher_order)\.\w+(\.\w+)?|_operator\.\w+|torch\.sym_\w+")
_BITWISE = ("__and__", "__or__", "__xor__")  # operators of aten
_REFUSED = ("from_file", "methodcaller", "attrgetter", "call")  # parts of targets that reach beyond tensors


def checked_archive(file: Path) -> io.BytesIO:
    """Return the content of an archive that holds only tensors, a graph of torch's operators, and text.

    Raises:
        CheckpointError: If it holds anything else, or is damaged.
    """
    try:
        content = io.BytesIO(file.read_bytes())
        with zipfile.ZipFile(content) as archive:
            for entry in archive.infolist():
                _check(file, archive, entry)
    except (OSError, ValueError, zipfile.BadZipFile, RecursionError, NotImplementedError) as error:
        raise CheckpointError(f"'{file}' is damaged, or no file of torch.export: {first_line(error)}") from error
    content.seek(0)
    return content


def _check(file: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    name = entry.filename.partition("/")[2]
    if name.startswith(COMPILED):
        raise CheckpointError(
            f"'{file}' contains machine code, which would run with your rights: if you trust who made it, allow that "
            "by --trust-code, or trust_code=True in Python"
        )
    if name.startswith("data/sample_inputs/"):
        _check_inputs(file, archive.read(entry))
    elif _JSON.fullmatch(name):
        if entry.file_size > _MAX_JSON:
            raise CheckpointError(f"'{file}': {name} has {entry.file_size:,} bytes, the limit is {_MAX_JSON:,}")
        document = json.loads(archive.read(entry))
        for key, value in _entries(document):
            if key == "use_pickle" and value:
                raise CheckpointError(f"'{file}' holds pickled values, which can run code: not read")
            if key == "path_name" and not re.fullmatch(r"(weight|tensor)_\d+", str(value)):
                raise CheckpointError(f"'{file}' holds a constant that is no tensor ({value!a:.60}): not read")
            if key == "expr_str" and not _is_size(str(value)):
                raise CheckpointError(f"'{file}' has an expression that is no size ({value!a:.60}): not read")
            if key == "target" and not _is_operator(str(value)):
                raise CheckpointError(f"'{file}' calls {value!a:.60}, which is no operator on tensors: not read")
            if key == "guards_code" and value:
                raise CheckpointError(f"'{file}' holds Python code ({value!a:.60}): not read")
    elif not (_PLAIN.fullmatch(name) or name == ".data/serialization_id"):
        raise CheckpointError(f"'{file}' holds '{name!a:.60}', which no exported model has: not read")


def _check_inputs(file: Path, content: bytes) -> None:
    """Refuse sample inputs that are no tensors, by the reader of torch that creates nothing else."""
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # the reader raises anything
        raise CheckpointError(f"'{file}' holds pickled values, which can run code: not read") from error


def _is_size(expression: str) -> bool:
    """Return whether an expression consists of symbols, numbers and functions of sizes."""
    expression = _SYMBOL.sub("0", expression)
    words = re.findall(r"[A-Za-z_]\w*", expression)
    return set(words) <= _WORDS and _EXPRESSION.fullmatch(expression) is not None


def _is_operator(target: str) -> bool:
    parts = target.split(".")
    hidden = [part for part in parts if part in _REFUSED or ("__" in part and part not in _BITWISE)]
    return _TARGET.fullmatch(target) is not None and not hidden


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield every name and value of the objects in a JSON document."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
