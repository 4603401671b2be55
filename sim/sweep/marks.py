"""Points, intervals, lines and the legend of a sweep's figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.sweep.roles import BYTES, Roles
from topologies.cli.options import readable_bytes
from topologies.plots.canvas import shown

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#a89b00")
"""Okabe and Ito, told apart by everybody; yellow is darkened for thin lines."""
GREY = "#555555"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", ":", "-.")
SIDE_BY_SIDE = 0.7
"""how much of the room between two names their points may take."""
APART_POINTS = 2.5
FEW_BYTES_APART = 3.0
"""within this factor, bytes are drawn on a linear scale."""

Row = Mapping[str, Any]


def draw_rows(axes: Any, rows: Sequence[Row], roles: Roles, height: str) -> None:
    """One series for each color and marker: faint dots are the seeds, marks their means."""
    for color in range(roles.many(roles.color)):
        for marker in range(roles.many(roles.marker)):
            own = [row for row in rows if _sign(row, roles) == (color, marker)]
            if own:
                _series(axes, own, roles, height)


def _sign(row: Row, roles: Roles) -> tuple[int, int]:
    return roles.place(roles.color, row), roles.place(roles.marker, row)


def _series(axes: Any, rows: Sequence[Row], roles: Roles, height: str) -> None:
    color, marker = _sign(rows[0], roles)
    places = [_across(row, roles) for row in rows]
    found = [row["metrics"][height] for row in rows]
    means = [metric["mean"] for metric in found]
    look: dict[str, Any] = {"color": COLORS[color], "transform": _aside(axes, roles, color, marker)}
    for place, metric in zip(places, found, strict=True):
        if metric["count"] > 1:
            axes.plot([place] * metric["count"], metric["values"], ".", alpha=0.3, markersize=4, **look)
    # what is drawn aside does not count for the scales by itself
    ends = [(place, value) for place, one in zip(places, found, strict=True) for value in _reach(one)]
    axes.update_datalim(ends)
    axes.autoscale_view()
    if roles.across is None:
        halves = [_half(row["metrics"][BYTES]) for row in rows]
        axes.errorbar(places, means, xerr=halves, fmt="none", elinewidth=0.8, **look)
    axes.errorbar(
        places,
        means,
        yerr=[_half(metric) for metric in found],
        fmt=MARKERS[marker],
        linestyle=LINES[marker % len(LINES)] if roles.numeric else "none",
        linewidth=1.3,
        elinewidth=1.1,
        capsize=2.5,
        markersize=5.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        zorder=3,
        **look,
    )


def _aside(axes: Any, roles: Roles, color: int, marker: int) -> Any:
    """Intervals at the same number would hide each other."""
    from matplotlib.transforms import ScaledTranslation  # noqa: PLC0415 - slow, and an extra

    if not roles.numeric:
        return axes.transData
    count = roles.many(roles.color) * roles.many(roles.marker)
    own = color * roles.many(roles.marker) + marker
    inches = (own - (count - 1) / 2) * APART_POINTS / 72
    return axes.transData + ScaledTranslation(inches, 0, axes.figure.dpi_scale_trans)


def _across(row: Row, roles: Roles) -> float:
    if roles.across is None:
        return float(row["metrics"][BYTES]["mean"])
    if roles.numeric:
        return float(row["values"][roles.across])
    color, marker = _sign(row, roles)
    count = roles.many(roles.color) * roles.many(roles.marker)
    aside = (color * roles.many(roles.marker) + marker + 0.5) / count - 0.5
    return roles.place(roles.across, row) + aside * SIDE_BY_SIDE


def _half(metric: Mapping[str, Any]) -> float:
    return 0.0 if metric["high"] is None else metric["high"] - metric["mean"]


def _reach(metric: Mapping[str, Any]) -> tuple[float, float]:
    half = _half(metric)
    return min(*metric["values"], metric["mean"] - half), max(*metric["values"], metric["mean"] + half)


def bytes_ticks(axes: Any, values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator  # noqa: PLC0415 - slow, and an extra

    if min(values) > 0 and max(values) / min(values) > FEW_BYTES_APART:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: readable_bytes(value)))


def legend(figure: Any, roles: Roles) -> None:
    """Outside of the panels. Color and marker apart, so that any number of their combinations takes little room."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - as above

    entries = []
    for name, by_color in ((roles.color, True), (roles.marker, False)):
        if name is None:
            continue
        entries.append(Line2D([], [], linestyle="none", label=rf"$\bf{{{_bold(name)}}}$"))
        for index, value in enumerate(roles.values[name]):
            look: dict[str, Any] = {"color": COLORS[index] if by_color else GREY, "markersize": 5.5}
            look["marker"] = "o" if by_color else MARKERS[index]
            look["linestyle"] = LINES[index % len(LINES)] if roles.numeric and not by_color else "none"
            entries.append(Line2D([], [], label=shown(str(value), 34), **look))
    if entries:
        figure.legend(handles=entries, loc="outside right upper", frameon=False, fontsize=8, handlelength=1.6)


def _bold(name: str) -> str:
    return name.replace("_", r"\_")
