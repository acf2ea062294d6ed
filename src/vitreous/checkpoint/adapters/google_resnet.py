"""The ResNet stem of Google's hybrid models: ``conv_root``, ``gn_root`` and ``block1/unit1/...``.

Kernels are height x width x in x out in Google's files, out x in x height x width in this package.
"""

from __future__ import annotations

import re

from vitreous.checkpoint.adapters.common import State

__all__ = ["read", "write"]

_STEM = "patch_embed.backbone."
_UNIT = {
    "conv_proj": "downsample.conv",
    "gn_proj": "downsample.norm",
    **{f"conv{i}": f"conv{i}" for i in (1, 2, 3)},
    **{f"gn{i}": f"norm{i}" for i in (1, 2, 3)},
}
_ROOT = {"conv_root": "stem.conv", "gn_root": "stem.norm"}
_BACK = {ours: theirs for theirs, ours in _UNIT.items()}
_ROOT_BACK = {ours: theirs for theirs, ours in _ROOT.items()}


def read(tree: State, state: State) -> None:
    """Move the stem's arrays, if any, from Google's tree to `state`, under this package's names."""
    for name in list(tree):
        unit = re.fullmatch(r"block(\d+)/unit(\d+)/(\w+)/(kernel|scale|bias)", name)
        root = re.fullmatch(r"(conv_root|gn_root)/(kernel|scale|bias)", name)
        if unit and unit[3] in _UNIT:
            module = f"stages.{int(unit[1]) - 1}.blocks.{int(unit[2]) - 1}.{_UNIT[unit[3]]}"
            kind = unit[4]
        elif root:
            module, kind = _ROOT[root[1]], root[2]
        else:
            continue
        t = tree.pop(name)
        t = t.permute(3, 2, 0, 1) if kind == "kernel" else t.flatten()
        state[f"{_STEM}{module}.{'bias' if kind == 'bias' else 'weight'}"] = t


def write(state: State, tree: State, norm_rank: int) -> None:
    """Add the stem's tensors, if any, to Google's tree; group norms get shape 1 x ... x C of rank `norm_rank`."""
    for name in [name for name in state if name.startswith(_STEM)]:
        module, _, kind = name.removeprefix(_STEM).rpartition(".")
        match = re.fullmatch(r"stages\.(\d+)\.blocks\.(\d+)\.(.+)", module)
        unit = f"block{int(match[1]) + 1}/unit{int(match[2]) + 1}/{_BACK[match[3]]}" if match else _ROOT_BACK[module]
        t = state[name]
        if t.ndim == 4:
            tree[f"{unit}/kernel"] = t.permute(2, 3, 1, 0)
        else:
            tree[f"{unit}/{'scale' if kind == 'weight' else 'bias'}"] = t.view(*(1,) * (norm_rank - 1), -1)
