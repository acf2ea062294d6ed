"""The files of `--config`: read once, bounded, and without what YAML has beyond plain values.

What is handed on is text, so that the parser of options never opens a file that somebody else chose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import yaml  # type: ignore[import-untyped,unused-ignore]

from vitreous.errors import UsageError, did_you_mean
from vitreous.files.opening import read_regular
from vitreous.files.text import printable

__all__ = ["read_config"]

_LARGEST = 1 << 18  # bytes: the recipe.yaml of a run has 3,000
_MOST_VALUES = 10_000
_DEEPEST = 16
_LONGEST = 10_000  # letters of a value: a number of a million digits takes long to read
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_config(name: str, groups: Collection[str]) -> str:
    """Return the text of a YAML or JSON file of options.

    Args:
        name: The file, as the user wrote it.
        groups: Options that have others below them, such as `model`: they take a mapping and nothing else.

    Raises:
        UsageError: If it cannot be read, is no mapping, or has aliases, tags, names that come twice, or more than any
            configuration has.
    """
    try:
        path = Path(name).expanduser()
        text = read_regular(path, _LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--config '{name}' is no text (byte {error.start:,}): give a YAML file of options") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"--config '{name}' cannot be read: {_why_not(name, error)}") from error
    try:
        problem = next(_problems(text, groups), None)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        why = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
        raise UsageError(f"--config '{name}' is no YAML{where}: {printable(str(why))[:160]}") from error
    if problem is not None:
        raise UsageError(f"--config '{name}' {printable(problem)[:200]}")
    return text


def _why_not(name: str, error: Exception) -> str:
    """Say why a file cannot be read, and what may be meant."""
    if isinstance(error, FileNotFoundError):
        folder = Path(name).expanduser().parent
        beside = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        return f"there is no such file.{did_you_mean(Path(name).name, beside)}"
    inside = Path(name) / "recipe.yaml" if isinstance(error, IsADirectoryError) else None
    if inside is not None and inside.is_file():
        return f"it is a folder. Its recipe is '{inside}'"
    return str(getattr(error, "strerror", None) or error)


def _problems(text: str, groups: Collection[str]) -> Iterator[str]:
    """Yield what is wrong: first by the events of YAML's parser, which makes no values and follows no aliases."""
    values = depth = 0
    for event in yaml.parse(text, _LOADER):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            yield f"has an alias or an anchor in line {line}: write the values out"
        if getattr(event, "tag", None):
            yield f"has the tag {event.tag} in line {line}: leave it away"
        if len(getattr(event, "value", "") or "") > _LONGEST:
            yield f"has a value of more than {_LONGEST:,} letters in line {line}: no option has"
        if "\0" in (getattr(event, "value", "") or ""):
            yield f"has a NUL character in line {line}: no option has"
        values += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if values > _MOST_VALUES or depth > _DEEPEST:
            yield f"has more than {_MOST_VALUES:,} values, or is nested more than {_DEEPEST} deep: no configuration is"
    root = yaml.compose(text, _LOADER)
    if not isinstance(root, yaml.MappingNode):
        yield "has no options: lines such as `epochs: 3` are expected, as in the recipe.yaml of a run"
        return
    yield from _of_mapping(root)
    for name, value in root.value:
        empty = isinstance(value, yaml.ScalarNode) and value.value in ("", "~", "null")
        if name.value in groups and not empty and not isinstance(value, yaml.MappingNode):
            line = value.start_mark.line + 1
            yield f"has no settings below '{name.value}' in line {line}: write them indented, in lines of their own"


def _of_mapping(node: yaml.MappingNode) -> Iterator[str]:
    """Yield what is wrong with the names in a mapping, and in those within."""
    names: set[str] = set()
    for name, value in node.value:
        line = name.start_mark.line + 1
        if not isinstance(name, yaml.ScalarNode) or not name.tag.endswith(":str"):
            yield f"has a name that is no text in line {line}"
            return
        if name.value in names:
            yield f"has '{name.value}' twice, again in line {line}: leave one"
        if name.value in ("class_path", "init_args", "<<"):  # the parser of options would import what it names
            yield f"has '{name.value}' in line {line}, which is no option"
        names.add(name.value)
        for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if isinstance(each, yaml.MappingNode):
                yield from _of_mapping(each)
