"""Register neurons: the few MLP neurons that give outlier tokens their norm (arXiv 2506.08010).

The paper ranks neurons by their activation on outlier tokens. Here they are ranked by how much of the outliers' norm
they write: the residual stream is a sum, so the length of a token along its own direction splits exactly into one term
per neuron, per attention, and so on. A large activation that writes nothing along that direction causes no outlier.

Shapes: B images, N patches, P prefix tokens ([CLS] and registers), T = P + N tokens, L blocks, D width, M neurons of an
MLP, S outlier tokens of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import ConfigError
from vitreous.inspection.norms import RATIO, SPREADS, Outliers, token_norms
from vitreous.inspection.passes import BATCH_SIZE, Images, batches, passes
from vitreous.model.intermediates import LayerValues

__all__ = ["RegisterNeuron", "RegisterNeurons", "mlp_activations", "register_neurons"]


@dataclass(frozen=True)
class RegisterNeuron:
    """One neuron of the hidden layer of an MLP.

    Attributes:
        block: Number of the block, from 0.
        neuron: Index in the hidden layer of its MLP, from 0.
        share: Mean share of the norm of outlier tokens that the neuron writes, less what it writes along the same
            directions into the other patches.
        on_outliers: Mean activation on outlier tokens.
        elsewhere: Mean activation on the other patches.
    """

    block: int
    neuron: int
    share: float
    on_outliers: float
    elsewhere: float


@dataclass(frozen=True)
class RegisterNeurons:
    """The neurons that cause outlier tokens, largest share first; empty if there are no outliers.

    Attributes:
        neurons: The neurons.
        block: The block after which the outliers first have their norm, or None without outliers.
        outliers: Number of outlier tokens after that block, in all images.
    """

    neurons: tuple[RegisterNeuron, ...]
    block: int | None
    outliers: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "neurons": [vars(neuron) for neuron in self.neurons],
            "block": self.block,
            "outliers": self.outliers,
        }


def register_neurons(
    model: Any,
    images: Images,
    *,
    max_neurons: int = 10,
    min_share: float = 0.05,
    spreads: float = SPREADS,
    ratio: float = RATIO,
    batch_size: int = BATCH_SIZE,
) -> RegisterNeurons:
    """Find the MLP neurons that cause outlier tokens.

    Outliers are taken after the first block that has at least half as many as any block. All neurons up to that block
    are candidates.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised, (B, C, H, W), or a list of batches; they are read twice.
        max_neurons: Largest number of neurons, at least 1.
        min_share: Smallest share of the outliers' norm that a neuron must write, in (0, 1).
        spreads: As in :meth:`~vitreous.inspection.norms.TokenNorms.outliers`.
        ratio: Likewise.
        batch_size: Images per pass. The result does not depend on it.

    Raises:
        ConfigError: If a value is out of range, the model is in training mode, or the images do not fit.
        DataError: If there are no images.
    """
    if max_neurons < 1 or not 0 < min_share < 1:
        raise ConfigError(
            f"max_neurons is {max_neurons} and min_share {min_share}: use at least 1, and a share between 0 and 1"
        )
    images = images if isinstance(images, Tensor) else list(images)
    outliers = token_norms(model, images, batch_size).outliers(spreads, ratio)
    if not outliers.any:
        return RegisterNeurons((), None, 0)
    block = int(np.argmax(outliers.share >= outliers.share.max() / 2))
    share, on_outliers, elsewhere = _contributions(model, images, block, outliers, batch_size)
    order = np.argsort(-share, axis=None, kind="stable")[:max_neurons]
    places = zip(*np.unravel_index(order, share.shape), strict=True)
    found = (
        RegisterNeuron(int(b), int(m), float(share[b, m]), float(on_outliers[b, m]), float(elsewhere[b, m]))
        for b, m in places
        if share[b, m] >= min_share
    )
    return RegisterNeurons(tuple(found), block, int(outliers.mask[block].sum()))


def mlp_activations(block: Any, layer: LayerValues) -> Tensor:
    """Return the hidden activations of the MLP of a block, (B, T, M), from the values of its attention.

    Args:
        block: The :class:`~vitreous.model.block.Block`, in evaluation mode.
        layer: What the block computed.
    """
    attended = block.attn.proj(block.attn.norm(layer.mixed.transpose(1, 2).flatten(2)))
    activations: Tensor = block.mlp.hidden(block.mlp_input(layer.before, attended))
    return activations


@torch.no_grad()
def _contributions(
    model: Any, images: Images, block: int, outliers: Outliers, batch_size: int
) -> tuple[np.ndarray[Any, Any], ...]:
    """Return share, mean activation on outliers and elsewhere of the neurons up to a block, (block + 1, M) each."""
    sums: Tensor | None = None
    counts, first = np.zeros(2), 0
    for batch in batches(model, images, batch_size):
        (values,) = passes(model, batch, len(batch), layers=range(block + 1))
        chosen = torch.from_numpy(outliers.mask[block, first : first + len(batch)]).to(batch.device)  # (B, N)
        first += len(batch)
        P = values.prefix_tokens
        tokens = values.layers[block].after[:, P:][chosen].double()  # (S, D)
        norms = tokens.norm(dim=1, keepdim=True)
        directions = tokens / norms
        found = []
        for number, layer in enumerate(values.layers):
            each = model.blocks[number]
            hidden = mlp_activations(each, layer)[:, P:].double()  # (B, N, M)
            written = each.ls2(each.mlp.fc2.weight.T).double()  # (M, D)
            active, rest = hidden[chosen], hidden[~chosen]  # (S, M), (B N - S, M)
            along = directions @ written.T / norms  # (S, M): share of the norm per unit of activation
            found.append(torch.stack([(active * along).sum(0), along.sum(0), active.sum(0), rest.sum(0)]))
        total = torch.stack(found)  # (block + 1, 4, M)
        sums = total if sums is None else sums + total
        counts += len(tokens), chosen.numel() - len(tokens)
    assert sums is not None  # `batches` raises without images
    share, along, active, rest = sums.cpu().numpy().swapaxes(0, 1)
    on_outliers, elsewhere = active / counts[0], rest / max(1, counts[1])
    return share / counts[0] - elsewhere * along / counts[0], on_outliers, elsewhere
