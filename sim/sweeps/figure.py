"""One figure of a sweep: every combination as a point with its confidence interval, axes as color, marker and panels.

Where the compressor is an axis, bytes are the horizontal axis: what accuracy costs; many compressors have their names
beside their points, each in the nearest free place. Otherwise one axis is: numbers where they are and joined by lines,
names side by side. Two more become color and marker, the rest panels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from p2pfl.errors import UserError
from sim.sweeps.marks import BYTES, NOTHING, Roles, assign, bytes_ticks, draw_rows, legend
from topologies.plots import DARK, counted, new_figure, plain, save, shown

HEIGHTS: Mapping[str, str] = {
    "accuracy_worst": "accuracy of the worst node",
    "loss": "loss",
    "consensus_distance": "consensus distance",
}
"""The measures to draw if a task has no main measure of its own: the first of these that any run has."""
MEAN = "accuracy_mean"
MOST_PANELS = 24
MOST_COLUMNS = 4
POWERS_FROM = 20.0
"""The scale is logarithmic where the largest value is this many times the smallest."""

FONT_POINTS = 7.0
LETTER = 0.63
"""Approximate width of a letter over the font size; the real font's width would make the picture depend on the machine.
"""
POINT_RADIUS = 4.0
NEAR = 7.0
DISTANCES = (NEAR, 13.0, 20.0, 28.0, 37.0, 47.0, 58.0, 70.0, 84.0, 100.0)
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (0.8, 0.6), (0.8, -0.6), (-0.8, 0.6), (-0.8, -0.6))
DETOUR = 2 * len(DIRECTIONS)
"""A name may move this many places farther to stay clear of lines."""
POINTS_PER_INCH = 72
LEADER = {"arrowstyle": "-", "linewidth": 0.5, "color": "#999999", "shrinkA": 0, "shrinkB": 3}

PAPER = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.4}
"""Background of the text: an interval may run through it."""


def draw_sweep(results: Mapping[str, Any], path: Path, *, mean: bool = False) -> None:
    """Write the picture of what `results.json` holds; a .png, .svg or .pdf file.

    `mean`: of accuracy the nodes' mean goes up, not that of the worst node.
    Raises UserError: there is nothing to draw.
    """
    heights = (*_task_measures(results, "_mean" if mean else "_worst"), *((MEAN,) if mean else ()), *HEIGHTS)
    height = next((name for name in heights if any(row["metrics"].get(name) for row in results["rows"])), None)
    if height is None:
        raise UserError("no run of this sweep is done: nothing to draw", key="--plot", value=str(path))
    rows = [row for row in results["rows"] if row["metrics"][height]]
    save(_figure(results, rows, height), path)


def _task_measures(results: Mapping[str, Any], end: str) -> list[str]:
    """Return the task's own main measure, if it has one: the one that also has a worst node."""
    known = {name for row in results["rows"] for name, found in row["metrics"].items() if found}
    main = [name.removesuffix("_worst") for name in known if name.endswith("_worst") and name not in HEIGHTS]
    return [f"{name}{end}" for name in sorted(main)]


def _label(height: str) -> str:
    measure, _, which = height.rpartition("_")
    return HEIGHTS.get(height) or (
        f"{measure} of the worst node" if which == "worst" else f"mean {measure} of the nodes"
    )


def legend_width(roles: Roles) -> float:
    """Return the width of the legend, in inches."""
    names = [str(value) for axis in (roles.color, roles.marker) if axis for value in (axis, *roles.values[axis])]
    return 0.5 + 0.075 * max(len(shown(name, 34)) for name in names) if names else 0.0


