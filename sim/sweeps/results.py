"""From reports to one row for each combination: means and 95% confidence intervals over few seeds.

The intervals are Student's t, since the spread is estimated from the same values. The rows go to results.json and to a
person (`readable_rows`: `mean ± half of the interval`). `Results` is what a picture needs of that file when it is read
again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from p2pfl.learn.intervals import student
from p2pfl.reporting.measures import worst
from p2pfl.reporting.report import Report
from sim.sweeps.plan import Combination, SweepPlan, name_of, report_once
from topologies.cli.terminal import readable_bytes

LEVEL = 0.95


def estimate(values: Sequence[float]) -> dict[str, Any] | None:
    """Return the mean with the ends of its interval, which are None for one value; None without values."""
    count = len(values)
    if count == 0:
        return None
    mean, half = math.fsum(values) / count, None
    if count > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
        half = student(count - 1) * deviation / math.sqrt(count)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return {"mean": mean, "low": low, "high": high, "count": count, "values": list(values)}


METRICS: Mapping[str, str] = {
    "accuracy_worst": "worst accuracy",
    "accuracy_mean": "mean accuracy",
    "accuracy_mean_model": "of mean model",
    "attack_success": "attack success",
    "loss": "loss",
    "consensus_distance": "distance",
    "bytes_per_node": "bytes/node",
    "contraction_measured": "contraction",
    "contraction_predicted": "predicted",
    "virtual_time_s": "virtual s",
}
"""Headings of figures, by names in files. A task's own come first: `auc_mean`, `auc_worst` for its main measure."""

SHOWN_REASONS = 10
UNSEEN = 5e-4
"""Intervals below this fraction of the mean appear only in the files."""
SMALL, LARGE = 1e-2, 1e4

Value = str | int | float | bool | None


@dataclass(slots=True)
class SweepTally:
    """The results so far, by job key: figures for finished runs, reasons for failed ones."""

    figures: dict[str, dict[str, float]]
    failures: dict[str, str]


def figures(report: bytes) -> dict[str, float]:
    """Read the `METRICS` that a report knows; null in JSON is not finite. Raises ValueError if it is no report."""
    parsed = Report.from_json(report)
    accuracy, loss, success, mean_model = parsed.accuracy, parsed.loss, parsed.attack_success, parsed.mean_model
    sent = parsed.bytes_sent
    values = {
        **_task_figures(parsed),
        "accuracy_worst": None if accuracy is None else accuracy.min,
        "accuracy_mean": None if accuracy is None else accuracy.mean,
        "accuracy_mean_model": None if mean_model is None else mean_model.accuracy,
        "attack_success": None if success is None else success.mean,
        "loss": None if loss is None else loss.mean,
        "consensus_distance": parsed.consensus_distance,
        "bytes_per_node": None if sent is None or not parsed.nodes else sent / len(parsed.nodes),
        "contraction_measured": parsed.contraction.measured,
        "contraction_predicted": parsed.contraction.predicted,
        "virtual_time_s": parsed.virtual_time_s,
    }
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _task_figures(report: Report) -> dict[str, float | None]:
    """Return the figures that the task itself adds, and for the main measure also the worst node's."""
    values: dict[str, float | None] = {f"{name}_mean": spread.mean for name, spread in report.metrics.items()}
    main = report.main_measure
    if main.name in report.metrics:
        values[f"{main.name}_worst"] = worst(report.metrics[main.name], main)
    return {name: value for name, value in values.items() if name not in METRICS}


def _names(tally: SweepTally) -> list[str]:
    """Return the names of all figures in a row, the main measure's first."""
    own = {name for figures in tally.figures.values() for name in figures} - METRICS.keys()
    return [*sorted(own, key=lambda name: (not name.endswith("_worst"), name)), *METRICS]


def column_heading(name: str) -> str:
    """The heading of a figure's column."""
    measure, _, which = name.rpartition("_")
    return METRICS.get(name) or f"{which} {measure}"


def results(plan: SweepPlan, tally: SweepTally) -> dict[str, Any]:
    """Return the contents of results.json: the same for the same runs, in any order, after any number of attempts."""
    return {
        "sweep": plan.file.path.name,
        "axes": {name: [_as_text(value) for value in values] for name, values in plan.file.axes.items()},
        "fixed": {name: _as_text(value) for name, value in plan.file.fixed.items() if name not in plan.file.axes},
        "seeds": list(plan.file.seeds),
        "level": LEVEL,
        "rows": [_row(combination, tally, _names(tally)) for combination in plan.combinations],
    }


