"""Which of two sets of scores `RunConfig.select` prefers."""

from __future__ import annotations

from vitreous.evaluate.scoring.any_labels import AnyScores

__all__ = ["improves", "is_better"]


def is_better(select: str, new: AnyScores, old: AnyScores) -> bool:
    """Return whether new scores beat old ones by a metric of `RunConfig.select`; with `last` they always do.

    The log loss breaks ties, which are frequent on small splits.
    """
    if select == "last":
        return True
    return improves(select, new, old) or (not improves(select, old, new) and new.log_loss < old.log_loss)


def improves(select: str, new: AnyScores, old: AnyScores) -> bool:
    """Return whether the metric itself is better in the new scores, ignoring ties; with `last` it always is."""
    if select in ("last", "log_loss"):
        return select == "last" or new.log_loss < old.log_loss
    return bool(getattr(new, select) > getattr(old, select))
