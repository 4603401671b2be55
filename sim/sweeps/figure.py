"""One figure of a sweep: every combination as a point with its confidence interval, axes as color, marker and panels.

If the compressor is an axis, the horizontal axis is bytes, to show what accuracy costs. Otherwise it is an axis of
the sweep: numbers to scale and joined by lines, names side by side. Two more axes become color and marker, the rest
panels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2pfl.errors import UserError
from topologies.cli.terminal import readable_bytes
from topologies.plots import DARK, counted, new_figure, plain, save, shown

HEIGHTS: Mapping[str, str] = {
    "accuracy_worst": "accuracy of the worst node",
    "loss": "loss",
    "consensus_distance": "consensus distance",
}
"""Measures to draw if the task has no main measure of its own: the first one that any run has."""
BYTES = "bytes_per_node"
NOTHING = ""
"""The only value of the only axis of a sweep without axes."""
MOST_PANELS, MOST_COLUMNS = 24, 4
MOST_SIGNS = 8
"""The maximum number of colors or markers that people can distinguish."""
FEWEST_NUMBERS = 3
"""The minimum number of numeric values to be joined by a line."""
POWERS_FROM, BYTES_POWERS_FROM = 20.0, 3.0
"""A scale is logarithmic if the largest value is this many times the smallest."""

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#a89b00")
"""The colors of Okabe and Ito, which everybody can tell apart; yellow is darkened for thin lines."""
GREY = "#555555"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", ":", "-.")
SIDE_BY_SIDE = 0.7
"""The share of the space between two names that their points may take."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The axis that each visual property shows; None if there are too few axes.

    If `across` is None, the horizontal axis is bytes; `numeric` means to scale. Compressors that are too many for
    colors take markers, too.
    """

    across: str | None
    color: str | None
    marker: str | None
    panels: tuple[str, ...]
    numeric: bool
    values: Mapping[str, Sequence[Any]] = field(repr=False)

    def place(self, name: str | None, row: Row) -> int:
        return 0 if name is None else self.values[name].index(row["values"].get(name, NOTHING))

    def many(self, name: str | None) -> int:
        """Return the number of values on an axis: one if the axis is None."""
        return 1 if name is None else len(self.values[name])

    def signs(self, row: Row) -> tuple[int, int]:
        """Return the places of its color and marker."""
        return self.place(self.color, row), self.place(self.marker, row)

    def where(self, row: Row) -> float:
        """Return its place on the horizontal axis; points of one name stand side by side."""
        if self.across is None:
            return float(row["metrics"][BYTES]["mean"])
        if self.numeric:
            return float(row["values"][self.across])
        color, marker = self.signs(row)
        count = self.many(self.color) * self.many(self.marker)
        aside = (color * self.many(self.marker) + marker + 0.5) / count - 0.5
        return self.place(self.across, row) + aside * SIDE_BY_SIDE


def assign(axes: Mapping[str, Sequence[Any]], rows: Sequence[Row]) -> Roles:
    """Assign axes with more than one value in `rows` to roles, in the file's order."""
    there = {name: {row["values"][name] for row in rows} for name in axes}
    present = {name: [value for value in given if value in there[name]] for name, given in axes.items()}
    values = {name: found for name, found in present.items() if len(found) > 1}
    values = values or dict(list(present.items())[:1]) or {NOTHING: [NOTHING]}
    by_bytes = "compressor" in values and all(row["metrics"][BYTES] for row in rows)
    lines = [name for name in values if _numeric(values[name])]
    across = None if by_bytes else next(iter([*lines, *values]))
    # bytes already distinguish most compressors, which get a sign after one other axis
    rest = sorted((name for name in values if name != across), key=lambda name: by_bytes and name == "compressor")
    signs = [name for name in rest if len(values[name]) <= MOST_SIGNS]
    signs = [*signs[:1], "compressor"] if by_bytes and "compressor" in signs[1:] else signs[:2]
    if by_bytes and len(values["compressor"]) > MOST_SIGNS:
        signs = ["compressor"]
    color, marker = (*signs, None, None)[:2]
    panels = tuple(name for name in rest if name not in signs)
    return Roles(across=across, color=color, marker=marker, panels=panels, numeric=across in lines, values=values)


