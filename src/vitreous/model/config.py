"""The configuration of a Vision Transformer: plain data, no torch, so that help texts and recipes load at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from vitreous.errors import ConfigError, did_you_mean

__all__ = ["Size2d", "ViTConfig", "pair"]

Size2d = int | tuple[int, int]

_MOST_TRIED = 4096  # numbers that an error tries for what would fit


def pair(size: Size2d) -> tuple[int, int]:
    """Return ``(height, width)``; one number means a square."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


@dataclass(frozen=True)
class ViTConfig:
    """Everything that shapes a :class:`~vitreous.model.vit.VisionTransformer`.

    The defaults are ViT-B/16 of arXiv 2010.11929 (Table 1). "Section" and "equation" mean that paper.

    Args:
        image_size: Height and width in pixels that the position embeddings are laid out for. Other sizes work at
            forward time.
        patch_size: Height and width of a patch in pixels (P in section 3.1).
        in_channels: Channels of the image: 3 for colour, 1 for grey (C).
        num_classes: Outputs of the head (K). 0 leaves the head away; ``vitreous train`` takes it from the data.
        width: Hidden size of every token (D).
        depth: Number of encoder blocks (L).
        heads: Attention heads per block (k in appendix A). Must divide the width.
        mlp_dim: Hidden size of the MLP in each block.
        stem: How pixels become tokens. `patch`: strided convolution (equation 1). `linear`: flatten the patch, then
            one matrix; the same map and the same weights. `conv`: convolutions with batch norm and GELU (`conv_stem`).
            `resnet`: the paper's hybrid, patches of a ResNet's feature map (section 3.1); `patch_size` counts pixels
            of the image all the same.
        conv_stem: How the `conv` stem's 3x3 convolutions halve the picture. `stride`: by their stride, and a 1x1 makes
            the tokens (after arXiv 2106.14881, "Early convolutions help transformers see better"). `max-pool`: by
            pooling after each, so that they see every place, and another 3x3 makes the tokens (after CCT's tokenizer,
            arXiv 2104.05704).
        conv_width: Channels of the `conv` stem's first convolution, which each further one doubles. None: so many that
            the last has `width`.
        resnet_layers: Bottlenecks in each stage of the `resnet` stem. A stem without stages quarters the picture, and
            each stage but the first halves it: (3, 4, 9) makes 16 pixels a cell.
        resnet_width: Channels of the `resnet` stem's first convolution, a multiple of 32.
        resnet_norm: Whose constants the `resnet` stem's standardisations have: `google` or `timm`.
        patch_activation: Applied to the patch tokens before positions are added. The paper has none; the public
            notebook tutorials use `relu`.
        position: `learned`: one vector per token (equation 1). `learned-2d`: a row half and a column half, `relative`:
            a bias in attention from the query and the raster offset (both appendix D.4). `sincos-2d`: fixed
            (arXiv 2205.01580). `rope-2d`: rotary, half of each head's channels by row and half by column
            (arXiv 2403.13298). `none`.
        position_prefix: Which leading tokens have a learned 1-D position of their own: `cls`: the class token
            (equation 1), `all`: registers too (timm), `none` (timm's no_embed_class).
        pool: What the head reads. `cls`: the class token (equation 4). `mean`: the mean of the patch tokens
            (appendix D.3). `cls-mean`: both, side by side (DINOv2's classifiers, arXiv 2304.07193). `map`: one learned
            query attends to all tokens (arXiv 2106.04560). `seq`: a learned weighted mean (arXiv 2104.05704).
        pool_prefix: Whether means, `map` and `seq` pool over [CLS] and registers too. None: `map` and `seq` do.
        class_token: Whether there is a [CLS] token; None means only where `pool` reads it.
        registers: Extra learned tokens that nothing reads (arXiv 2309.16588).
        head: `linear`, or `mlp`: the paper's head with one hidden layer (section 3.1, equation 4).
        head_hidden: Hidden size of the `mlp` head; None means `width`.
        head_activation: Activation of the `mlp` head; the paper's code uses tanh.
        zero_head: Start the last layer of the head at zero (section 3.2). None: as `init` does (jax and torchvision
            start it at zero, timm and torch do not).
        zero_residual: Start the last matrix of each residual branch at zero, so that a block begins as the identity.
        final_norm: Where the last LayerNorm stands. `tokens`: before pooling (equation 4). `pooled`: after it
            (timm's `fc_norm`). `none`.
        activation: The MLP's. `gelu-tanh` is the approximation that JAX calls gelu.
        qkv_bias: Biases on the query, key and value projections.
        qk_norm: LayerNorm on queries and keys of each head (arXiv 2302.05442).
        layer_scale: Initial value of a learned factor per channel on each residual branch (arXiv 2103.17239); None
            leaves it away.
        dropout: After every dense layer except qkv, and after positions are added (appendix B.1). In [0, 1).
        attention_dropout: On attention weights. In [0, 1).
        proj_dropout: After the attention's output projection. In [0, 1); None: as `dropout`.
        drop_path: Stochastic depth: chance to drop a residual branch, growing linearly to this value at the last
            block (arXiv 1603.09382). In [0, 1).
        patch_dropout: Share of patch tokens left out of each training image (arXiv 2208.07220). In [0, 1).
        norm_eps: Epsilon of every LayerNorm.
        init: `jax`: as the paper's code. `timm`: normal 0.02. `torchvision`: as its vision_transformer.
            `torch`: PyTorch's layer defaults with tokens and positions from N(0, 1), as the tutorials do. `mimetic`:
            as `jax`, but attention and learned positions begin as in trained models (arXiv 2305.09828).
        resample: Whose function resizes position embeddings for another resolution.
        checkpoint_blocks: Recompute each block's activations in the backward pass: less memory, about a third more
            time.
    """

    image_size: Size2d = 224
    patch_size: Size2d = 16
    in_channels: int = 3
    num_classes: int = 1000
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp_dim: int = 3072
    stem: Literal["patch", "linear", "conv", "resnet"] = "patch"
    conv_stem: Literal["stride", "max-pool"] = "stride"
    conv_width: int | None = None
    resnet_layers: tuple[int, ...] = (3, 4, 9)
    resnet_width: int = 64
    resnet_norm: Literal["google", "timm"] = "google"
    patch_activation: Literal["none", "relu"] = "none"
    position: Literal["learned", "learned-2d", "relative", "sincos-2d", "rope-2d", "none"] = "learned"
    position_prefix: Literal["cls", "all", "none"] = "cls"
    pool: Literal["cls", "mean", "cls-mean", "map", "seq"] = "cls"
    pool_prefix: bool | None = None
    class_token: bool | None = None
    registers: int = 0
    head: Literal["linear", "mlp"] = "linear"
    head_hidden: int | None = None
    head_activation: Literal["tanh", "relu", "gelu"] = "tanh"
    zero_head: bool | None = None
    zero_residual: bool = False
    final_norm: Literal["tokens", "pooled", "none"] = "tokens"
    activation: Literal["gelu", "gelu-tanh", "relu"] = "gelu"
    qkv_bias: bool = True
    qk_norm: bool = False
    layer_scale: float | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    proj_dropout: float | None = None
    drop_path: float = 0.0
    patch_dropout: float = 0.0
    norm_eps: float = 1e-6
    init: Literal["jax", "timm", "torchvision", "torch", "mimetic"] = "jax"
    resample: Literal["google", "timm", "huggingface", "torchvision", "dinov2"] = "timm"
    checkpoint_blocks: bool = False

    def __post_init__(self) -> None:
        """Check every relation between fields; all problems come in one error."""
        for name in ("image_size", "patch_size", "resnet_layers"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        problems = list(_problems(self))
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def has_class_token(self) -> bool:
        """Whether a [CLS] token leads the sequence."""
        return self.pool in ("cls", "cls-mean") if self.class_token is None else self.class_token

    @property
    def pools_prefix(self) -> bool:
        """Whether `mean`, `map` and `seq` read the tokens before the patches too."""
        return self.pool in ("map", "seq") if self.pool_prefix is None else self.pool_prefix

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches: [CLS] and registers."""
        return int(self.has_class_token) + self.registers

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across at ``image_size``."""
        (height, width), (ph, pw) = pair(self.image_size), pair(self.patch_size)
        return height // ph, width // pw

    @property
    def tokens(self) -> int:
        """Length of the sequence at ``image_size`` (N + 1 in equation 1 with a [CLS] token)."""
        rows, columns = self.grid
        return rows * columns + self.prefix_tokens

    @property
    def head_dim(self) -> int:
        """Channels of one attention head (D_h)."""
        return self.width // self.heads

    @property
    def pooled_width(self) -> int:
        """Length of what pooling gives."""
        return 2 * self.width if self.pool == "cls-mean" else self.width

    @property
    def features(self) -> int:
        """Length of what the head's last layer reads."""
        return (self.head_hidden or self.width) if self.head == "mlp" else self.pooled_width


def _problems(c: ViTConfig) -> Iterator[str]:
    """Yield one sentence per contradiction in a configuration."""
    yield from _unknown_choices(c)
    (height, width), (ph, pw) = pair(c.image_size), pair(c.patch_size)
    counts = {name: getattr(c, name) for name in ("width", "depth", "heads", "mlp_dim", "in_channels")}
    counts |= {"image_size": min(height, width), "patch_size": min(ph, pw)}
    below = [f"{name} is {value}, it must be at least 1" for name, value in counts.items() if value < 1]
    if below:
        yield from below
        return
    if (height, ph) == (width, pw):
        yield from _misfits(height, ph, "size")
    else:
        yield from _misfits(height, ph, "height")
        yield from _misfits(width, pw, "width")
    yield from _width_misfits(c)
    if c.pool in ("cls", "cls-mean") and c.class_token is False:
        yield f"pool {c.pool} reads the class token, but class_token is off: use pool mean, map or seq"
    if c.pool == "cls-mean" and c.final_norm == "pooled":
        yield "pool cls-mean has no norm after it: use final_norm tokens"
    yield from _conv_misfits(c, ph, pw)
    if c.stem == "resnet":
        yield from _resnet_misfits(c, ph, pw)
    for name in ("dropout", "attention_dropout", "proj_dropout", "drop_path", "patch_dropout"):
        if not 0 <= (getattr(c, name) or 0) < 1:
            yield f"{name} is {getattr(c, name)}, it must be in [0, 1)"
    if c.head_hidden is not None and c.head_hidden < 1:
        yield f"head_hidden is {c.head_hidden}, it must be at least 1, or null for the width"
    if not c.norm_eps > 0:
        yield f"norm_eps is {c.norm_eps}, it must be above 0"
    if c.registers < 0 or c.num_classes < 0:
        yield f"registers ({c.registers}) and num_classes ({c.num_classes}) cannot be negative"


def _unknown_choices(c: ViTConfig) -> Iterator[str]:
    """Yield one sentence per field whose value is none of those that it may have."""
    for name, hint in get_type_hints(ViTConfig).items():
        value = getattr(c, name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            choices = get_args(hint)
            yield f"{name} is '{value}', it can be {', '.join(choices)}.{did_you_mean(str(value), choices)}"


def _conv_misfits(c: ViTConfig, ph: int, pw: int) -> Iterator[str]:
    """Yield what does not fit between a `conv` stem and the patches, and what it cannot be wide."""
    if c.stem == "conv" and (ph != pw or ph & (ph - 1) or ph < 2):
        yield f"stem conv halves the picture per layer: patch_size must be 2, 4, 8, 16 or 32, it is {c.patch_size}"
    if c.conv_width is not None and c.conv_width < 1:
        yield f"conv_width is {c.conv_width}, it must be at least 1, or null for what the width asks for"


def _resnet_misfits(c: ViTConfig, ph: int, pw: int) -> Iterator[str]:
    """Yield what does not fit between a `resnet` stem and the patches."""
    cell = 4 << max(0, len(c.resnet_layers) - 1)
    if ph % cell or pw % cell:
        yield f"a resnet stem of {len(c.resnet_layers)} stages needs patch_size in multiples of {cell}, it is {ph, pw}"
    if c.resnet_width % 32 or c.resnet_width < 32:
        yield f"resnet_width is {c.resnet_width}, it must be a multiple of 32"
    if min(c.resnet_layers, default=1) < 1:
        yield f"resnet_layers is {c.resnet_layers}, every stage needs at least 1"


def _width_misfits(c: ViTConfig) -> Iterator[str]:
    """Yield what does not divide the width: heads, and what a position embedding splits it into."""
    if c.width % c.heads:
        fits = sorted(_divisors(c.width), key=lambda h: abs(h - c.heads))[:2]
        yield f"width {c.width} is not a multiple of heads {c.heads}: use {' or '.join(map(str, sorted(fits)))} heads"
    elif c.position == "rope-2d" and c.head_dim % 4:
        yield f"position rope-2d needs width / heads to be a multiple of 4, it is {c.head_dim}"
    if (c.position in ("sincos-2d", "learned-2d") or (c.position, c.init) == ("learned", "mimetic")) and c.width % 4:
        yield f"position {c.position} needs a width that is a multiple of 4, it is {c.width}"


def _divisors(number: int) -> list[int]:
    """What divides a number, as far as an error may try."""
    return [n for n in range(1, min(number, _MOST_TRIED) + 1) if number % n == 0]


def _misfits(length: int, patch: int, side: str) -> Iterator[str]:
    """Yield the sentence for an image side that patches do not tile, with the nearest sizes that they do."""
    if length % patch == 0:
        return
    sizes = sorted({max(patch, length // patch * patch), -(-length // patch) * patch})
    divisors = sorted(_divisors(length), key=lambda p: (abs(p - patch), p))[:2]
    yield (
        f"image {side} {length} is not a multiple of patch {side} {patch}: use an image size of "
        f"{' or '.join(map(str, sizes))}, or a patch size of {' or '.join(map(str, sorted(divisors)))}"
    )
