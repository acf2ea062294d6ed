"""Options that contradict each other, or that another setting leaves without effect: refused, before anything is read.

Only what was typed is judged: a recipe or a file of options holds every field, with effect or without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.errors import ConfigError, UsageError
from vitreous.model.config import ViTConfig
from vitreous.train.config import RunConfig

__all__ = ["one_length", "refuse_idle", "refuse_other_size", "refuse_two_spellings"]

_LENGTHS = ("epochs", "steps", "budget")
_SIZE_FIELDS = ("width", "depth", "mlp_dim", "heads")


@dataclass(frozen=True)
class _Idle:
    """Fields that have no effect under some configurations.

    Attributes:
        fields: By their full names.
        off: Whether they are without effect.
        why: The setting that leaves them so, with the configuration as ``c``.
    """

    fields: tuple[str, ...]
    off: Callable[[RunConfig], bool]
    why: str


def _mixes(c: RunConfig) -> bool:
    return bool(c.augment.mixup or c.augment.cutmix)


def _varies(c: RunConfig) -> bool:
    return _mixes(c) or c.augment.policy != "none" or bool(c.augment.erasing)


_IDLE = (
    _Idle(("augment.policy_ops", "augment.policy_magnitude"), lambda c: c.augment.policy != "rand",
          "augment.policy is {c.augment.policy}, only rand reads it"),
    _Idle(("augment.mix_chance", "augment.mix_after"), lambda c: not _mixes(c),
          "augment.mixup and augment.cutmix are 0, so nothing is mixed"),
    _Idle(("augment.off_last",), lambda c: not _varies(c),
          "there is no policy, erasing, mixup or cutmix to switch off"),
    _Idle(("augment.resized_crop_ratio",), lambda c: c.augment.resized_crop == 1,
          "augment.resized_crop is 1, which is off"),
    _Idle(("augment.small_until",), lambda c: not c.augment.small_first, "augment.small_first is empty"),
    _Idle(("patches_last",), lambda c: c.model.patch_dropout == 0, "model.patch_dropout is 0, so all patches are kept"),
    _Idle(("preprocess.crop_ratio",), lambda c: c.preprocess.fit != "crop",
          "preprocess.fit is {c.preprocess.fit}, only crop reads it"),
    _Idle(("optim.muon_lr", "optim.muon_stem"), lambda c: c.optim.name != "muon",
          "optim.name is {c.optim.name}, only muon reads it"),
    _Idle(("optim.momentum",), lambda c: c.optim.name not in ("sgd", "muon"),
          "optim.name is {c.optim.name}, only sgd and muon read it"),
    _Idle(("optim.betas",), lambda c: c.optim.name == "sgd", "optim.name is sgd, which has none"),
    _Idle(("optim.final_lr",), lambda c: c.optim.schedule not in ("cosine", "linear"),
          "optim.schedule is {c.optim.schedule}, only cosine and linear end at it"),
    _Idle(("tune.lora_rank", "tune.lora_alpha"), lambda c: c.tune.mode != "lora",
          "tune.mode is {c.tune.mode}, only lora reads it"),
    _Idle(("tune.probe",), lambda c: c.tune.source is None, "there is no trained model to probe: give tune.source"),
    _Idle(("optim.layer_decay", "optim.muon_lr", "optim.muon_stem", "model.drop_path", "model.dropout",
           "model.attention_dropout", "model.proj_dropout", "model.checkpoint_blocks"),
          lambda c: c.tune.mode == "linear",
          "tune.mode is linear: the head alone is trained, and the blocks compute as in evaluation"),
)  # fmt: skip

_IDLE_OF_MODELS = (  # where the model is the run's own, not a source's
    _Idle(("model.conv_stem", "model.conv_width"), lambda c: c.model.stem != "conv",
          "model.stem is {c.model.stem}, only conv reads it"),
    _Idle(("model.resnet_layers", "model.resnet_width", "model.resnet_norm"), lambda c: c.model.stem != "resnet",
          "model.stem is {c.model.stem}, only resnet reads it"),
    _Idle(("model.head_hidden", "model.head_activation"), lambda c: c.model.head != "mlp",
          "model.head is {c.model.head}, only mlp reads it"),
)  # fmt: skip


def refuse_idle(typed: Mapping[str, Any], config: RunConfig, before: RunConfig) -> None:
    """Refuse typed options that change nothing, because another setting leaves them without effect.

    Args:
        typed: The options by group, as parsed.
        config: With them.
        before: Without them: an option that repeats what it has anyway is no mistake.

    Raises:
        ConfigError: All of them in one error.
    """
    problems = []
    for rule in _IDLE if config.tune.source is not None else (*_IDLE, *_IDLE_OF_MODELS):
        for name in rule.fields:
            group, _, field = name.rpartition(".")
            given = typed.get(group, {}) if group else typed
            if field not in given or not rule.off(config):
                continue
            new, old = (getattr(getattr(of, group) if group else of, field) for of in (config, before))
            if new != old:
                problems.append(f"{name} has no effect here: {rule.why.format(c=config)}")
    if problems:
        raise ConfigError("; ".join(problems) + ". Leave it away, or change the other")


def one_length(typed: Mapping[str, Any]) -> dict[str, Any]:
    """The typed options, with the one that says how long in place of what a file or a recipe says of that.

    Raises:
        UsageError: If several were typed.
    """
    given = [name for name in _LENGTHS if typed.get(name) is not None]
    if len(given) > 1:
        said = " and ".join(f"--{name} {typed[name]}" for name in given)
        raise UsageError(
            f"{said} contradict each other: a run ends after so many epochs, after so many steps, or when its "
            "time is over. Give one of them"
        )
    if not given:
        return dict(typed)
    others = {name: None for name in ("steps", "budget") if name not in given}
    return {**others, **typed}


def refuse_other_size(name: str, named: ViTConfig, typed: Mapping[str, Any]) -> None:
    """Refuse a named size beside single fields that are others than its own.

    Args:
        name: As typed, such as S/16.
        named: What it means.
        typed: The fields of the model that were typed.

    Raises:
        UsageError: All of them in one error.
    """
    fields = [*_SIZE_FIELDS, *(["patch_size"] if "/" in name else []), *(["stem"] if named.stem == "resnet" else [])]
    differing = [
        f"--model.{field} {typed[field]}, but --model {name} means {getattr(named, field)}"
        for field in fields
        if field in typed and typed[field] != getattr(named, field)
    ]
    if differing:
        raise UsageError(f"{'; '.join(differing)}: leave one of them away")


def refuse_two_spellings(spelt: Mapping[str, Sequence[str]]) -> None:
    """Refuse one setting under two names.

    Args:
        spelt: The names that were typed, by what they mean.

    Raises:
        UsageError: Which they are.
    """
    for names in spelt.values():
        different = list(dict.fromkeys(name.replace("_", "-") for name in names))
        if len(different) > 1:
            raise UsageError(f"{' and '.join(different)} set the same thing: give one of them")
