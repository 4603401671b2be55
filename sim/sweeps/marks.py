"""The marks of a sweep's figure: points, intervals, lines and the legend, and the axis that each shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topologies.cli.terminal import readable_bytes
from topologies.plots import shown

BYTES = "bytes_per_node"
NOTHING = ""
"""The only value of the only axis of a sweep without axes."""
MOST_SIGNS = 8
"""The most colors or markers that people can tell apart."""
FEWEST_NUMBERS = 3
"""Fewest numbers joined by a line."""

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#a89b00")
"""The colors of Okabe and Ito, which everybody can tell apart; yellow is darkened for thin lines."""
GREY = "#555555"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", ":", "-.")
SIDE_BY_SIDE = 0.7
"""Share of the space between two names that their points may take."""
APART_POINTS = 2.5
FEW_BYTES_APART = 3.0
"""Bytes within this factor are drawn on a linear scale."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The axis that each visual property shows, None where there are too few axes.

    Where `across` is None, bytes run across; `numeric` means to scale. `label` is the axis whose values stand beside
    the points, because it has too many for colors.
    """

    across: str | None
    color: str | None
    marker: str | None
    panels: tuple[str, ...]
    numeric: bool
    label: str | None = None
    values: Mapping[str, Sequence[Any]] = field(repr=False)

    def place(self, name: str | None, row: Mapping[str, Any]) -> int:
        return 0 if name is None else self.values[name].index(row["values"].get(name, NOTHING))

    def many(self, name: str | None) -> int:
        """Count an axis's values: one where the axis is None."""
        return 1 if name is None else len(self.values[name])


def assign(axes: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]]) -> Roles:
    """Assign axes with more than one value in `rows` to roles, in the file's order."""
    present = {name: _present(name, given, rows) for name, given in axes.items()}
    values = {name: found for name, found in present.items() if len(found) > 1}
    values = values or dict(list(present.items())[:1]) or {NOTHING: [NOTHING]}
    across = _horizontal_axis(values, rows)
    many = across is None and len(values["compressor"]) > MOST_SIGNS
    label = "compressor" if many else None
    rest = [name for name in values if name not in {across, label}]
    if across is None and len(rest) > 1 and "compressor" in rest:
        # bytes already tell most compressors apart
        rest.sort(key=lambda name: name == "compressor")
        signs = [name for name in rest if len(values[name]) <= MOST_SIGNS]
        signs = [*signs[:1], *(["compressor"] if "compressor" in signs[1:] else signs[1:2])]
    else:
        signs = [name for name in rest if len(values[name]) <= MOST_SIGNS][:2]
    color, marker = (*signs, None, None)[:2]
    panels = tuple(name for name in rest if name not in signs)
    numeric = across is not None and _numeric(values[across])
    return Roles(across=across, color=color, marker=marker, panels=panels, numeric=numeric, label=label, values=values)


def draw_rows(axes: Any, rows: Sequence[Row], roles: Roles, height: str) -> None:
    """One series for each color and marker: faint dots are the seeds, marks their means."""
    for color in range(roles.many(roles.color)):
        for marker in range(roles.many(roles.marker)):
            own = [row for row in rows if _sign(row, roles) == (color, marker)]
            if own:
                _series(axes, own, roles, height)


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
    """Draw the legend outside the panels, color and marker apart, so that any number of combinations takes
    little room.
    """
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


def _present(name: str, values: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    found = {row["values"][name] for row in rows}
    return [value for value in values if value in found]


def _horizontal_axis(values: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]]) -> str | None:
    if "compressor" in values and all(row["metrics"][BYTES] for row in rows):
        return None
    lines = [name for name in values if _numeric(values[name])]
    return next(iter(lines), next(iter(values), None))


def _numeric(values: Sequence[Any]) -> bool:
    return len(values) >= FEWEST_NUMBERS and all(isinstance(value, int | float) for value in values)


def _sign(row: Row, roles: Roles) -> tuple[int, int]:
    return roles.place(roles.color, row), roles.place(roles.marker, row)


def _series(axes: Any, rows: Sequence[Row], roles: Roles, height: str) -> None:
    color, marker = _sign(rows[0], roles)
    places = [_across(row, roles) for row in rows]
    found = [row["metrics"][height] for row in rows]
    means = [metric["mean"] for metric in found]
    look: dict[str, Any] = {"color": COLORS[color], "transform": _shift_sideways(axes, roles, color, marker)}
    for place, metric in zip(places, found, strict=True):
        if metric["count"] > 1:
            axes.plot([place] * metric["count"], metric["values"], ".", alpha=0.3, markersize=4, **look)
    # the interval, drawn separately, should not change the scales by itself
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


def _shift_sideways(axes: Any, roles: Roles, color: int, marker: int) -> Any:
    """Shift points sideways whose intervals at the same number would hide each other."""
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


def _bold(name: str) -> str:
    return name.replace("_", r"\_")
