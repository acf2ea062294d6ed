"""The files of `--config`: YAML of bounded size with plain values only.

The parser of options receives their text, so it never opens an untrusted file itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import yaml  # type: ignore[import-untyped,unused-ignore]

from vitreous.cli.options.conflicts import reject_synonyms
from vitreous.errors import UsageError, did_you_mean
from vitreous.files.locating import expand_home
from vitreous.files.opening import read_regular
from vitreous.files.text import printable

__all__ = ["read_config", "split_config_files"]

_MAX_BYTES = 1 << 18
_MAX_VALUES = 10_000
_MAX_DEPTH = 16
_MAX_VALUE_LENGTH = 10_000  # characters; parsing a number takes time quadratic in its length
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def split_config_files(argv: Sequence[str], short: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Split the --config options from the other arguments, which override them wherever they stand.

    Short options are expanded, and --show-batch without a file gets the default file.
    """
    files, words, rest = list[str](), list[str](), list(argv)
    spellings: dict[str, list[str]] = {}
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name == "--":
            words += [name, *rest]
            break
        if name.startswith("--"):
            spellings.setdefault(short.get(name, name).partition("=")[0].replace("-", "_"), []).append(name)
        if name == "--config":
            files.append(f"--config={rest.pop(0)}" if rest and not equals else name + equals + value)
        elif name in ("--show-batch", "--show_batch") and not equals:
            words.append(f"--show-batch={rest.pop(0) if rest and rest[0].endswith('.png') else 'batch.png'}")
        else:
            words.append(short.get(name, name) + equals + value)
    reject_synonyms(spellings)
    return files, words


def read_config(name: str, groups: Collection[str]) -> str:
    """Return the text of a YAML or JSON file of options; the values of ``groups``, such as `model`, must be mappings.

    A file that exceeds a limit, or has aliases, tags or duplicate names, is a usage error.
    """
    try:
        text = read_regular(expand_home(name), _MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"--config '{name}' is not a text file (byte {error.start:,}): give a YAML file of options"
        raise UsageError(message) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"--config '{name}' cannot be read: {_read_failure(name, error)}") from error
    try:
        problem = next(_problems(text, groups), None)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
        raise UsageError(f"--config '{name}' is not valid YAML{where}: {printable(str(reason))[:160]}") from error
    if problem is not None:
        raise UsageError(f"--config '{name}' {printable(problem)[:200]}")
    return text


def _read_failure(name: str, error: Exception) -> str:
    path = Path(name).expanduser()
    if isinstance(error, FileNotFoundError):
        siblings = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        return f"there is no such file.{did_you_mean(path.name, siblings)}"
    if isinstance(error, IsADirectoryError) and (path / "recipe.yaml").is_file():
        return f"it is a folder. Its recipe is '{Path(name) / 'recipe.yaml'}'"
    return str(getattr(error, "strerror", None) or error)


def _problems(text: str, groups: Collection[str]) -> Iterator[str]:
    """Yield the problems of a YAML text, checking the event stream first: it builds no values and expands no alias."""
    values = depth = 0
    for event in yaml.parse(text, _LOADER):
        line = event.start_mark.line + 1
        value = getattr(event, "value", "") or ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            yield f"has an alias or an anchor in line {line}: write the values out"
        if getattr(event, "tag", None):
            yield f"has the tag {event.tag} in line {line}: remove it"
        if len(value) > _MAX_VALUE_LENGTH:
            yield f"has a value of more than {_MAX_VALUE_LENGTH:,} characters in line {line}: no option takes one"
        if "\0" in value:
            yield f"has a NUL character in line {line}: no option takes one"
        values += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if values > _MAX_VALUES or depth > _MAX_DEPTH:
            yield f"has more than {_MAX_VALUES:,} values, or is nested more than {_MAX_DEPTH} deep: reduce it"
    root = yaml.compose(text, _LOADER)
    if not isinstance(root, yaml.MappingNode):
        yield "has no options: lines such as `epochs: 3` are expected, as in the recipe.yaml of a run"
        return
    yield from _name_problems(root)
    for name, value in root.value:
        if name.value in groups and not isinstance(value, yaml.MappingNode):
            line = value.start_mark.line + 1
            yield f"has no settings below '{name.value}' in line {line}: write them indented, one per line"


def _name_problems(node: yaml.MappingNode) -> Iterator[str]:
    names: set[str] = set()
    for name, value in node.value:
        line = name.start_mark.line + 1
        if not isinstance(name, yaml.ScalarNode) or not name.tag.endswith(":str"):
            yield f"has a name that is not text in line {line}"
            return
        if name.value in names:
            yield f"has '{name.value}' twice, again in line {line}: remove one"
        if name.value in ("class_path", "init_args", "<<"):  # jsonargparse would import the class named there
            yield f"has '{name.value}' in line {line}, which is not an option"
        names.add(name.value)
        for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if isinstance(each, yaml.MappingNode):
                yield from _name_problems(each)
