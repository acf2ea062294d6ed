"""The configuration of a Vision Transformer: its dimensions and its parts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vitreous.choices import unknown_choices, wrong_types
from vitreous.errors import ConfigError, did_you_mean
from vitreous.model.attention import ATTENTIONS, AttentionConfig
from vitreous.model.block import BLOCKS, Block, BlockConfig
from vitreous.model.heads import HEADS, Head, LinearHead
from vitreous.model.init import SCHEMES
from vitreous.model.mlp import MLPS, MlpConfig
from vitreous.model.part import Part, Shape, Size2d, choose, pair
from vitreous.model.pools import POOLS, ClassToken, Pool
from vitreous.model.positions import POSITIONS, Learned, Position
from vitreous.model.stems import STEMS, PatchStem, Stem

__all__ = ["PARTS", "Size2d", "ViTConfig", "pair"]

PARTS: dict[str, tuple[type[Part], ...]] = {
    "stem": STEMS,
    "position": POSITIONS,
    "attention": ATTENTIONS,
    "mlp": MLPS,
    "block": BLOCKS,
    "pool": POOLS,
    "head": HEADS,
}
"""For each field of a configuration that is a part, the kinds that a user can choose."""


@dataclass(frozen=True)
class ViTConfig(Shape):
    """The complete configuration of a :class:`~vitreous.model.vit.VisionTransformer`.

    The defaults are those of ViT-B/16 in arXiv 2010.11929 (table 1); "section" and "equation" refer to that paper.
    There are three ways to choose a part: as an object, ``position=Rope2d(theta=50)``; as the name of a kind,
    ``position="rope-2d"``; or as a mapping, ``position={"kind": "rope-2d", "theta": 50}``.

    Args:
        image_size: Height and width in pixels for which the position embeddings are learned. A model also accepts
            images of other sizes.
        patch_size: Height and width of a patch in pixels (P in section 3.1).
        in_channels: Number of image channels (C): 3 for colour, 1 for grey.
        num_classes: Number of outputs of the head (K); 0 removes its last layer. ``vitreous train`` takes the number
            from the data.
        width: Length of every token vector (D).
        depth: Number of encoder blocks (L).
        heads: Number of attention heads per block (k in appendix A). It must divide the width.
        mlp_dim: Size of the hidden layer in the MLP of each block.
        class_token: Whether the sequence starts with a [CLS] token. None adds one only if ``pool`` reads it.
        registers: Number of extra learned tokens. Only pool `prefix` reads them; they give attention a place to store
            global information (arXiv 2309.16588).
        dropout: Dropout probability after every dense layer except qkv, and after the position embeddings are added
            (appendix B.1). In [0, 1).
        norm: Kind of every norm in the model. `layer`: LayerNorm. `rms`: only divides by the root mean square of the
            channels (RMSNorm, arXiv 1910.07467).
        norm_eps: Epsilon of every norm.
        stem: How pixels become tokens.
        position: How the model knows where each patch lies.
        attention: How the tokens in a block exchange information.
        mlp: What a block applies to each token on its own.
        block: How a block combines attention and MLP.
        pool: How the tokens become the one vector that the head reads.
        head: How the pooled vector becomes logits.
        input_norm: Whether a norm stands before the first block, after the positions are added (as in CLIP,
            arXiv 2103.00020).
        final_norm: Position of the last norm: `tokens`, before pooling (equation 4); `pooled`, after pooling
            (timm's ``fc_norm``); or `none`.
        patch_dropout: Fraction of the patch tokens that is dropped from each training image, which makes training
            faster (arXiv 2208.07220). In [0, 1).
        init: How weights are initialised. `jax`: as in the paper's code. `timm`: as in timm, from a normal distribution
            with standard deviation 0.02. `torchvision`: as in its vision_transformer. `torch`: PyTorch's layer
            defaults, with tokens and positions from N(0, 1). `mimetic`: as `jax`, but attention and learned positions
            start out resembling those of trained models (arXiv 2305.09828).

    Raises:
        ConfigError: If values are out of range or contradict each other. One error lists all problems.
    """

    stem: Stem = PatchStem()
    position: Position = Learned()
    attention: AttentionConfig = AttentionConfig()
    mlp: MlpConfig = MlpConfig()
    block: BlockConfig = BlockConfig()
    pool: Pool = ClassToken()
    head: Head = LinearHead()
    input_norm: bool = False
    final_norm: Literal["tokens", "pooled", "none"] = "tokens"
    patch_dropout: float = 0.0
    init: Literal["jax", "timm", "torchvision", "torch", "mimetic"] = "jax"

    def __post_init__(self) -> None:
        """Turn names and mappings into parts, and check all values."""
        unknown = {}
        for name, kinds in PARTS.items():
            try:
                if isinstance(given := getattr(self, name), ConfigError):  # of with_options
                    raise given
                part = choose(name, kinds, given, _DEFAULTS[name])
            except ConfigError as error:
                part, unknown[name] = _DEFAULTS[name], str(error)
            object.__setattr__(self, name, part)
        for name in ("image_size", "patch_size"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        of_types = list(wrong_types(self, skip=PARTS))
        problems = [*of_types, *unknown.values(), *unknown_choices(self)]
        if problems := [*problems, *(() if of_types else _problems(self, unknown))]:
            raise ConfigError("; ".join(problems))

    @property
    def has_class_token(self) -> bool:
        """Whether a [CLS] token leads the sequence."""
        return self.pool.reads_class_token if self.class_token is None else self.class_token

    @property
    def pooled_width(self) -> int:
        """Length of the pooled vector."""
        return self.pool.output_width(self)

    @property
    def features(self) -> int:
        """Length of the vector that the last layer of the head reads."""
        return self.head.features(self.pooled_width, self)

    def build_block(self, index: int) -> Block:
        """Return block number ``index``, counted from 0, with its attention and MLP."""
        return self.block.build(self, index, self.attention.build(self, index, self.position), self.mlp.build(self))

    def with_options(self, options: Mapping[str, Any]) -> ViTConfig:
        """Return a copy with some fields changed.

        Args:
            options: New values by field name. For a part, a mapping without a kind changes options of the present part;
                a mapping with another kind starts from the defaults of that kind.

        Raises:
            ConfigError: If a field, a kind or an option is unknown, or the result contradicts itself; all problems come
                in one error.
        """
        unknown = [name for name in options if name not in ViTConfig.__dataclass_fields__]
        problems = [f"a model has no option '{name}'.{_suggest(name)}" for name in unknown]
        changes: dict[str, Any] = {}
        for name in (name for name in options if name not in unknown):
            try:
                is_part, value = name in PARTS, options[name]
                changes[name] = choose(name, PARTS[name], value, getattr(self, name)) if is_part else value
            except ConfigError as error:
                changes[name] = error  # reported with all other problems
        try:
            changed = dataclasses.replace(self, **changes)
        except ConfigError as error:
            problems.append(str(error))
        if problems:
            raise ConfigError("; ".join(problems))
        return changed

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, where each part is a mapping with its kind.

        ``ViTConfig(**values)`` builds the same configuration again.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value.to_dict() if isinstance(value, Part) else value for name, value in values.items()}


_DEFAULTS: dict[str, Any] = {name: ViTConfig.__dataclass_fields__[name].default for name in PARTS}


def _suggest(name: str) -> str:
    """Return a "did you mean" hint that names a field, or an option of a part such as ``block.drop_path``."""
    own = ViTConfig.__dataclass_fields__
    options = [(part, f.name) for part, kinds in PARTS.items() for kind in kinds for f in dataclasses.fields(kind)]
    owners: dict[str, list[str]] = {}
    for part, option in dict.fromkeys(options):
        owners.setdefault(option, []).append(f"'{part}.{option}'")
    bare = [option for option in owners if option not in own]
    found = did_you_mean(name, [*own, *bare, *(f"{part}.{option}" for part, option in options)])
    return re.sub("'(.+)'", lambda word: " or ".join(owners[word[1]]) if word[1] in bare else word[0], found)


def _problems(c: ViTConfig, skip: Collection[str]) -> Iterator[str]:
    """Yield one sentence for each contradiction in a configuration, without the parts in ``skip``."""
    (height, width), (ph, pw) = pair(c.image_size), pair(c.patch_size)
    counts = {name: getattr(c, name) for name in ("width", "depth", "heads", "mlp_dim", "in_channels")}
    counts |= {"image_size": min(height, width), "patch_size": min(ph, pw)}
    if below := [f"{name} is {value}, it must be at least 1" for name, value in counts.items() if value < 1]:
        yield from below
        return
    if (height, ph) == (width, pw):
        yield from _tiling_problems(height, ph, "size")
    else:
        yield from _tiling_problems(height, ph, "height")
        yield from _tiling_problems(width, pw, "width")
    if c.width % c.heads:
        fits = sorted(_divisors(c.width), key=lambda h: abs(h - c.heads))[:2]
        yield f"width {c.width} is not a multiple of heads {c.heads}: use {' or '.join(map(str, sorted(fits)))} heads"
    for name in PARTS:
        yield from () if name in skip else getattr(c, name).problems(c)
    yield from c.attention.conflicts(c.position, c.patch_dropout)
    if isinstance(c.init, str) and c.init in SCHEMES:
        yield from SCHEMES[c.init].problems(c.position, c.width)
    if c.pool.reads_class_token and c.class_token is False and "pool" not in skip:
        *others, last = (pool.kind for pool in POOLS if not pool.reads_class_token)
        yield (
            f"pool {c.pool.kind} reads the class token, but class_token is off: use pool {', '.join(others)} or {last}"
        )
    if c.pool.kind in ("cls-mean", "prefix") and c.final_norm == "pooled":
        yield f"pool {c.pool.kind} has no norm after it: use final_norm tokens"
    for name in ("dropout", "patch_dropout"):
        if not 0 <= getattr(c, name) < 1:
            yield f"{name} is {getattr(c, name)}, it must be in [0, 1)"
    if not c.norm_eps > 0:
        yield f"norm_eps is {c.norm_eps}, it must be above 0"
    if c.registers < 0 or c.num_classes < 0:
        yield f"registers ({c.registers}) and num_classes ({c.num_classes}) cannot be negative"


_MAX_DIVISOR = 4096  # keeps the error message for an absurdly large size fast


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number up to ``_MAX_DIVISOR``."""
    return [n for n in range(1, min(number, _MAX_DIVISOR) + 1) if number % n == 0]


def _tiling_problems(length: int, patch: int, side: str) -> Iterator[str]:
    """Yield a sentence that suggests the nearest sizes if patches do not tile one side of the image."""
    if length % patch == 0:
        return
    sizes = sorted({max(patch, length // patch * patch), -(-length // patch) * patch})
    divisors = sorted(_divisors(length), key=lambda p: (abs(p - patch), p))[:2]
    yield (
        f"image {side} {length} is not a multiple of patch {side} {patch}: use an image size of "
        f"{' or '.join(map(str, sizes))}, or a patch size of {' or '.join(map(str, sorted(divisors)))}"
    )
