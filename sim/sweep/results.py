"""From reports to one row for each combination: means and confidence intervals over the seeds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sim.sweep.model import Combination, Plan
from sim.sweep.statistics import LEVEL, Estimate, estimate

METRICS: Mapping[str, str] = {
    "accuracy_worst": "worst accuracy",
    "accuracy_mean": "mean accuracy",
    "accuracy_mean_model": "of mean model",
    "attack_success": "attack success",
    "attack_success_most": "most success",
    "loss": "loss",
    "consensus_distance": "distance",
    "bytes_per_node": "bytes/node",
    "contraction_measured": "contraction",
    "contraction_predicted": "predicted",
    "virtual_time_s": "virtual s",
}
"""Their names in files, and as heads of columns."""


class Spread(msgspec.Struct):
    mean: float | None = None
    min: float | None = None
    max: float | None = None


class MeanModel(msgspec.Struct):
    accuracy: float | None = None


class Contraction(msgspec.Struct):
    predicted: float | None = None
    measured: float | None = None


class Summary(msgspec.Struct):
    """What a row needs of a report."""

    nodes: list[msgspec.Raw]
    accuracy: Spread | None = None
    attack_success: Spread | None = None
    loss: Spread | None = None
    mean_model: MeanModel | None = None
    consensus_distance: float | None = None
    bytes_sent: float | None = None
    contraction: Contraction | None = None
    virtual_time_s: float | None = None


@dataclass(slots=True)
class Tally:
    """How the runs of a sweep stand, by job key: figures of those that are done, reasons of those that failed."""

    figures: dict[str, dict[str, float]]
    failures: dict[str, str]


def figures(report: bytes) -> dict[str, float]:
    """The known ones of `METRICS`; in JSON what is not finite is null.

    Raises:
        ValueError: this is no report.
    """
    found = msgspec.json.decode(report, type=Summary)
    accuracy, loss = found.accuracy or Spread(), found.loss or Spread()
    success = found.attack_success or Spread()
    contraction, mean_model = found.contraction or Contraction(), found.mean_model or MeanModel()
    sent = found.bytes_sent
    values = {
        "accuracy_worst": accuracy.min,
        "accuracy_mean": accuracy.mean,
        "accuracy_mean_model": mean_model.accuracy,
        "attack_success": success.mean,
        "attack_success_most": success.max,
        "loss": loss.mean,
        "consensus_distance": found.consensus_distance,
        "bytes_per_node": None if sent is None or not found.nodes else sent / len(found.nodes),
        "contraction_measured": contraction.measured,
        "contraction_predicted": contraction.predicted,
        "virtual_time_s": found.virtual_time_s,
    }
    return {name: value for name, value in values.items() if value is not None}


def results(plan: Plan, tally: Tally) -> dict[str, Any]:
    """The same for the same runs, in whatever order and however many attempts they were made."""
    return {
        "sweep": plan.file.path.name,
        "axes": {name: [_told(value) for value in values] for name, values in plan.file.axes.items()},
        "fixed": {name: _told(value) for name, value in plan.file.fixed.items() if name not in plan.file.axes},
        "seeds": list(plan.file.seeds),
        "level": LEVEL,
        "rows": [_row(combination, tally) for combination in plan.combinations],
    }


def _row(combination: Combination, tally: Tally) -> dict[str, Any]:
    keys = {job.key: job.seed for job in combination.jobs}
    done = [tally.figures[key] for key in keys if key in tally.figures]
    failed = [{"seed": keys[key], "reason": tally.failures[key]} for key in keys if key in tally.failures]
    impossible = [{"seed": keys[key], "reason": reason} for key, reason in combination.impossible.items()]
    return {
        "values": {name: _told(value) for name, value in combination.values.items()},
        "runs": len(keys),
        "done": len(done),
        "failed": failed,
        "impossible": impossible,
        "keys": list(keys),
        "metrics": {name: _metric(name, done) for name in METRICS},
    }


def _told(value: Any) -> Any:
    """Patterns of names as one text."""
    return ", ".join(value) if isinstance(value, tuple) else value


def _metric(name: str, done: Sequence[Mapping[str, float]]) -> dict[str, Any] | None:
    values = [one[name] for one in done if name in one]
    found = estimate(values)
    return None if found is None else {**_interval(found), "count": found.count, "values": values}


def _interval(found: Estimate) -> dict[str, float | None]:
    return {"mean": found.mean, "low": found.low, "high": found.high}


def as_json(found: Mapping[str, Any]) -> str:
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


def flat_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One flat row for each combination, with the same keys in all: what a spreadsheet reads."""
    return [_flat(row) for row in found["rows"]]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {**row["values"], "runs": row["runs"], "done": row["done"], "failed": len(row["failed"])}
    flat["impossible"] = len(row["impossible"])
    for name in METRICS:
        metric = row["metrics"][name] or {}
        flat |= {name: metric.get("mean")} | {f"{name}_{end}": metric.get(end) for end in ("low", "high", "count")}
    return flat


def as_csv(found: Mapping[str, Any]) -> str:
    rows = flat_rows(found)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
