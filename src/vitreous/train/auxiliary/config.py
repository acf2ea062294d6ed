"""The options of a second task, and of images without a label.

They belong to :class:`~vitreous.train.config.RunConfig`, as `aux`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vitreous.choices import unknown_choices
from vitreous.data.sources.urls import check_address
from vitreous.errors import ConfigError

if TYPE_CHECKING:  # runs without a second task do not import it
    from vitreous.train.pretrain.objectives.mae import AuxMaeConfig

__all__ = ["AuxConfig"]

_MOST_UNLABELLED = 100  # times the labelled images of a step, which share its memory


@dataclass(frozen=True)
class AuxConfig:
    """A second task beside classification, or labels that another model predicts, for data with few labels.

    The code is in :mod:`vitreous.train.auxiliary`.

    `mae` is SSAT (arXiv 2310.20704) made as cheap as classification alone. SSAT as in its published code, but for the
    width and heads of the decoder, is `classify` whole, `mask` 0.75 and `end` 1. FixMatch (arXiv 2001.07685) has a
    threshold of 0.95, which models trained with label smoothing seldom reach, and begins at once.

    Args:
        method: The task. `none`: classification alone. `auto`: mae on the labelled images where a run from random
            weights allows it, else none. `mae`: a small decoder, which is not saved, predicts the hidden
            patches of each training image from what the encoder makes of the others. `fixmatch`: if the model is
            confident about an unlabelled image, its prediction becomes the label of the augmented image.
            `self-training`: another model, trained before, labels the unlabelled images once, and they are trained on
            like the others.
        weight: Share of the reconstruction in the loss of mae, in (0, 1); classification has the rest.
        classify: What mae classifies: the `visible` patches that it encodes anyway, or in a second pass the `whole`
            image.
        end: Fraction of the run after which mae leaves classification of whole images alone, in (0, 1]. With 1 and
            `visible`, a run never trains on a whole image.
        pseudo_weight: Weight of the unlabelled images in the loss of fixmatch, beside 1 of the labelled ones; above 0.
        threshold: Probability from which a prediction becomes a label, in (0, 1].
        begin: Fraction of the run after which fixmatch uses the unlabelled images, in [0, 1): early predictions
            are poor.
        mask: Fraction of the patches that are hidden, in (0, 1).
        decoder_width: Width of the decoder, a multiple of 4 and of its heads. None: about half that of the encoder.
        decoder_depth: Blocks of the decoder.
        decoder_heads: Attention heads of the decoder.
        normalise: Whether the targets are normalised patch by patch, instead of being plain pixels.
        unlabelled: Images that the task sees too, without their labels: a folder, at any depth, a manifest or shards.
            Rows of DATA that have no label, if it is a manifest, are used without this option.
        unlabelled_ratio: Unlabelled images in each step for each labelled one; 0 leaves them out. Self-training sees
            all images equally often.
        model: The models of self-training, classifiers of the classes of the data, whose probabilities are averaged:
            each a model.safetensors, a run directory, or a file, folder or hub id of any supported family.
        soft: Whether self-training learns the predicted probabilities of all classes, or the predicted labels.
        min_probability: Least probability of a prediction of self-training; images below it are left out, in [0, 1).
    """

    method: Literal["none", "auto", "mae", "fixmatch", "self-training"] = "none"
    weight: float = 0.9
    classify: Literal["visible", "whole"] = "visible"
    end: float = 0.5
    pseudo_weight: float = 1.0
    threshold: float = 0.6
    begin: float = 0.3
    mask: float = 0.5
    decoder_width: int | None = None
    decoder_depth: int = 2
    decoder_heads: int = 4
    normalise: bool = False
    unlabelled: str | None = None
    unlabelled_ratio: float = 1.0
    model: tuple[str, ...] = ()
    soft: bool = True
    min_probability: float = 0.0

    def __post_init__(self) -> None:
        """Check choices and ranges, and report all problems in one error."""
        object.__setattr__(self, "model", tuple([self.model] if isinstance(self.model, str) else self.model))
        problems = [*unknown_choices(self), *self._out_of_range()]
        if self.method == "self-training" and not self.model:
            problems.append(
                "aux.model is not set, but aux self-training needs a trained classifier that labels the images: train "
                "one on the labelled images alone, and give its run directory, as in --aux.model runs/first"
            )
        if self.method == "fixmatch" and self.unlabelled_ratio == 0:
            problems.append(
                "aux.unlabelled_ratio is 0, but aux fixmatch learns from unlabelled images: set it above 0, or omit aux"
            )
        elif self.unlabelled is not None and self.unlabelled_ratio == 0 and self.method != "self-training":
            problems.append(
                f"aux.unlabelled_ratio 0 leaves out the images of unlabelled {self.unlabelled}: omit one of them"
            )
        if self.unlabelled is not None:
            check_address(self.unlabelled)
        if problems:
            raise ConfigError("; ".join(problems))
        if self.method in ("auto", "mae"):
            _ = self.mae  # which checks its own ranges

    def _out_of_range(self) -> Iterator[str]:
        if not 0 < self.weight < 1:
            yield f"aux.weight is {self.weight}, it is a share of the loss and must be in (0, 1)"
        if not 0 < self.pseudo_weight < math.inf:
            yield f"aux.pseudo_weight is {self.pseudo_weight}, it must be a number above 0"
        if not 0 < self.threshold <= 1:
            yield f"aux.threshold is {self.threshold}, it is a probability and must be in (0, 1]"
        if not 0 <= self.begin < 1:
            yield f"aux.begin is {self.begin}, it is a fraction of the run and must be in [0, 1)"
        if not 0 < self.end <= 1:
            yield f"aux.end is {self.end}, it is a fraction of the run and must be in (0, 1]"
        if not 0 <= self.min_probability < 1:
            yield f"aux.min_probability is {self.min_probability}, it is a probability and must be in [0, 1)"
        if not 0 <= self.unlabelled_ratio <= _MOST_UNLABELLED:
            yield (
                f"aux.unlabelled_ratio is {self.unlabelled_ratio}, it is a number of images for each labelled one and "
                f"must be between 0 and {_MOST_UNLABELLED}"
            )

    @property
    def sees_whole(self) -> bool:
        """Whether unlabelled images are also needed without their random crop."""
        return self.method == "fixmatch"

    @property
    def phase_starts(self) -> tuple[float, ...]:
        """Fractions of the run at which the time of its steps changes."""
        return {"fixmatch": (self.begin,), "mae": (self.end,)}.get(self.method, ())

    @property
    def sees_unlabelled(self) -> bool:
        """Whether the run uses images without a label."""
        return self.method == "self-training" or (self.has_task and self.unlabelled_ratio > 0)

    @property
    def is_named(self) -> bool:
        """Whether a method is asked for by its name."""
        return self.method not in ("none", "auto")

    @property
    def has_task(self) -> bool:
        """Whether a second task changes the loss."""
        return self.method in ("mae", "fixmatch")

    @property
    def mae(self) -> AuxMaeConfig:
        """The options of the masked autoencoder."""
        from vitreous.train.pretrain.objectives.mae import AuxMaeConfig

        return AuxMaeConfig(self.mask, self.decoder_width, self.decoder_depth, self.decoder_heads, self.normalise)

    def conflicts(self, mode: str, *, teacher: bool, compiles: bool, processes: int) -> Iterator[str]:
        """Yield a sentence for each contradiction to other options of a run with a second task.

        ``mode`` is that of :class:`~vitreous.train.config.TuneConfig`.
        """
        if not self.has_task:
            if self.method == "self-training" and processes > 1:
                yield "a run with aux self-training uses one process: omit devices and nodes"
            return
        if mode != "full":
            yield f"aux {self.method} trains all weights, but tune is {mode}: use tune full"
        if teacher:
            yield f"aux {self.method} and a teacher both change the loss: use one of them"
        if compiles:
            yield f"aux {self.method} does not go with compile: omit compile"
        if processes > 1:
            yield f"a run with aux {self.method} uses one process: omit devices and nodes"
