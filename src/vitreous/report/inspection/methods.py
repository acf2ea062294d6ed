"""The names of map methods for readers, with the options that matter to what a map shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["method_title", "option_text"]

_TITLES = {
    "gradient-attention": "Gradient x attention",
    "legrad": "LeGrad",
    "grad-cam": "Grad-CAM",
    "integrated-gradients": "Integrated gradients",
    "occlusion": "Occlusion",
    "rollout": "Attention rollout",
    "random": "Random values",
}


def method_title(method: str, options: Mapping[str, Any]) -> str:
    """Return the title of a method with these options; missing options have their defaults."""
    if method != "attention":
        return _TITLES.get(method, method)
    head, layer = options.get("head"), _block(options.get("layer", -1))
    return f"Attention of {layer}" if head is None else f"Attention of head {head} of {layer}"


def option_text(method: str, options: Mapping[str, Any]) -> str:
    """Return a clause about the options, or nothing if the title or the defaults say it all."""
    if method == "rollout" and options:
        return f"; heads by their {options['fusion']}, identity with weight {options['residual']:g}"
    if method == "grad-cam" and options.get("layer", -1) != -1:
        return f"; input of {_block(options['layer'])}"
    if method == "integrated-gradients" and options:
        return f"; {options['steps']} steps"
    return ""


def _block(layer: int) -> str:
    if layer < 0:
        return "the last block" if layer == -1 else f"block {-layer} from the end"
    return f"block {layer}"
