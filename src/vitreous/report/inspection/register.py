"""The part of the page about a test-time register: token norms and accuracy with and without it.

Shapes: L blocks, n images, N patches.
"""

from __future__ import annotations

from collections.abc import Iterator

from vitreous.errors import pluralize
from vitreous.inspection.registers.effect import RegisterEffect
from vitreous.report.inspection.charts import Chart, Series
from vitreous.report.inspection.figures import chart_figure

__all__ = ["register_figures", "register_summary"]


def register_figures(effect: RegisterEffect) -> Iterator[str]:
    """Yield the figure of norms with and without the register, or a sentence if nothing moved."""
    if not effect.moved:
        yield (
            '<figure class="wide"><figcaption>Test-time register</figcaption>'
            f"<p>{register_summary(effect)}</p></figure>\n"
        )
        return
    without, with_register = (norms.patches.max((1, 2)).tolist() for norms in (effect.before, effect.after))
    register = effect.after.norms[:, :, effect.after.prefix_tokens - 1].mean(1).tolist()
    yield chart_figure(
        "Token norms with a test-time register",
        "Largest patch after each block, orange: without, blue: with the register; green: the register itself. "
        + register_summary(effect),
        Chart(
            [
                Series(without, "orange", True, "largest patch without"),
                Series(with_register, "blue", True, "largest patch with the register"),
                Series(register, "green", True, "the register"),
            ],
            "norm",
            f"Largest norm of a patch: {max(without):.3g} without, {max(with_register):.3g} with the register",
        ),
    )


def register_summary(effect: RegisterEffect) -> str:
    """Say what moved, and what that changed."""
    found, images = effect.found, pluralize(effect.before.norms.shape[1], "image")
    outliers = pluralize(found.outliers, "outlier")
    if found.block is None:
        text = f"No patch of {images} is an outlier: the model needs no register, and is left as it is."
    elif not effect.moved:
        text = f"{outliers} in {images}, but no neuron causes them: nothing moves."
    else:
        after = int(effect.after.outliers().mask[found.block].sum())
        neurons = ", ".join(f"{each.neuron} of block {each.block}" for each in found.neurons)
        noun = "neuron" if len(found.neurons) == 1 else "neurons"
        text = f"{outliers} after block {found.block} in {images}, {after} with the register; moved: {noun} {neurons}."
    if effect.accuracy is not None:
        without, with_register = effect.accuracy
        scored = pluralize(effect.scored_images, "labelled image")
        both = f"{without:.1%} without, {with_register:.1%} with the register" if effect.moved else f"{without:.1%}"
        text += f" {'mAP' if effect.several else 'Top-1 accuracy'} on {scored}: {both}."
    return text
