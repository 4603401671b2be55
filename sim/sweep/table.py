"""The results as a person reads them: one row for each combination, `mean ± half of the interval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.sweep.model import named
from sim.sweep.results import METRICS
from topologies.cli.options import readable_bytes

SHOWN_REASONS = 10
UNSEEN = 5e-4
"""an interval of this share of the mean is not shown: it is in the files."""
ONLY_IN_FILES = ("attack_success_most", "virtual_time_s")
"""a table is wide enough."""
SMALL, LARGE = 1e-2, 1e4


def readable_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A metric that no run has gets no column."""
    columns = [
        name for name in METRICS if name not in ONLY_IN_FILES and any(row["metrics"][name] for row in found["rows"])
    ]
    return [
        {
            **{name: str(value) for name, value in row["values"].items()},
            "runs": _counts(row),
            **{METRICS[name]: _shown(name, row["metrics"][name], row["done"]) for name in columns},
        }
        for row in found["rows"]
    ]


def complaints(found: Mapping[str, Any]) -> list[str]:
    """A line for each run that failed or cannot be; the same complaint of many is told once."""
    where: dict[str, list[str]] = {}
    for row in found["rows"]:
        for kind in ("failed", "impossible"):
            for one in row[kind]:
                name = f"{named(row['values'])}, seed={one['seed']}"
                where.setdefault(f"{kind}: {one['reason']}", []).append(name)
    lines = [_complaint(reason, names) for reason, names in where.items()]
    more = len(lines) - SHOWN_REASONS
    return lines if more <= 0 else [*lines[:SHOWN_REASONS], f"and {more} more; results.json has them all"]


def _complaint(reason: str, names: list[str]) -> str:
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]}{others}: {reason}"


def _counts(row: Mapping[str, Any]) -> str:
    if row["done"] == row["runs"]:
        return str(row["runs"])
    parts = [f"{row['done']} of {row['runs']}"]
    parts += [f"{len(row[kind])} {kind}" for kind in ("failed", "impossible") if row[kind]]
    return ", ".join(parts)


def _shown(name: str, metric: Mapping[str, Any] | None, done: int) -> str:
    if metric is None:
        return "-"
    mean, high = metric["mean"], metric["high"]
    half = None if high is None or high - mean < UNSEEN * abs(mean) else high - mean
    text = _of_bytes(mean, half) if name == "bytes_per_node" else _of_numbers(mean, half)
    return text if metric["count"] == done else f"{text} ({metric['count']} of {done})"


def _of_bytes(mean: float, half: float | None) -> str:
    return readable_bytes(mean) if half is None else f"{readable_bytes(mean)} ± {readable_bytes(half)}"


def _of_numbers(mean: float, half: float | None) -> str:
    """Very small and very large ones by powers of ten."""
    if mean != 0 and not SMALL <= abs(mean) < LARGE:
        return f"{mean:.2e}" if half is None else f"{mean:.2e} ± {half:.0e}"
    return f"{mean:.3f}" if half is None else f"{mean:.3f} ± {half:.3f}"