def flat_rows(contents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one flat row per combination, all with the same keys, for a spreadsheet."""
    return [_flat(row) for row in contents["rows"]]


def readable_rows(contents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows for people; a metric that no run has gets no column."""
    names = contents["rows"][0]["metrics"] if contents["rows"] else ()
    columns = [
        name for name in names if name != "virtual_time_s" and any(row["metrics"][name] for row in contents["rows"])
    ]
    return [
        {
            **{name: str(value) for name, value in row["values"].items()},
            "runs": _counts(row),
            **{column_heading(name): _cell(name, row["metrics"][name], row["done"]) for name in columns},
        }
        for row in contents["rows"]
    ]


def complaints(contents: Mapping[str, Any]) -> list[str]:
    """Return a line for each run that failed; a complaint shared by many is reported once."""
    where: dict[str, list[str]] = {}
    for row in contents["rows"]:
        for failure in row["failed"]:
            name = f"{name_of(row['values'])}, seed={failure['seed']}"
            where.setdefault(f"failed: {failure['reason']}", []).append(name)
    lines = [report_once(reason, names) for reason, names in where.items()]
    more = len(lines) - SHOWN_REASONS
    return lines if more <= 0 else [*lines[:SHOWN_REASONS], f"and {more} more; results.json has them all"]


class SweepMetric(msgspec.Struct):
    mean: float
    low: float | None
    high: float | None
    count: int
    values: list[float]


class SweepRow(msgspec.Struct):
    values: dict[str, Value]
    metrics: dict[str, SweepMetric | None]


class Results(msgspec.Struct):
    axes: dict[str, list[Value]]
    fixed: dict[str, Value]
    seeds: list[int]
    level: float
    rows: list[SweepRow]

    def __post_init__(self) -> None:
        """Check the rows. Raises ValueError if a row lacks a figure or the value of an axis."""
        for row in self.rows:
            if not self.axes.keys() <= row.values.keys() or not row.metrics.keys() >= FIGURES:
                raise ValueError("a row lacks what the others have")


FIGURES = {"accuracy_worst", "loss", "consensus_distance", "bytes_per_node"}


def _row(combination: Combination, tally: SweepTally, names: Sequence[str]) -> dict[str, Any]:
    keys = {job.key: job.seed for job in combination.jobs}
    done = [tally.figures[key] for key in keys if key in tally.figures]
    failed = [{"seed": keys[key], "reason": tally.failures[key]} for key in keys if key in tally.failures]
    return {
        "values": {name: _as_text(value) for name, value in combination.values.items()},
        "runs": len(keys),
        "done": len(done),
        "failed": failed,
        "keys": list(keys),
        "metrics": {name: estimate([metrics[name] for metrics in done if name in metrics]) for name in names},
    }


def _as_text(value: Any) -> Any:
    """Write name patterns as one string."""
    return ", ".join(value) if isinstance(value, tuple) else value


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {**row["values"], "runs": row["runs"], "done": row["done"], "failed": len(row["failed"])}
    for name in row["metrics"]:
        metric = row["metrics"][name] or {}
        flat |= {name: metric.get("mean")} | {f"{name}_{end}": metric.get(end) for end in ("low", "high", "count")}
    return flat


def _counts(row: Mapping[str, Any]) -> str:
    if row["done"] == row["runs"]:
        return str(row["runs"])
    return f"{row['done']} of {row['runs']}" + (f", {len(row['failed'])} failed" if row["failed"] else "")


def _cell(name: str, metric: Mapping[str, Any] | None, done: int) -> str:
    if metric is None:
        return "-"
    mean, high = metric["mean"], metric["high"]
    half = 0.0 if high is None else high - mean
    if name == "bytes_per_node":
        text, margin = readable_bytes(mean), readable_bytes(half)
    elif mean != 0 and not SMALL <= abs(mean) < LARGE:
        text, margin = f"{mean:.2e}", f"{half:.0e}"
    else:
        text, margin = f"{mean:.3f}", f"{half:.3f}"
    if high is not None and half >= UNSEEN * abs(mean):
        text = f"{text} ± {margin}"
    return text if metric["count"] == done else f"{text} ({metric['count']} of {done})"
