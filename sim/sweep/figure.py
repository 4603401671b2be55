"""One figure of a sweep: every combination as a point with its confidence interval, axes as color, marker and panels.

Where the compressor is an axis, bytes are the horizontal axis: what accuracy costs; many compressors have their names
beside their points. Otherwise one axis is: numbers where they are and joined by lines, names side by side. Two more
become color and marker, the rest panels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from p2pfl.errors import UserError
from sim.sweep.labels import name_points
from sim.sweep.marks import bytes_ticks, draw_rows, legend
from sim.sweep.roles import BYTES, NOTHING, Roles, assign
from topologies.plots.canvas import DARK, counted, new_figure, plain, save, shown

HEIGHTS: Mapping[str, str] = {
    "accuracy_worst": "accuracy of the worst node",
    "loss": "loss",
    "consensus_distance": "consensus distance",
}
"""What is drawn: the first of these that any run has."""
MEAN = "accuracy_mean"
MOST_PANELS = 24
MOST_COLUMNS = 4
POWERS_FROM = 20.0
"""where the largest value is so many times the smallest, the scale is logarithmic."""


def draw_sweep(results: Mapping[str, Any], path: Path, *, mean: bool = False) -> None:
    """Write the picture of what `results.json` holds; a .png, .svg or .pdf file.

    `mean`: of accuracy the nodes' mean goes up, not that of the worst node.

    Raises:
        UserError: there is nothing to draw.
    """
    heights = (MEAN, *HEIGHTS) if mean else tuple(HEIGHTS)
    height = next((name for name in heights if any(row["metrics"].get(name) for row in results["rows"])), None)
    if height is None:
        raise UserError("no run of this sweep is done: nothing to draw", key="--plot", value=str(path))
    rows = [row for row in results["rows"] if row["metrics"][height]]
    save(_figure(results, rows, height), path)


def _figure(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], height: str) -> Any:
    roles = assign(results["axes"], rows)
    cells, columns = _grid(roles)
    lines = -(-len(cells) // columns)
    width = max(6.0, 1.2 + _panel_width(roles) * columns + legend_width(roles))
    figure = new_figure(width, 1.5 + (2.9 if roles.label is None else 4.2) * lines)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes, wanted in itertools.zip_longest(panels.flat, cells):
        if wanted is None:
            axes.set_axis_off()
            continue
        _panel(axes, _within(rows, wanted), roles, height, wanted)
    _scales(panels, rows, roles, height)
    for line in panels:
        line[0].set_ylabel(HEIGHTS.get(height, "mean accuracy of the nodes"), fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("bytes that a node sends" if roles.across is None else roles.across, fontsize=9)
    figure.suptitle(_title(results, rows, roles), fontsize=9.5, color=DARK, x=0.01, ha="left")
    legend(figure, roles)
    for axes, wanted in zip(panels.flat, cells, strict=False):
        name_points(axes, _within(rows, wanted), roles, height)
    return figure


def _within(rows: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in rows if all(row["values"][name] == value for name, value in wanted.items())]


def legend_width(roles: Roles) -> float:
    """In inches."""
    names = [str(value) for axis in (roles.color, roles.marker) if axis for value in (axis, *roles.values[axis])]
    return 0.5 + 0.075 * max(len(shown(name, 34)) for name in names) if names else 0.0


def _panel_width(roles: Roles) -> float:
    if roles.label is not None:
        return 5.5 if roles.panels else 7.5
    if roles.across is None or roles.numeric:
        return 3.6 if roles.panels else 5.0
    points = roles.many(roles.across) * max(2, roles.many(roles.color) * roles.many(roles.marker))
    return min(9.0, max(3.0 if roles.panels else 4.4, 0.13 * points + 0.5 * roles.many(roles.across)))


def _grid(roles: Roles) -> tuple[list[dict[str, Any]], int]:
    """What each panel shows, line by line, and the number of columns: the last axes side by side as far as they fit."""
    columns = 1
    for name in reversed(roles.panels):
        if columns * len(roles.values[name]) > MOST_COLUMNS:
            columns = columns if columns > 1 else MOST_COLUMNS
            break
        columns *= len(roles.values[name])
    products = itertools.product(*(roles.values[name] for name in roles.panels))
    cells = [dict(zip(roles.panels, values, strict=True)) for values in itertools.islice(products, MOST_PANELS)]
    return cells, min(columns, len(cells))


def _panel(axes: Any, rows: Sequence[Mapping[str, Any]], roles: Roles, height: str, wanted: Mapping[str, Any]) -> None:
    plain(axes)
    axes.tick_params(labelsize=8)
    if wanted:
        names = [shown(f"{name} = {value}", 40) for name, value in wanted.items()]
        lines = [", ".join(names[start : start + 2]) for start in range(0, len(names), 2)]
        axes.set_title("\n".join(lines), fontsize=8.5, color=DARK)
    draw_rows(axes, rows, roles, height)


def _scales(panels: Any, rows: Sequence[Mapping[str, Any]], roles: Roles, height: str) -> None:
    """All panels share them."""
    axes = panels.flat[0]
    means = [row["metrics"][height]["mean"] for row in rows]
    if roles.label is not None:
        _fit_seeds(axes, [value for row in rows for value in row["metrics"][height]["values"]])
    elif height in {"accuracy_worst", MEAN}:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -0.03), min(high, 1.03))
    elif min(means) > 0 and max(means) / min(means) >= POWERS_FROM:
        axes.set_yscale("log")
    if roles.across is None:
        bytes_ticks(axes, [row["metrics"][BYTES]["mean"] for row in rows])
    elif roles.numeric:
        places = [float(value) for value in roles.values[roles.across]]
        if min(places) > 0 and max(places) / min(places) >= POWERS_FROM:
            axes.set_xscale("log")
        axes.set_xticks(places, [f"{value:g}" for value in places])
        axes.minorticks_off()
    else:
        _names(panels, roles)


def _fit_seeds(axes: Any, values: Sequence[float]) -> None:
    """One compressor with a wide interval must not push all others together: its interval is cut."""
    low, high = min(values), max(values)
    margin = 0.12 * (high - low) or 0.01
    axes.set_ylim(low - margin, high + margin)


def _names(panels: Any, roles: Roles) -> None:
    values = roles.values[roles.across or NOTHING]
    names = [shown(str(value), 28) for value in values]
    room = _panel_width(roles) / len(names)
    leaning = any((len(one) + len(other)) * 0.035 + 0.1 > room for one, other in itertools.pairwise(names))
    turned = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if leaning else {}
    for axes in panels.flat:
        axes.set_xticks(range(len(values)), names, **turned)
        axes.set_xlim(-0.5, len(values) - 0.5)
        axes.grid(visible=False, axis="x")
        for border in range(1, len(values)):
            axes.axvline(border - 0.5, color="#dddddd", linewidth=0.6)


def _title(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], roles: Roles) -> str:
    seeds = len(results["seeds"])
    what = f"mean and {results['level']:.0%} interval over {counted(seeds, 'seed')}" if seeds > 1 else "one seed"
    same = dict(results["fixed"]) | {name: values[0] for name, values in results["axes"].items() if len(values) == 1}
    parts = [f"{name} = {value}" for name, value in same.items() if name not in roles.values]
    lines = [what, *([shown(", ".join(parts), 100)] if parts else [])]
    if missing := len(results["rows"]) - len(rows):
        lines.append(f"{missing} of {counted(len(results['rows']), 'combination')} without a result")
    drawn, there = len(_grid(roles)[0]), math.prod(len(roles.values[name]) for name in roles.panels)
    if drawn < there:
        lines.append(f"the first {drawn} of {there} panels")
    return "\n".join(lines)
