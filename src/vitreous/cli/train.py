"""`vitreous train`: from labelled pictures to a model file."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.cli.parsing import Parser
from vitreous.errors import ConfigError, UsageError, did_you_mean
from vitreous.recipes import RECIPES, recipe, recipe_for
from vitreous.train.config import RunConfig

if TYPE_CHECKING:
    from jsonargparse import Namespace

__all__ = ["configure", "run"]

_STARTED = time.monotonic()
_SHORT = {"--data-dir": "--data.dir", "--data_dir": "--data.dir", "--strict": "--data.strict", "--model": "--size"}
_SIZE_FIELDS = ("width", "depth", "mlp_dim", "heads")
_INTERRUPTED = 130

_EXAMPLES = [
    ("vitreous train digits", "1,797 real handwritten digits, bundled: works offline"),
    ("vitreous train photos/", "your own: one folder per class, named as the class, or train/ val/ [test/] of those"),
    ("vitreous train labels.csv", "a manifest (.csv or .parquet) with the columns path and label"),
    ("vitreous train cifar10 --data-dir ~/data --budget 25m", "a known set, and a wall-clock limit for all of it"),
    ("vitreous train photos/ --model S/16 --model.image_size 224", "another size; every option can be set"),
    ("vitreous train photos/ --show-batch", "write a picture of an augmented batch, and train nothing"),
    ("vitreous train --config runs/photos-1/recipe.yaml --seed 1", "the same run again, with one thing changed"),
]


def run(argv: Sequence[str]) -> int:
    """Run the verb; 130 if Ctrl-C ended the training."""
    config, given, show_batch = configure(argv)
    if show_batch is not None:
        from vitreous.train.show import show_batch as show  # here and below: torch takes seconds, a typo should not

        show(config, given, Path(show_batch))
        return 0
    from vitreous.train.run import run as train

    result = train(config, keep=given, started=_process_started())
    return _INTERRUPTED if result.interrupted else 0


def configure(argv: Sequence[str]) -> tuple[RunConfig, frozenset[str], str | None]:
    """Resolve the words of the command: recipe, then --model, then --config, then every other option.

    Returns:
        The configuration, the fields of the model that the user set, and the file of --show-batch if that was asked.

    Raises:
        UsageError: If a word cannot be meant.
    """
    words = _plain(argv)
    parser = _parser()
    asked = parser.parse_args(words, defaults=False)
    stored = _stored(asked)
    source = asked.get("source") or asked.get("data.source") or stored.get("data", {}).get("source")
    name = asked.get("recipe") or stored.get("recipe") or (recipe_for(source) if source else None)
    if source is None and asked.get("recipe") is None:
        raise UsageError(
            "DATA is missing: `vitreous train digits` to try, `vitreous train FOLDER` for pictures of your own"
        )
    if not isinstance(name, str) or name not in RECIPES:
        raise UsageError(f"there is no recipe '{name}'.{did_you_mean(str(name), RECIPES)} Known: {', '.join(RECIPES)}")
    config = recipe(name)
    if asked.get("size"):
        config = dataclasses.replace(config, model=_resized(config, asked["size"]))
    fields = _merged(asked, stored)
    given = frozenset(fields.get("model", {}))
    if source is not None:
        fields.setdefault("data", {})["source"] = source
    config = _overlaid(config, fields)
    return dataclasses.replace(config, recipe=name), given, asked.get("show_batch")


def _plain(argv: Sequence[str]) -> list[str]:
    """Spell the short options in full, and give --show-batch its file where it has none."""
    words = []
    for position, word in enumerate(argv):
        name, equals, value = word.partition("=")
        word = _SHORT.get(name, name) + equals + value
        following = argv[position + 1] if position + 1 < len(argv) else "--"
        if name in ("--show-batch", "--show_batch") and not equals and not following.endswith(".png"):
            word = "--show-batch=batch.png"
        words.append(word)
    return words
