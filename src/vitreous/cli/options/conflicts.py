"""Checks for options that contradict each other, or that have no effect because of another option.

Only options that were typed are checked: a recipe or a configuration file sets every field, effective or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from vitreous.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from vitreous.model.config import ViTConfig
    from vitreous.train.config import RunConfig

__all__ = ["SIZE_FIELDS", "reject_idle_options", "reject_size_mismatch", "reject_synonyms", "resolve_length"]

SIZE_FIELDS = ("width", "depth", "mlp_dim", "heads")
"""The fields of a model that the name of a size sets, besides its patches."""

_LENGTHS = ("epochs", "steps", "budget")
_OF_MAE = ("aux.weight", "aux.classify", "aux.end", "aux.mask", "aux.decoder_width", "aux.decoder_depth",
           "aux.decoder_heads", "aux.normalise")  # fmt: skip
_OF_FIXMATCH = ("aux.pseudo_weight", "aux.threshold", "aux.begin")


class _Idle(NamedTuple):
    """Fields that have no effect if ``is_idle`` holds; ``reason`` is formatted with the configuration as ``c``."""

    fields: tuple[str, ...]
    is_idle: Callable[[RunConfig], bool]
    reason: str


def _mixes(c: RunConfig) -> bool:
    return bool(c.augment.mixup or c.augment.cutmix)


_IDLE = (
    _Idle(("augment.policy_ops", "augment.policy_magnitude"), lambda c: c.augment.policy != "rand",
          "augment.policy is {c.augment.policy}, only rand uses it"),
    _Idle(("augment.mix_chance", "augment.mix_after"), lambda c: not _mixes(c),
          "augment.mixup and augment.cutmix are 0, so nothing is mixed"),
    _Idle(("augment.off_last",), lambda c: not (_mixes(c) or c.augment.policy != "none" or c.augment.erasing),
          "there is no policy, erasing, mixup or cutmix to turn off"),
    _Idle(("augment.resized_crop_ratio",), lambda c: c.augment.resized_crop == 1,
          "augment.resized_crop is 1, which turns it off"),
    _Idle(("augment.small_until",), lambda c: not c.augment.small_first, "augment.small_first is empty"),
    _Idle(("patches_last",), lambda c: c.model.patch_dropout == 0, "model.patch_dropout is 0, so all patches are kept"),
    _Idle(("preprocess.crop_ratio",), lambda c: c.preprocess.fit != "crop",
          "preprocess.fit is {c.preprocess.fit}, only crop uses it"),
    _Idle(("optim.muon_lr", "optim.muon_stem"), lambda c: c.optim.name != "muon",
          "optim.name is {c.optim.name}, only muon uses it"),
    _Idle(("optim.momentum",), lambda c: c.optim.name not in ("sgd", "muon"),
          "optim.name is {c.optim.name}, only sgd and muon use it"),
    _Idle(("optim.betas",), lambda c: c.optim.name == "sgd", "optim.name is sgd, which has none"),
    _Idle(("optim.final_lr",), lambda c: c.optim.schedule not in ("cosine", "linear"),
          "optim.schedule is {c.optim.schedule}, only cosine and linear end at it"),
    _Idle(("tune.lora_rank", "tune.lora_alpha"), lambda c: c.tune.mode not in ("auto", "lora"),
          "tune.mode is {c.tune.mode}, only auto and lora use it"),
    _Idle(("tune.probe",), lambda c: c.tune.mode == "auto",
          "tune.mode is auto: k-NN and the linear head are stages, as they cost seconds"),
    _Idle(("distil.targets", "distil.features", "distil.temperature", "distil.weight", "distil.feature_weight",
           "distil.views"),
          lambda c: c.distil.teacher is None, "there is no teacher: set distil.teacher"),
    _Idle(("distil.temperature", "distil.weight"), lambda c: c.distil.teacher is not None and not c.distil.uses_logits,
          "distil.targets is features, only logits and both use it"),
    _Idle(("distil.features", "distil.feature_weight"),
          lambda c: c.distil.teacher is not None and not c.distil.uses_features,
          "distil.targets is logits, only features and both use it"),
    _Idle((*_OF_MAE, *_OF_FIXMATCH, "aux.unlabelled", "aux.unlabelled_ratio", "aux.model", "aux.soft",
           "aux.min_probability"),
          lambda c: c.aux.method == "none", "aux.method is none: set it"),
    _Idle(("aux.model", "aux.soft", "aux.min_probability"),
          lambda c: c.aux.has_task or c.aux.method == "auto",
          "aux.method is {c.aux.method}, only self-training uses it"),
    _Idle(("aux.unlabelled", "aux.unlabelled_ratio"), lambda c: c.aux.method == "auto",
          "aux.method is auto, which learns from labelled images alone: set it"),
    _Idle((*_OF_MAE, *_OF_FIXMATCH, "aux.unlabelled_ratio"), lambda c: c.aux.method == "self-training",
          "aux.method is self-training, which trains on predicted labels as on given ones"),
    _Idle(_OF_MAE, lambda c: c.aux.method == "fixmatch", "aux.method is fixmatch, only mae uses it"),
    _Idle(_OF_FIXMATCH, lambda c: c.aux.method in ("auto", "mae"),
          "aux.method is {c.aux.method}, only fixmatch uses it"),
    _Idle(("labels.gamma_negative", "labels.gamma_positive", "labels.margin"),
          lambda c: c.labels.loss == "bce", "labels.loss bce has no weights: set labels.loss asymmetric"),
    _Idle(("tune.probe",), lambda c: c.tune.source is None, "there is no trained model to probe: set tune.source"),
    _Idle(("optim.layer_decay", "optim.muon_lr", "optim.muon_stem", "model.block.drop_path", "model.dropout",
           "model.attention.dropout", "model.attention.proj_dropout", "model.block.checkpoint"),
          lambda c: c.tune.mode == "linear",
          "tune.mode is linear: only the head is trained, and the blocks run in evaluation mode"),
)  # fmt: skip


def reject_idle_options(typed: Mapping[str, Any], config: RunConfig, before: RunConfig) -> None:
    """Reject typed options that have no effect in ``config`` and differ from the configuration ``before`` them."""
    problems = [
        f"{name} has no effect here: {rule.reason.format(c=config)}"
        for rule in _IDLE
        for name in rule.fields
        if _is_typed(name, typed) and rule.is_idle(config) and attrgetter(name)(config) != attrgetter(name)(before)
    ]
    if problems:
        raise ConfigError("; ".join(problems) + ". Remove it, or change the other option")


def _is_typed(name: str, typed: Mapping[str, Any]) -> bool:
    """Whether an option such as ``model.block.drop_path`` is among the options typed."""
    group, _, rest = name.partition(".")
    below = typed.get(group)
    return group in typed and (not rest or (isinstance(below, Mapping) and _is_typed(rest, below)))


def resolve_length(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Reject more than one length of the run; return the options with the other lengths set to None."""
    lengths = [name for name in _LENGTHS if typed.get(name) is not None]
    if len(lengths) > 1:
        options = " and ".join(f"--{name} {typed[name]}" for name in lengths)
        raise UsageError(f"{options} contradict each other: each sets the length of the run. Give one of them")
    return {**(dict.fromkeys(("steps", "budget")) if lengths else {}), **typed}


def reject_size_mismatch(name: str, named: ViTConfig, typed: Mapping[str, Any]) -> None:
    """Reject typed fields of the model that differ from ``named``, the size that --model ``name`` means."""
    fields = [*SIZE_FIELDS, *(["patch_size"] if "/" in name else [])]
    differing = [
        f"--model.{field} {typed[field]}, but --model {name} means {getattr(named, field)}"
        for field in fields
        if field in typed and typed[field] != getattr(named, field)
    ]
    stem = typed.get("stem", {}).get("kind", "resnet")
    if named.stem.kind == "resnet" and stem != "resnet":
        differing.append(f"--model.stem {stem}, but --model {name} means resnet")
    if differing:
        raise UsageError(f"{'; '.join(differing)}: remove one of them")


def reject_synonyms(spellings: Mapping[str, Sequence[str]]) -> None:
    """Reject a setting given under two names; ``spellings`` has the names typed for each setting."""
    for names in spellings.values():
        different = list(dict.fromkeys(name.replace("_", "-") for name in names))
        if len(different) > 1:
            raise UsageError(f"{' and '.join(different)} set the same thing: give one of them")
