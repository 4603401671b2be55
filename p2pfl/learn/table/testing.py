"""Test a model for tables on a table with targets: compute every metric that applies, with its interval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.intervals import Interval
from p2pfl.learn.metrics import BUILT_IN
from p2pfl.learn.table.reading import Table
from p2pfl.learn.table.schema import Schema
from p2pfl.learn.table.scoring import ScoresTables
from p2pfl.learn.table.usual import metrics_of, usual_metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric. `value` is None if it is undefined on the table, `interval` if the metric has none."""

    name: str
    label: str
    higher_is_better: bool
    value: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutputs:
    """The outputs and targets of all rows: logits (n, classes) and labels (n,), or numbers (n, 1) in the target's
    unit.
    """

    schema: Schema
    outputs: NDArray[np.float64]
    targets: NDArray[Any]

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def class_counts(self) -> dict[str, int] | None:
        """Count the rows in each class; return None if the target is a number."""
        if self.schema.classes is None:
            return None
        counts = np.bincount(self.targets, minlength=len(self.schema.classes))
        return dict(zip(self.schema.classes, counts.tolist(), strict=True))

    def figures(self) -> Iterator[Figure]:
        """Yield every metric that applies to such a target, the usual main one first."""
        for name in dict.fromkeys((*usual_metrics(self.schema), *metrics_of(self.schema))):
            metric = BUILT_IN[name]
            value = metric(self.outputs, self.targets)
            is_known = math.isfinite(value)
            yield Figure(
                name=name,
                label=metric.label,
                higher_is_better=metric.higher_is_better,
                value=value if is_known else None,
                interval=metric.interval(self.outputs, self.targets) if is_known and metric.interval else None,
            )

    def why_undefined(self) -> str:
        """Say why a metric is undefined here."""
        if not np.isfinite(self.outputs).all():
            return "the model's outputs are not finite"
        counts = self.class_counts
        if counts is None:
            return "every row has the same target"
        there = [name for name, count in counts.items() if count]
        return f"every row has the class {there[0]!r}" if len(there) == 1 else "no row has the class"


def tested(model: ScoresTables, table: Table) -> TableOutputs:
    """Compute the outputs for `table`, which was read for testing, so that every row has a target."""
    outputs, targets = model.outputs_for(table), table.columns[model.schema.target]
    is_number = model.schema.classes is None
    whole = targets.reshape(-1, 1) if is_number else targets.astype(np.int64)
    return TableOutputs(schema=model.schema, outputs=outputs, targets=whole)
