"""What a picture needs of a sweep's results.json."""

from __future__ import annotations

import msgspec

Value = str | int | float | bool | None


class Metric(msgspec.Struct):
    mean: float
    low: float | None
    high: float | None
    count: int
    values: list[float]


class Row(msgspec.Struct):
    values: dict[str, Value]
    metrics: dict[str, Metric | None]


class Results(msgspec.Struct):
    axes: dict[str, list[Value]]
    fixed: dict[str, Value]
    seeds: list[int]
    level: float
    rows: list[Row]

    def __post_init__(self) -> None:
        """Raises ValueError: a row that has no value of an axis, or lacks a figure."""
        for row in self.rows:
            if not self.axes.keys() <= row.values.keys() or not row.metrics.keys() >= FIGURES:
                raise ValueError("a row lacks what the others have")


FIGURES = {"accuracy_worst", "loss", "consensus_distance", "bytes_per_node"}