def draw_sweep(results: Mapping[str, Any], path: Path) -> None:
    """Write the picture of what `results.json` holds; a .png, .svg or .pdf file. Raises UserError if there is nothing
    to draw.
    """
    known = {name for row in results["rows"] for name, found in row["metrics"].items() if found}
    own = sorted(name for name in known if name.endswith("_worst") and name not in HEIGHTS)
    height = next((name for name in (*own, *HEIGHTS) if name in known), None)
    if height is None:
        raise UserError("no run of this sweep is done: nothing to draw", key="--plot", value=str(path))
    rows = [row for row in results["rows"] if row["metrics"][height]]
    roles = assign(results["axes"], rows)
    cells, columns = _grid(roles)
    lines = -(-len(cells) // columns)
    names = [str(value) for axis in (roles.color, roles.marker) if axis for value in (axis, *roles.values[axis])]
    legend = 0.5 + 0.075 * max(len(shown(name, 34)) for name in names) if names else 0.0
    figure = new_figure(max(6.0, 1.2 + _panel_width(roles) * columns + legend), 1.5 + 2.9 * lines)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes, wanted in itertools.zip_longest(panels.flat, cells):
        if wanted is None:
            axes.set_axis_off()
        else:
            within = [row for row in rows if wanted.items() <= row["values"].items()]
            _panel(axes, within, roles, height, wanted)
    _scales(panels, rows, roles, height)
    for line in panels:
        line[0].set_ylabel(HEIGHTS.get(height) or f"{height.removesuffix('_worst')} of the worst node", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel("bytes that a node sends" if roles.across is None else roles.across, fontsize=9)
    figure.suptitle(_title(results, rows, roles, len(cells)), fontsize=9.5, color=DARK, x=0.01, ha="left")
    _legend(figure, roles)
    save(figure, path)


def _numeric(values: Sequence[Any]) -> bool:
    return len(values) >= FEWEST_NUMBERS and all(isinstance(value, int | float) for value in values)


def _panel_width(roles: Roles) -> float:
    if roles.across is None or roles.numeric:
        return 3.6 if roles.panels else 5.0
    points = roles.many(roles.across) * max(2, roles.many(roles.color) * roles.many(roles.marker))
    return min(9.0, max(3.0 if roles.panels else 4.4, 0.13 * points + 0.5 * roles.many(roles.across)))


def _grid(roles: Roles) -> tuple[list[dict[str, Any]], int]:
    """Return the contents of each panel, row by row, and the number of columns: the values of the last axis."""
    products = itertools.product(*(roles.values[name] for name in roles.panels))
    cells = [dict(zip(roles.panels, values, strict=True)) for values in itertools.islice(products, MOST_PANELS)]
    return cells, min(MOST_COLUMNS, len(cells), roles.many(roles.panels[-1] if roles.panels else None))


def _panel(axes: Any, rows: Sequence[Row], roles: Roles, height: str, values: Mapping[str, Any]) -> None:
    """Draw one series per color and marker: faint dots are the seeds, marks their means."""
    plain(axes)
    axes.tick_params(labelsize=8)
    if values:
        names = [shown(f"{name} = {value}", 40) for name, value in values.items()]
        lines = [", ".join(names[start : start + 2]) for start in range(0, len(names), 2)]
        axes.set_title("\n".join(lines), fontsize=8.5, color=DARK)
    for color, marker in sorted({roles.signs(row) for row in rows}):
        own = [row for row in rows if roles.signs(row) == (color, marker)]
        places, found = [roles.where(row) for row in own], [row["metrics"][height] for row in own]
        paint = COLORS[color % MOST_SIGNS]
        for place, metric in zip(places, found, strict=True):
            if metric["count"] > 1:
                axes.plot([place] * metric["count"], metric["values"], ".", color=paint, alpha=0.3, markersize=4)
        axes.errorbar(
            places,
            [metric["mean"] for metric in found],
            yerr=[0.0 if metric["high"] is None else metric["high"] - metric["mean"] for metric in found],
            fmt=MARKERS[(marker + color // MOST_SIGNS) % MOST_SIGNS],
            color=paint,
            linestyle=LINES[marker % len(LINES)] if roles.numeric else "none",
            linewidth=1.3,
            elinewidth=1.1,
            capsize=2.5,
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            zorder=3,
        )


def _scales(panels: Any, rows: Sequence[Row], roles: Roles, height: str) -> None:
    """Set the scales, which all panels share."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator  # noqa: PLC0415 - slow, and an extra

    axes = panels.flat[0]
    means = [row["metrics"][height]["mean"] for row in rows]
    if height == "accuracy_worst":
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -0.03), min(high, 1.03))
    elif min(means) > 0 and max(means) / min(means) >= POWERS_FROM:
        axes.set_yscale("log")
    if roles.across is None:
        sent = [row["metrics"][BYTES]["mean"] for row in rows]
        if powers := min(sent) > 0 and max(sent) / min(sent) > BYTES_POWERS_FROM:
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if powers else MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: readable_bytes(value)))
    elif roles.numeric:
        places = [float(value) for value in roles.values[roles.across]]
        if min(places) > 0 and max(places) / min(places) >= POWERS_FROM:
            axes.set_xscale("log")
        axes.set_xticks(places, [f"{value:g}" for value in places])
        axes.minorticks_off()
    else:
        names = [shown(str(value), 28) for value in roles.values[roles.across]]
        room = _panel_width(roles) / len(names)
        leaning = any((len(one) + len(other)) * 0.035 + 0.1 > room for one, other in itertools.pairwise(names))
        turned = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if leaning else {}
        for axes in panels.flat:
            axes.set_xticks(range(len(names)), names, **turned)
            axes.set_xlim(-0.5, len(names) - 0.5)
            axes.grid(visible=False, axis="x")


def _title(results: Mapping[str, Any], rows: Sequence[Row], roles: Roles, drawn: int) -> str:
    seeds = len(results["seeds"])
    what = f"mean and {results['level']:.0%} interval over {counted(seeds, 'seed')}" if seeds > 1 else "one seed"
    same = dict(results["fixed"]) | {name: values[0] for name, values in results["axes"].items() if len(values) == 1}
    parts = [f"{name} = {value}" for name, value in same.items() if name not in roles.values]
    lines = [what, *([shown(", ".join(parts), 100)] if parts else [])]
    if missing := len(results["rows"]) - len(rows):
        lines.append(f"{missing} of {counted(len(results['rows']), 'combination')} without a result")
    if drawn < (there := math.prod(len(roles.values[name]) for name in roles.panels)):
        lines.append(f"the first {drawn} of {there} panels")
    return "\n".join(lines)


def _legend(figure: Any, roles: Roles) -> None:
    """Draw the legend outside the panels, with color and marker separate, so that any number of combinations takes
    little room.
    """
    from matplotlib.lines import Line2D  # noqa: PLC0415 - as above

    entries = []
    for name, by_color in ((roles.color, True), (roles.marker, False)):
        if name is None:
            continue
        bold = name.replace("_", r"\_")
        entries.append(Line2D([], [], linestyle="none", label=rf"$\bf{{{bold}}}$"))
        for index, value in enumerate(roles.values[name]):
            color, marker = (COLORS[index % MOST_SIGNS], index // MOST_SIGNS) if by_color else (GREY, index)
            look: dict[str, Any] = {"color": color, "marker": MARKERS[marker % MOST_SIGNS], "markersize": 5.5}
            look["linestyle"] = LINES[index % len(LINES)] if roles.numeric and not by_color else "none"
            entries.append(Line2D([], [], label=shown(str(value), 34), **look))
    if entries:
        figure.legend(handles=entries, loc="outside right upper", frameon=False, fontsize=8, handlelength=1.6)