class Box(NamedTuple):
    """A rectangle, in points of the figure."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )

    def inside(self, other: Box) -> bool:
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.bottom <= self.bottom
            and self.top <= other.top
        )


class Spot(NamedTuple):
    """A place for a name: the distance of its middle from its point, in points of the figure, and the box that it
    fills.
    """

    across: float
    up: float
    box: Box


def name_points(axes: Any, rows: Sequence[Mapping[str, Any]], roles: Roles, height: str) -> None:
    """Write the value of the axis `roles.label` beside each point; the scales must be as they will stay."""
    if roles.label is None or not rows:
        return
    axes.figure.draw_without_rendering()
    to_points = POINTS_PER_INCH / axes.figure.dpi
    ends = [(row["metrics"][BYTES]["mean"], row["metrics"][height]["mean"]) for row in rows]
    places = [tuple(float(one) * to_points for one in axes.transData.transform(end)) for end in ends]
    frame = Box(*(float(one) * to_points for one in axes.get_window_extent().extents))
    taken = [Box(x - POINT_RADIUS, y - POINT_RADIUS, x + POINT_RADIUS, y + POINT_RADIUS) for x, y in places]
    lines = [_interval(place, row["metrics"][height], axes) for place, row in zip(places, rows, strict=True)]
    for index in sorted(range(len(rows)), key=lambda one: places[one]):
        text = shown(str(rows[index]["values"][roles.label]), 34)
        spot = _free_place(places[index], text, taken, lines, frame)
        taken.append(spot.box)
        _write(axes, text, ends[index], spot)


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
        line[0].set_ylabel(_label(height), fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("bytes that a node sends" if roles.across is None else roles.across, fontsize=9)
    figure.suptitle(_title(results, rows, roles), fontsize=9.5, color=DARK, x=0.01, ha="left")
    legend(figure, roles)
    for axes, wanted in zip(panels.flat, cells, strict=False):
        name_points(axes, _within(rows, wanted), roles, height)
    return figure


def _within(rows: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in rows if all(row["values"][name] == value for name, value in values.items())]


def _panel_width(roles: Roles) -> float:
    if roles.label is not None:
        return 5.5 if roles.panels else 7.5
    if roles.across is None or roles.numeric:
        return 3.6 if roles.panels else 5.0
    points = roles.many(roles.across) * max(2, roles.many(roles.color) * roles.many(roles.marker))
    return min(9.0, max(3.0 if roles.panels else 4.4, 0.13 * points + 0.5 * roles.many(roles.across)))


def _grid(roles: Roles) -> tuple[list[dict[str, Any]], int]:
    """Return the contents of each panel, line by line, and the number of columns: the last axes stand side by side as
    far as they fit.
    """
    columns = 1
    for name in reversed(roles.panels):
        if columns * len(roles.values[name]) > MOST_COLUMNS:
            columns = columns if columns > 1 else MOST_COLUMNS
            break
        columns *= len(roles.values[name])
    products = itertools.product(*(roles.values[name] for name in roles.panels))
    cells = [dict(zip(roles.panels, values, strict=True)) for values in itertools.islice(products, MOST_PANELS)]
    return cells, min(columns, len(cells))


def _panel(axes: Any, rows: Sequence[Mapping[str, Any]], roles: Roles, height: str, values: Mapping[str, Any]) -> None:
    plain(axes)
    axes.tick_params(labelsize=8)
    if values:
        names = [shown(f"{name} = {value}", 40) for name, value in values.items()]
        lines = [", ".join(names[start : start + 2]) for start in range(0, len(names), 2)]
        axes.set_title("\n".join(lines), fontsize=8.5, color=DARK)
    draw_rows(axes, rows, roles, height)


def _scales(panels: Any, rows: Sequence[Mapping[str, Any]], roles: Roles, height: str) -> None:
    """Set the scales, which all panels share."""
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
    """Cut the interval of a compressor that is so wide that it would push all others together."""
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


def _interval(place: tuple[float, ...], metric: Mapping[str, Any], axes: Any) -> Box:
    """Return the box of the interval that is drawn through the point."""
    half = 0.0 if metric["high"] is None else metric["high"] - metric["mean"]
    low, high = (float(axes.transData.transform((1.0, metric["mean"] + end))[1]) for end in (-half, half))
    to_points = POINTS_PER_INCH / axes.figure.dpi
    return Box(place[0] - 1, low * to_points, place[0] + 1, high * to_points)


def _free_place(place: tuple[float, ...], text: str, boxes: Sequence[Box], lines: Sequence[Box], frame: Box) -> Spot:
    """Return the nearest place that is free, also of `lines` where that is not much farther; the first place where all
    are taken.
    """
    found = list(_places(place, text))
    free = [one for one in found if one.box.inside(frame) and not any(one.box.meets(other) for other in boxes)]
    clear = next((one for one in free if not any(one.box.meets(line) for line in lines)), None)
    nearest = free[0] if free else found[0]
    if clear is None or found.index(clear) > found.index(nearest) + DETOUR:
        return nearest
    return clear


def _places(place: tuple[float, ...], text: str) -> Iterator[Spot]:
    """Yield places on all sides, from near to far."""
    wide, high = LETTER * FONT_POINTS * len(text), 1.25 * FONT_POINTS
    for distance in DISTANCES:
        for across, up in DIRECTIONS:
            dx = across * distance + (wide / 2 if across > 0 else -wide / 2 if across < 0 else 0.0)
            dy = up * distance
            x, y = place[0] + dx, place[1] + dy
            yield Spot(dx, dy, Box(x - wide / 2, y - high / 2, x + wide / 2, y + high / 2))


def _write(axes: Any, text: str, end: tuple[float, float], spot: Spot) -> None:
    wide = LETTER * FONT_POINTS * len(text)
    far = abs(spot.up) > NEAR or abs(spot.across) > NEAR + wide / 2
    axes.annotate(
        text,
        end,
        xytext=(spot.across, spot.up),
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=FONT_POINTS,
        color=DARK,
        arrowprops=LEADER if far else None,
        zorder=4,
        bbox=PAPER,
    ).set_in_layout(False)
