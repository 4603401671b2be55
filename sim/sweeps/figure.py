"""One figure of a sweep: every combination as a point with its confidence interval, a color for each series.

If the compressor is an axis, the horizontal axis is bytes, to show what accuracy costs. Otherwise it is an axis of the
sweep: numbers to scale and joined by lines, names side by side. The values of all other axes together name a series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from p2pfl.errors import UserError
from topologies.cli.terminal import readable_bytes
from topologies.plots import DARK, counted, legend_above, legend_rows, new_figure, plain, save, shown

HEIGHTS: Mapping[str, str] = {
    "accuracy_worst": "accuracy of the worst node",
    "loss": "loss",
    "consensus_distance": "consensus distance",
}
"""Measures to draw if the task has no main measure of its own: the first one that any run has."""
BYTES = "bytes_per_node"
FEWEST_NUMBERS = 3
"""The minimum number of numeric values to be joined by a line."""
POWERS_FROM = 20.0
"""A scale is logarithmic if the largest value is this many times the smallest."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#a89b00")
"""The colors of Okabe and Ito, which everybody can tell apart; yellow is darkened for thin lines."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SEPARATOR = " · "
LONGEST = 60
"""The most characters of a series' name."""
MOST_ROWS = 5
"""A legend with more rows stands beside the axes, not above them."""
MOST_SERIES = len(COLORS) * len(MARKERS)
SIDE_BY_SIDE = 0.7
"""The share of the space between two names that their points may take."""

Row = Mapping[str, Any]


def across(axes: Mapping[str, Sequence[Any]], rows: Sequence[Row]) -> tuple[str | None, bool]:
    """Return the axis that is horizontal, None for bytes, and whether it is to scale."""
    many = [name for name, values in axes.items() if len(values) > 1]
    if "compressor" in many and all(row["metrics"][BYTES] for row in rows):
        return None, True
    lines = [name for name in many if _numeric(axes[name])]
    return next(iter([*lines, *many, *axes, ""])), bool(lines)


def draw_sweep(results: Mapping[str, Any], path: Path) -> None:
    """Draw `results.json` as .png, .svg or .pdf. Raises UserError if there is nothing to draw, or too much for one."""
    known = {name for row in results["rows"] for name, metric in row["metrics"].items() if metric}
    own = sorted(name for name in known if name.endswith("_worst") and name not in HEIGHTS)
    height = next((name for name in (*own, *HEIGHTS) if name in known), None)
    if height is None:
        raise UserError("no run of this sweep is done: nothing to draw", key="REPORT")
    rows = [row for row in results["rows"] if row["metrics"][height]]
    horizontal, to_scale = across(results["axes"], rows)
    others = [name for name, values in results["axes"].items() if name != horizontal and len(values) > 1]
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(SEPARATOR.join(str(row["values"][name]) for name in others), []).append(row)
    if len(series) > MOST_SERIES:
        raise UserError("too many series for one picture", key="REPORT", value=len(series), allowed=str(MOST_SERIES))
    names = list(map(str, results["axes"].get(horizontal, [""])))
    width = 5.0 if to_scale else min(9.0, max(4.4, 0.13 * len(names) * max(4, len(series))))
    texts, title = [shown(name, LONGEST) for name in series], SEPARATOR.join(others)
    above = legend_rows(texts, width)
    if above > MOST_ROWS:
        figure = new_figure(1.5 + width + 0.075 * max(map(len, [*texts, title])), max(4.4, 1.5 + 0.18 * len(series)))
    else:
        figure = new_figure(1.2 + width, 4.4 + (0.25 + 0.2 * above if others else 0.0))
    axes = figure.subplots()
    plain(axes)
    for number, own_rows in enumerate(series.values()):
        aside = ((number + 0.5) / len(series) - 0.5) * SIDE_BY_SIDE
        places = [_place(row, horizontal, names, to_scale=to_scale, aside=aside) for row in own_rows]
        _series(axes, places, [row["metrics"][height] for row in own_rows], number, texts[number], joined=to_scale)
    _scales(axes, rows, horizontal, names, height, to_scale=to_scale)
    axes.set_ylabel(HEIGHTS.get(height) or f"{height.removesuffix('_worst')} of the worst node", fontsize=9)
    words = {None: "bytes that a node sends", "": "a single combination: no option was given several values"}
    axes.set_xlabel(words.get(horizontal, horizontal), fontsize=9)
    figure.suptitle(_title(results, rows, others), fontsize=9.5, color=DARK, x=0.01, ha="left")
    if others and above > MOST_ROWS:
        figure.legend(loc="outside right upper", title=title, alignment="left", frameon=False, fontsize=8.5)
    elif others:
        legend_above(axes, list(zip(axes.get_legend_handles_labels()[0], texts, strict=True)), width, title)
    save(figure, path)


