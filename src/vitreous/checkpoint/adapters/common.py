"""The types that adapters exchange: a foreign checkpoint, the model read from it, and a model to write.

Below them are the checks and messages that several adapters share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitreous.data.preprocess import EvalPipeline
from vitreous.errors import CheckpointError
from vitreous.model.attention import AttentionConfig
from vitreous.model.block import BlockConfig
from vitreous.model.config import ViTConfig
from vitreous.model.heads import MlpHead
from vitreous.model.mlp import MlpConfig
from vitreous.model.pools import AttentionPool
from vitreous.model.positions.learned_base import LearnedPosition

__all__ = [
    "DECODER",
    "OWN",
    "ForeignCheckpoint",
    "Hints",
    "ImportedModel",
    "OutgoingModel",
    "State",
    "beyond_the_paper",
    "distinct",
    "has_decoder",
    "join_first",
    "note_on_epsilon",
]

State = dict[str, Tensor]
"""Tensors by name."""

_SHOWN = 5
DECODER = "decoder."
"""What the names of the tensors of a masked autoencoder's decoder begin with, where one is kept."""


OWN = ("distilled_bias", "qkv_bias", "bias_mask", "rope_periods", "local_cls_norm.weight", "local_cls_norm.bias")
"""Unused tensors that only files of the model's own family have, so that those of others do not miss them."""


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint in its own family's format, read or to be written.

    The documents are the JSON files that belong to it, by file name, such as ``config.json``; ``sidecar`` is the file
    with the weights' own name and the ending .json.
    """

    tensors: State  # by the family's names
    documents: Mapping[str, Any] = field(default_factory=dict)
    name: str = "checkpoint"  # what the user gave, for messages
    inside: str | None = None  # the entry of a .pth that holds the tensors, if others may be beside it


@dataclass(frozen=True)
class Hints:
    """Facts that the user supplies; None leaves them to the file."""

    heads: int | None = None
    image_size: tuple[int, int] | None = None  # height and width in pixels that the position embeddings are for
    keep_decoder: bool = False  # whether the decoder of a masked autoencoder is to be kept


@dataclass(frozen=True)
class ImportedModel:
    """A checkpoint of another family, converted to this package's names; None for what the file does not have."""

    family: str
    config: ViTConfig  # reproduces the family's own computation
    state: State
    layout: dict[str, Any]  # JSON values that ``write`` needs to produce the same file again
    reasons: list[str]  # lines for the user: what was recognised or assumed, and why
    classes: tuple[str, ...] | None = None
    pipeline: EvalPipeline | None = None
    kept: State = field(default_factory=dict)  # read by no forward pass, such as a mask token; to be written again
    several: bool = False  # whether an image may have several labels, by a sigmoid for each


@dataclass(frozen=True)
class OutgoingModel:
    """A model of this package, to be written in another family's format."""

    config: ViTConfig
    state: State
    layout: Mapping[str, Any]  # of the file that it was read from; empty if it came from another family
    kept: State  # tensors that no forward pass reads
    classes: tuple[str, ...]
    pipeline: EvalPipeline
    several: bool = False  # whether an image may have several labels

    def raise_if_unsupported(self, family: str, unsupported: dict[str, bool], *, keeps: bool = False) -> None:
        """Raise one error that lists everything in the model that a family cannot express.

        `unsupported` describes the features that the family lacks, and says whether the model has them. Unless the
        family `keeps` the unused tensors, they are listed too.
        """
        problems = [feature for feature, is_used in unsupported.items() if is_used]
        position = self.config.position
        if isinstance(position, LearnedPosition) and position.layers != "first":  # no other family has them
            problems.append(f"positions added before every block (position.layers {position.layers})")
        if (attention := self.config.attention.kind) != AttentionConfig.kind:  # likewise
            problems.append(f"{attention} attention")
        unused = [name for name in self.kept if not keeps and name not in OWN]
        names = dict.fromkeys("decoder" if name.startswith(DECODER) else name for name in unused)
        problems += [f"{name} (--drop {name} leaves it out)" for name in names]
        if problems:
            raise CheckpointError(
                f"{family} cannot express this model: {'; '.join(problems)}. `vitreous export` takes any model"
            )


def has_decoder(kept: Mapping[str, Tensor]) -> bool:
    """Return whether there is a decoder among the tensors that no forward pass reads."""
    return any(name.startswith(DECODER) for name in kept)


def beyond_the_paper(c: ViTConfig) -> dict[str, bool]:
    """Return parts that the paper's models do not have and few families can express, and whether the model has them."""
    return {
        f"block {c.block.kind}": c.block.kind != BlockConfig.kind,
        f"mlp {c.mlp.kind}": c.mlp.kind != MlpConfig.kind,
        "a norm in the MLP": c.mlp.norm,
        f"activation {c.mlp.activation}": c.mlp.kind == MlpConfig.kind and c.mlp.activation in ("quick-gelu", "silu"),
        "a norm of attention's output": c.attention.out_norm,
        "a bias of queries and values, but not of keys": c.attention.qkv_bias and not c.attention.key_bias,
        f"norm {c.norm}": c.norm != "layer",
        "a norm before the blocks": c.input_norm,
        "a patch projection without bias": getattr(c.stem, "bias", True) is False,
        "a projection behind the pooling": isinstance(c.head, MlpHead)
        and not (c.head.bias and c.head.activation != "none"),
        "another number of heads or another MLP in its pooling": isinstance(c.pool, AttentionPool)
        and not (c.pool.heads in (None, c.heads) and c.pool.mlp_dim in (None, c.mlp_dim)),
    }


def note_on_epsilon(program: str, epsilon: float, config: ViTConfig) -> str:
    """Return the line for the user on the epsilon of norms, which a program fixes at another value than the model's."""
    return f"{program} normalises with epsilon {epsilon:g}, this model with {config.norm_eps:g}"


def join_first(items: Iterable[str]) -> str:
    """Join the first items and state how many more there are."""
    shown = list(items)
    rest = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + rest


def distinct(classes: tuple[str, ...]) -> tuple[tuple[str, ...], list[int]]:
    """Append the index to class names that occur twice (ImageNet has two cranes); return which were renamed."""
    count = Counter(classes)
    renamed = [i for i, name in enumerate(classes) if count[name] > 1]
    names = list(classes)
    for i in renamed:
        names[i] = f"{classes[i]} #{i}"
    return tuple(names), renamed
