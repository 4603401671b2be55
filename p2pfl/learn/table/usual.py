"""The metrics of a table's model unless `[task]` names others."""

from __future__ import annotations

from p2pfl.learn.table.schema import Schema

OF_TWO = ("auc", "average_precision", "balanced_accuracy", "f1", "brier")
OF_SEVERAL = ("balanced_accuracy", "auc", "f1", "log_loss")
OF_NUMBERS = ("rmse", "mae", "r2")
ALWAYS = ("accuracy", "loss")
"""The measures that every task has, where they are defined."""
PAIR = 2


def usual_metrics(schema: Schema) -> tuple[str, ...]:
    """The usual metrics of such a target, the main one first."""
    if schema.classes is None:
        return OF_NUMBERS
    return OF_TWO if len(schema.classes) == PAIR else OF_SEVERAL


def metrics_of(schema: Schema) -> tuple[str, ...]:
    """All metrics that such a target can have."""
    if schema.classes is None:
        return OF_NUMBERS
    return tuple(dict.fromkeys(("accuracy", *OF_TWO, *OF_SEVERAL)))