def _numeric(values: Sequence[Any]) -> bool:
    return len(values) >= FEWEST_NUMBERS and all(isinstance(value, int | float) for value in values)


def _place(row: Row, horizontal: str | None, names: Sequence[str], *, to_scale: bool, aside: float) -> float:
    """Return a row's place on the horizontal axis; points of one name stand side by side."""
    if horizontal is None:
        return float(row["metrics"][BYTES]["mean"])
    value = row["values"].get(horizontal, "")
    return float(value) if to_scale else names.index(str(value)) + aside


def _series(
    axes: Any, places: Sequence[float], metrics: Sequence[Mapping[str, Any]], number: int, name: str, *, joined: bool
) -> None:
    """Draw one series: faint dots are the seeds, marks their means."""
    paint = COLORS[number % len(COLORS)]
    for place, metric in zip(places, metrics, strict=True):
        if metric["count"] > 1:
            axes.plot([place] * metric["count"], metric["values"], ".", color=paint, alpha=0.3, markersize=4)
    axes.errorbar(
        places,
        [metric["mean"] for metric in metrics],
        yerr=[0.0 if metric["high"] is None else metric["high"] - metric["mean"] for metric in metrics],
        fmt=MARKERS[number // len(COLORS)],
        color=paint,
        linestyle="-" if joined else "none",
        linewidth=1.0,
        capsize=2.5,
        markersize=5.5,
        markeredgecolor="white",
        zorder=3,
        label=name,
    )


def _scales(
    axes: Any, rows: Sequence[Row], horizontal: str | None, names: Sequence[str], height: str, *, to_scale: bool
) -> None:
    means = [row["metrics"][height]["mean"] for row in rows]
    if height == "accuracy_worst":
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -0.03), min(high, 1.03))
    elif _is_wide(means):
        axes.set_yscale("log")
    if horizontal is None:
        if _is_wide([row["metrics"][BYTES]["mean"] for row in rows]):
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.xaxis.set_major_formatter(lambda value, _: readable_bytes(value))
    elif to_scale:
        places = list(map(float, names))
        if _is_wide(places):
            axes.set_xscale("log")
        axes.set_xticks(places, [f"{value:g}" for value in places])
        axes.minorticks_off()
    else:
        turned = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if sum(map(len, names)) > 50 else {}
        axes.set_xticks(range(len(names)), [shown(name, 28) for name in names], **turned)
        axes.tick_params(axis="x", length=3.5 if horizontal else 0)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.grid(visible=False, axis="x")


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= POWERS_FROM


def _title(results: Mapping[str, Any], rows: Sequence[Row], others: Sequence[str]) -> str:
    seeds = len(results["seeds"])
    what = f"mean and {results['level']:.0%} interval over {counted(seeds, 'seed')}" if seeds > 1 else "one seed"
    same = dict(results["fixed"]) | {name: values[0] for name, values in results["axes"].items() if len(values) == 1}
    parts = [f"{name} = {value}" for name, value in same.items() if name not in others]
    lines = [what, *([shown(", ".join(parts), 100)] if parts else [])]
    if missing := len(results["rows"]) - len(rows):
        lines.append(f"{missing} of {counted(len(results['rows']), 'combination')} without a result")
    return "\n".join(lines)
