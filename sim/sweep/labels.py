"""Names beside the points of a figure, where there are too many for colors: each in the nearest free place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sim.sweep.roles import BYTES, Roles
from topologies.plots.canvas import DARK, shown

FONT_POINTS = 7.0
LETTER = 0.63
"""width of a letter over the size of the font, about: asking the font would make the picture depend on it."""
POINT_RADIUS = 4.0
NEAR = 7.0
DISTANCES = (NEAR, 13.0, 20.0, 28.0, 37.0, 47.0, 58.0, 70.0, 84.0, 100.0)
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (0.8, 0.6), (0.8, -0.6), (-0.8, 0.6), (-0.8, -0.6))
DETOUR = 2 * len(DIRECTIONS)
"""so many places farther is not much."""
POINTS_PER_INCH = 72
LEADER = {"arrowstyle": "-", "linewidth": 0.5, "color": "#999999", "shrinkA": 0, "shrinkB": 3}

PAPER = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.4}
"""behind the text: an interval may run through it."""


class Box(NamedTuple):
    """In points of the figure."""

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
        across, up, box = _free_place(places[index], text, taken, lines, frame)
        taken.append(box)
        _write(axes, text, ends[index], (across, up))


def _interval(place: tuple[float, ...], metric: Mapping[str, Any], axes: Any) -> Box:
    """The line that is drawn through the point."""
    half = 0.0 if metric["high"] is None else metric["high"] - metric["mean"]
    low, high = (float(axes.transData.transform((1.0, metric["mean"] + end))[1]) for end in (-half, half))
    to_points = POINTS_PER_INCH / axes.figure.dpi
    return Box(place[0] - 1, low * to_points, place[0] + 1, high * to_points)


def _free_place(
    place: tuple[float, ...], text: str, taken: Sequence[Box], lines: Sequence[Box], frame: Box
) -> tuple[float, float, Box]:
    """How far from the point the middle of the text stands, and its box; where all is full, in the first place.

    Off the `lines`, too, where that is not much farther.
    """
    found = list(_places(place, text))
    free = [one for one in found if one[2].inside(frame) and not any(one[2].meets(other) for other in taken)]
    clear = next((one for one in free if not any(one[2].meets(line) for line in lines)), None)
    nearest = free[0] if free else found[0]
    if clear is None or found.index(clear) > found.index(nearest) + DETOUR:
        return nearest
    return clear


def _places(place: tuple[float, ...], text: str) -> Iterator[tuple[float, float, Box]]:
    """From near to far, on all sides."""
    wide, high = LETTER * FONT_POINTS * len(text), 1.25 * FONT_POINTS
    for distance in DISTANCES:
        for across, up in DIRECTIONS:
            dx = across * distance + (wide / 2 if across > 0 else -wide / 2 if across < 0 else 0.0)
            dy = up * distance
            x, y = place[0] + dx, place[1] + dy
            yield dx, dy, Box(x - wide / 2, y - high / 2, x + wide / 2, y + high / 2)


def _write(axes: Any, text: str, end: tuple[float, float], aside: tuple[float, float]) -> None:
    wide = LETTER * FONT_POINTS * len(text)
    far = abs(aside[1]) > NEAR or abs(aside[0]) > NEAR + wide / 2
    axes.annotate(
        text,
        end,
        xytext=aside,
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=FONT_POINTS,
        color=DARK,
        arrowprops=LEADER if far else None,
        zorder=4,
        bbox=PAPER,
    ).set_in_layout(False)
