"""A node's status for Prometheus (text format 0.0.4): base units, `_total` for counters, bounded labels.

Labels are the names of neighbors and of the task's metrics, the phases, and the kinds of alarms and faults. So their
number is bounded by the federation file, the task and this program, whatever others send.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from p2pfl.core.limits import Fault
from p2pfl.core.settings import Phase
from p2pfl.reporting.alarms import ALARMS

OTHER = "other"
ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
PHASES = (*(phase.value for phase in Phase), "stopped", "testing", "waiting for disk")

Status = Mapping[str, Any]
Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]


class MetricLine(NamedTuple):
    """One metric. `key` locates its value in the status, or in a neighbor's status."""

    name: str
    key: str
    help: str

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


OF_NODE = (
    MetricLine("uptime_seconds", "uptime_s", "Time since the process started."),
    MetricLine("rounds_total", "rounds", "Local rounds trained."),
    MetricLine("rounds_wanted", "rounds_to_do", "Local rounds that the node has to train; none where time bounds it."),
    MetricLine("rounds_alone_total", "rounds_without_neighbor", "Local rounds trained without a neighbor."),
    MetricLine(
        "rounds_failed_total",
        "failed_rounds",
        "Local rounds dropped because of an error or a model that was not finite.",
    ),
    MetricLine("accuracy_ratio", "accuracy", "Latest accuracy on the common test set, from 0 to 1."),
    MetricLine("test_loss", "test_loss", "Latest loss on the common test set."),
    MetricLine("test_round", "tested_round", "The round after which the model was tested."),
    MetricLine("train_loss", "loss", "Loss of the latest local round."),
    MetricLine("staleness_mean_rounds", "staleness.mean", "Mean staleness of all exchanges that were weighed."),
    MetricLine(
        "neighbor_distance_ratio",
        "neighbor_distance",
        "Distance to the models of neighbors heard from, relative to the node's own norm.",
    ),
    MetricLine("sent_bytes_total", "bytes_sent", "Sealed bytes sent to all neighbors."),
    MetricLine("received_bytes_total", "bytes_received", "Sealed bytes received."),
    MetricLine("disk_written_bytes_total", "disk_bytes_written", "Bytes that the process has written to disks."),
    MetricLine("exchanges_total", "exchanges", "Exchanges done, of all edges."),
    MetricLine("neighbors_open", "peers", "Neighbors with an open session."),
    MetricLine("neighbors_quarantined", "quarantined", "Neighbors in quarantine."),
    MetricLine(
        "privacy_epsilon", "privacy.epsilon", "Epsilon spent of the privacy budget; none where it is not known."
    ),
    MetricLine("privacy_budget_epsilon", "privacy.budget", "Epsilon of the whole privacy budget."),
)
OF_NEIGHBOR = (
    MetricLine("neighbor_open", "live", "1 where the neighbor has an open session."),
    MetricLine("neighbor_sent_bytes_total", "bytes_sent", "Sealed bytes sent to the neighbor."),
    MetricLine("neighbor_received_bytes_total", "bytes_received", "Sealed bytes received from the neighbor."),
    MetricLine("neighbor_exchange_seconds", "exchange_s", "How long an exchange usually takes."),
    MetricLine("neighbor_waited_seconds", "waited_s", "Seconds of its waiting budget that this neighbor has used."),
    MetricLine("neighbor_standing", "standing", "1 where no fault is proven against the neighbor, 0 in quarantine."),
)


def exposition(status: Status, kinds: Collection[str] = ALARMS) -> str:
    """Return the status in Prometheus' text format.

    A null or missing value yields no sample; a metric without samples is left out.
    """
    lines = _lines("info", "gauge", "The node's name and the like, as labels; always 1.", _info(status))
    lines += _lines("phase", "gauge", "1 for the phase of the node.", _phases(status))
    for metric in OF_NODE:
        value = _number(_value_at(status, metric.key))
        samples: list[Sample] = [] if value is None else [((), value)]
        lines += _lines(metric.name, metric.kind, metric.help, samples)
    numbers = {name: _number(value) for name, value in (status.get("metrics") or {}).items()}
    tested: list[Sample] = [((("metric", str(name)),), value) for name, value in numbers.items() if value is not None]
    lines += _lines("test_metric", "gauge", "The task's own metrics, latest values on the common test set.", tested)
    refuses: list[Sample] = [((), float(status.get("disk_refuses") is not None))] if "node" in status else []
    lines += _lines("disk_refuses", "gauge", "1 while the state cannot be written to disk.", refuses)
    counted = _count_by_kind(status.get("alarms") or {}, kinds)
    lines += _lines("alarms_total", "counter", "Alarms raised since the process started.", counted)
    standing = _count_by_kind(dict.fromkeys(status.get("standing_alarms") or (), 1), kinds)
    lines += _lines("alarm_standing", "gauge", "1 for each kind of alarm that stands.", standing)
    return "".join([*lines, *_of_neighbors(status.get("neighbors") or ())])


def _of_neighbors(neighbors: Any) -> Iterator[str]:
    for metric in OF_NEIGHBOR:
        values = [(_neighbor_labels(neighbor), _number(neighbor.get(metric.key))) for neighbor in neighbors]
        samples = [(labels, value) for labels, value in values if value is not None]
        yield from _lines(metric.name, metric.kind, metric.help, samples)
    faults = [
        ((*_neighbor_labels(neighbor), *labels), value)
        for neighbor in neighbors
        for labels, value in _count_by_kind(neighbor.get("faults") or {}, {fault.value: None for fault in Fault})
    ]
    yield from _lines("neighbor_faults_total", "counter", "Faults proven against the neighbor, by kind.", faults)


def _neighbor_labels(neighbor: Status) -> Labels:
    return (("neighbor", str(neighbor.get("name"))),)


def _info(status: Status) -> list[Sample]:
    keys = ("node", "federation", "rule", "software")
    labels = tuple((key, str(status[key])) for key in keys if status.get(key) is not None)
    return [(labels, 1.0)] if "node" in status else []


def _phases(status: Status) -> list[Sample]:
    if "phase" not in status:
        return []
    now = status["phase"] if status["phase"] in PHASES else OTHER
    return [((("phase", phase),), float(phase == now)) for phase in (*PHASES, OTHER)]


def _count_by_kind(counts: Mapping[str, float], known: Collection[str]) -> list[Sample]:
    """Return counts by kind; kinds that this version does not know are combined."""
    by_label: dict[str, float] = {}
    for kind, count in counts.items():
        label = kind if kind in known else OTHER
        by_label[label] = by_label.get(label, 0) + count
    return [((("kind", kind),), count) for kind, count in by_label.items()]


def _value_at(status: Status, key: str) -> Any:
    outer, _, inner = key.partition(".")
    value = status.get(outer)
    return value.get(inner) if inner and isinstance(value, Mapping) else None if inner else value


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _lines(name: str, kind: str, text: str, samples: list[Sample]) -> list[str]:
    if not samples:
        return []
    head = [f"# HELP p2pfl_{name} {text}\n", f"# TYPE p2pfl_{name} {kind}\n"]
    return head + [f"p2pfl_{name}{_label_text(labels)} {_text(value)}\n" for labels, value in samples]


def _label_text(labels: Labels) -> str:
    pairs = ",".join(f'{key}="{value.translate(ESCAPED)}"' for key, value in labels)
    return f"{{{pairs}}}" if pairs else ""


def _text(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(float(value)) if isinstance(value, float) else str(int(value))
