"""A register that is added to a trained model and takes its outlier tokens (arXiv 2506.08010).

The activations of register neurons move from the patches to the register. Outliers then arise there and not in patches,
as in a model that was trained with registers, and patch features and attention maps lose their artefacts.

Shapes: B batch, P prefix tokens ([CLS] and registers), T tokens, D width, M neurons of an MLP, m register neurons.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitreous.accelerate.model import FastVisionTransformer, accelerate
from vitreous.errors import ConfigError, pluralize
from vitreous.inspection.passes import BATCH_SIZE, Images
from vitreous.inspection.registers.neurons import RegisterNeuron, register_neurons
from vitreous.model.mlp import Mlp
from vitreous.model.vit import VisionTransformer

__all__ = ["RegisterMlp", "move_to_register", "with_test_time_registers"]


def with_test_time_registers(
    model: Any, images: Images, *, max_neurons: int = 10, min_share: float = 0.05, batch_size: int = BATCH_SIZE
) -> VisionTransformer:
    """Find the register neurons of a model and return a copy in which a new register takes their activations.

    A model without outlier tokens in these images needs no register: its copy is unchanged.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast, in evaluation mode.
        images: Normalised images to find the neurons with, (B, C, H, W), or a list of batches.
        max_neurons: As in :func:`~vitreous.inspection.registers.neurons.register_neurons`.
        min_share: Likewise.
        batch_size: Images per pass.

    Returns:
        The copy; see :func:`move_to_register`. Without outliers, it has no register more than the model.

    Raises:
        ConfigError: If there are outlier tokens, but no neuron causes them.
        DataError: If there are no images.
    """
    found = register_neurons(model, images, max_neurons=max_neurons, min_share=min_share, batch_size=batch_size)
    if found.block is None:
        return cast(VisionTransformer, copy.deepcopy(model))
    if not found.neurons:
        raise ConfigError(
            f"the images have {found.outliers} outlier tokens, but no neuron writes {min_share:g} of their norm: "
            "a register cannot take them; lower min_share, or pass more images"
        )
    return move_to_register(model, found.neurons)


def move_to_register(model: Any, neurons: Iterable[RegisterNeuron]) -> VisionTransformer:
    """Return a copy of a model with one more register, which takes the activations of the given neurons.

    In the MLP of a block, each of its register neurons gets its largest activation among the patches on the new
    register, and zero on the patches. [CLS] and other registers keep theirs. The register starts at zero and has no
    position. Pooling ignores it, except where ``pool.prefix`` makes it read [CLS] or registers that the model has.

    The state dict of the copy has the names of the model's; ``reg_token`` (and ``pos_embed``, if registers have
    positions) has one row more, of zeros. The neurons are not part of it: apply this function again after loading.

    Args:
        model: A :class:`~vitreous.model.vit.VisionTransformer`, plain or fast. It stays as it is.
        neurons: At least one.

    Raises:
        ConfigError: If there are no neurons, the model lacks one, or it or its MLP is of another class.
    """
    by_block: dict[int, list[int]] = {}
    for each in neurons:
        by_block.setdefault(each.block, []).append(each.neuron)
    _check(model, by_block)
    config = model.config.with_options({"registers": model.config.registers + 1})
    if getattr(config.pool, "prefix", False) and not model.config.prefix_tokens:
        config = config.with_options({"pool": {"prefix": False}})
    changed = VisionTransformer(config)
    changed.load_state_dict(_with_another_register(model))
    changed = changed.to(model.patch_embed.proj.weight).train(model.training)
    changed.requires_grad_(model.patch_embed.proj.weight.requires_grad)
    for block, indices in by_block.items():
        changed.blocks[block].mlp = RegisterMlp(cast(Mlp, changed.blocks[block].mlp), indices, config.prefix_tokens)
    return accelerate(changed) if isinstance(model, FastVisionTransformer) else changed


class RegisterMlp(nn.Module):
    """An MLP in which some neurons act on the last register instead of the patches. It shares the MLP's layers.

    Args:
        mlp: The MLP.
        neurons: Indices of the m neurons.
        prefix: Number of tokens before the patches (P); the last of them is the register.
    """

    neurons: Tensor

    def __init__(self, mlp: Mlp, neurons: list[int], prefix: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2, self.drop, self.prefix = mlp.fc1, mlp.act, mlp.fc2, mlp.drop, prefix
        self.norm = mlp.norm
        index = torch.tensor(sorted(set(neurons)), device=mlp.fc1.weight.device)
        self.register_buffer("neurons", index, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, T, D). Where a fast model computes the class token alone, nothing moves."""
        return cast(Tensor, self.drop(self.fc2(self.norm(self.drop(self.hidden(x))))))

    def hidden(self, x: Tensor) -> Tensor:
        """Return the activations of the hidden layer, (B, T, M), after they have moved."""
        hidden = self.act(self.fc1(x))  # (B, T, M)
        if x.shape[1] <= self.prefix:
            return cast(Tensor, hidden)
        chosen = hidden[..., self.neurons]  # (B, T, m)
        before, patches = chosen[:, : self.prefix - 1], chosen[:, self.prefix :]
        moved = torch.cat((before, patches.amax(1, keepdim=True), torch.zeros_like(patches)), 1)
        return cast(Tensor, hidden.index_copy(2, self.neurons, moved))


def _check(model: Any, by_block: dict[int, list[int]]) -> None:
    """Raise a ConfigError unless the neurons can be moved."""
    if type(model) not in (VisionTransformer, FastVisionTransformer):
        raise ConfigError(f"the model is a {type(model).__name__}: a register is added to a VisionTransformer only")
    if getattr(model, "merging", None):
        raise ConfigError("the model merges tokens, so registers have no place: call merge_tokens(model, 0) first")
    if model.config.position.kind == "relative-bias" and not model.config.prefix_tokens:
        raise ConfigError(
            "position relative-bias has no biases of registers in this model: use one with a class token or a register"
        )
    if model.config.pool.kind == "prefix":
        raise ConfigError("pool prefix reads all registers, so none can be added: use a model with another pool")
    if not by_block:
        raise ConfigError("there are no register neurons to move: find them with register_neurons")
    depth, width = model.config.depth, model.config.mlp_dim
    for block, indices in by_block.items():
        if not 0 <= block < depth or not all(0 <= index < width for index in indices):
            raise ConfigError(
                f"block {block} with neurons {indices} does not exist: "
                f"the model has {pluralize(depth, 'block')} of {width} neurons"
            )
        if type(model.blocks[block].mlp) is not Mlp:
            kind = type(model.blocks[block].mlp).__name__
            raise ConfigError(f"the MLP of block {block} is a {kind}: neurons of an Mlp only can be moved")


def _with_another_register(model: Any) -> dict[str, Tensor]:
    """Return the state dict of a model with a register of zeros after the others."""
    config, state = model.config, dict(model.state_dict())
    row = state["patch_embed.proj.weight"].new_zeros(1, 1, config.width)
    state["reg_token"] = torch.cat((state.get("reg_token", row[:, :0]), row), 1)
    position = config.position
    names = position.parameters(config)
    larger = position.parameters(config.with_options({"registers": config.registers + 1}))
    for name in (name for name in names if names[name].shape != larger[name].shape):
        P = config.prefix_tokens  # the register follows the prefix tokens, which come first in the table
        state[name] = torch.cat((state[name][:, :P], row, state[name][:, P:]), 1)
    return state
