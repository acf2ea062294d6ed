"""What the parts of a model share: the numbers they are built from, and how a kind of a part is named and chosen.

A part is one file: the configuration that a user writes, the module it builds, its checks, its initialisation and its
memory. Several kinds of one part, such as position embeddings, are a folder with one file for each kind.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

from vitreous.choices import misfits, unknown_choices
from vitreous.errors import ConfigError, did_you_mean

__all__ = ["Part", "Shape", "Size2d", "choose", "option_types", "pair"]

Size2d = int | tuple[int, int]


def pair(size: Size2d) -> tuple[int, int]:
    """Return ``(height, width)``; one number means a square."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


@dataclass(frozen=True)
class Shape:
    """The numbers that parts are built from; :class:`~vitreous.model.config.ViTConfig` documents and checks them."""

    image_size: Size2d = 224
    patch_size: Size2d = 16
    in_channels: int = 3
    num_classes: int = 1000
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp_dim: int = 3072
    class_token: bool | None = None
    registers: int = 0
    dropout: float = 0.0
    norm_eps: float = 1e-6

    @property
    def has_class_token(self) -> bool:
        """Whether a [CLS] token leads the sequence."""
        return bool(self.class_token)

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches: [CLS] and registers (P)."""
        return int(self.has_class_token) + self.registers

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across at ``image_size``."""
        (height, width), (ph, pw) = pair(self.image_size), pair(self.patch_size)
        return height // ph, width // pw

    @property
    def patches(self) -> int:
        """Number of patches at ``image_size`` (N in section 3.1)."""
        rows, columns = self.grid
        return rows * columns

    @property
    def tokens(self) -> int:
        """Length of the sequence at ``image_size`` (P + N)."""
        return self.prefix_tokens + self.patches

    @property
    def head_dim(self) -> int:
        """Channels of one attention head (D_h)."""
        return self.width // self.heads


@dataclass(frozen=True)
class Part:
    """The configuration of a part. A subclass with a ``kind`` is one that users can choose."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        """Refuse options of the wrong type or with an unknown choice, all in one error."""
        for field in dataclasses.fields(self):
            if isinstance(value := getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(value))
        if problems := [*unknown_choices(self), *misfits(self)]:
            raise _OptionError(self.kind, problems)

    def problems(self, shape: Shape) -> Iterator[str]:
        """Yield one sentence for each option that is out of range or does not fit the shape."""
        yield from ()

    def to_dict(self) -> dict[str, Any]:
        """Return the kind and the options as plain values."""
        return {"kind": self.kind} | dataclasses.asdict(self)


def option_types(part: type[Part]) -> dict[str, Any]:
    """Return the options of a kind with their types."""
    hints = typing.get_type_hints(part)
    return {field.name: hints[field.name] for field in dataclasses.fields(part)}


class _OptionError(ConfigError):
    """Options of a kind are of the wrong type or unknown words; ``problems`` opens each with the option's name."""

    def __init__(self, kind: str, problems: Sequence[str]) -> None:
        super().__init__("; ".join(f"{kind} {problem}" for problem in problems))
        self.problems = problems


AnyPart = TypeVar("AnyPart", bound=Part)


def choose(name: str, kinds: Sequence[type[AnyPart]], given: Any, current: AnyPart) -> AnyPart:
    """Return a part from what a user may write for it.

    Args:
        name: The part's field in the configuration, for errors.
        kinds: The kinds that there are.
        given: A part; the name of a kind; or a mapping of options, with the kind under ``kind``.
        current: The present part. A mapping without a `kind` changes its options.

    Raises:
        ConfigError: If the kind or options are unknown, or values are of the wrong type. One sentence per problem; the
            nearest word, or the kinds that have an option, are suggested.
    """
    if isinstance(given, tuple(kinds)):
        return cast(AnyPart, given)
    options = dict(given) if isinstance(given, Mapping) else {"kind": given}
    known = {kind.kind: kind for kind in kinds}
    word = options.pop("kind", current.kind)
    if not isinstance(word, str) or word not in known:
        hint = did_you_mean(str(word), known)
        raise ConfigError(f"{name} is '{word}', it must be one of {', '.join(known)}" + (f".{hint}" if hint else ""))
    chosen = known[word]
    fields = {field.name for field in dataclasses.fields(chosen)}
    if unknown := [str(option) for option in options if option not in fields]:
        missing = f"{name} {word} has no option"
        raise ConfigError("; ".join(f"{missing} '{each}'{_hint(name, kinds, fields, each)}" for each in unknown))
    try:
        part: AnyPart = dataclasses.replace(current, **options) if type(current) is chosen else chosen(**options)
    except _OptionError as error:
        raise ConfigError("; ".join(f"{name}.{problem}" for problem in error.problems)) from error
    return part


def _hint(name: str, kinds: Sequence[type[Part]], fields: Collection[str], option: str) -> str:
    """Return ``". stem conv and resnet have it"``, else the nearest of the fields, else an empty string."""
    owners = [kind.kind for kind in kinds if option in option_types(kind)]
    if owners:
        return f". {name} {' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it"
    near = did_you_mean(option, fields)
    return f".{near}" if near else ""
