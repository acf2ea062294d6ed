"""What all parts of a model have in common: the dimensions they are built from, and how users choose them.

A part, such as the MLP, is one file with the configuration that a user writes, the module that it builds, its checks,
its initialisation and its memory use. A part with many kinds, such as the position embedding, is a folder with one file
per kind.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, cast

from vitreous.choices import unknown_choices, wrong_types
from vitreous.errors import ConfigError, did_you_mean

__all__ = ["Part", "Shape", "Size2d", "choose", "kinds_of", "option_types", "pair"]

Size2d = int | tuple[int, int]
"""A height and a width, or one number for both."""


def pair(size: Size2d) -> tuple[int, int]:
    """Return ``(height, width)``; a single number means a square.

    Raises:
        ConfigError: If there are not one or two numbers.
    """
    if isinstance(size, int):
        return size, size
    if len(size) != 2:
        raise ConfigError(f"size is {size}, it must be one number or a height and a width")
    return int(size[0]), int(size[1])


@dataclass(frozen=True)
class Shape:
    """The dimensions and settings that parts are built from.

    :class:`~vitreous.model.config.ViTConfig` extends this class, and documents and checks the fields.
    """

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
    norm: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-6

    @property
    def has_class_token(self) -> bool:
        """Whether a [CLS] token leads the sequence."""
        return bool(self.class_token)

    @property
    def prefix_tokens(self) -> int:
        """Number of tokens before the patches: [CLS] and registers."""
        return int(self.has_class_token) + self.registers

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at ``image_size``."""
        (height, width), (ph, pw) = pair(self.image_size), pair(self.patch_size)
        return height // ph, width // pw

    @property
    def patches(self) -> int:
        """Number of patches at ``image_size`` (N in section 3.1)."""
        rows, columns = self.grid
        return rows * columns

    @property
    def tokens(self) -> int:
        """Length of the sequence at ``image_size``: prefix tokens and patches."""
        return self.prefix_tokens + self.patches

    def with_sizes(self, **sizes: int) -> Shape:
        """Return these dimensions alone, without the parts of a model, and with some of them changed."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(Shape)}
        return Shape(**(own | sizes))

    @property
    def head_dim(self) -> int:
        """Channels per attention head (D_h in appendix A)."""
        return self.width // self.heads


@dataclass(frozen=True)
class Part:
    """The configuration of a part. Users choose a subclass by its ``kind``."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        """Check types and choices of all options, and report all problems in one error."""
        for field in dataclasses.fields(self):
            if isinstance(value := getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(value))
        if problems := [*unknown_choices(self), *wrong_types(self)]:
            raise _OptionError(self.kind, problems)

    def problems(self, shape: Shape) -> Iterator[str]:
        """Yield one sentence for each option that is out of range or does not suit the model's dimensions."""
        yield from ()

    def to_dict(self) -> dict[str, Any]:
        """Return the kind and the options as plain values."""
        return {"kind": self.kind} | dataclasses.asdict(self)


def option_types(part: type[Part]) -> dict[str, Any]:
    """Return the type of each option of a kind, by name."""
    hints = typing.get_type_hints(part)
    return {field.name: hints[field.name] for field in dataclasses.fields(part)}


class _OptionError(ConfigError):
    """Options of a kind are of the wrong type or unknown words; ``problems`` opens each with the option's name."""

    def __init__(self, kind: str, problems: Sequence[str]) -> None:
        super().__init__("; ".join(f"{kind} {problem}" for problem in problems))
        self.problems = problems


AnyPart = TypeVar("AnyPart", bound=Part)


def kinds_of(base: type[AnyPart]) -> tuple[type[AnyPart], ...]:
    """Return the kinds of a part that are defined so far: subclasses, also indirect ones, with a ``kind``."""
    found: list[type[AnyPart]] = []
    for subclass in base.__subclasses__():
        found += [subclass] if "kind" in vars(subclass) else []
        found += kinds_of(subclass)
    return tuple(found)


def choose(name: str, kinds: Sequence[type[AnyPart]], given: Any, current: AnyPart) -> AnyPart:
    """Return the part that a user asks for.

    Args:
        name: The field of the configuration that holds the part, for error messages.
        kinds: All kinds of the part.
        given: What the user wrote: a part; the name of a kind; or a mapping of options, with the kind under ``kind``.
        current: The present part. A mapping without ``kind`` changes options of this part.

    Raises:
        ConfigError: If the kind or options are unknown, or values are of the wrong type. One sentence per problem; the
            nearest word, or the kinds that have an option, are suggested.
    """
    if isinstance(given, tuple(kinds)):
        return cast(AnyPart, given)
    options = dict(given) if isinstance(given, Mapping) else {"kind": given}
    known = {kind.kind: kind for kind in kinds}
    kind_name = options.pop("kind", current.kind)
    if not isinstance(kind_name, str) or kind_name not in known:
        hint = did_you_mean(str(kind_name), known)
        raise ConfigError(
            f"{name} is '{kind_name}', it must be one of {', '.join(known)}" + (f".{hint}" if hint else "")
        )
    chosen = known[kind_name]
    fields = {field.name for field in dataclasses.fields(chosen)}
    if unknown := [str(option) for option in options if option not in fields]:
        missing = f"{name} {kind_name} has no option"
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
