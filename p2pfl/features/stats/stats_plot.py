"""The picture of `p2pfl stats`: for each column its histogram or its categories, a line or bars for each group."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2pfl.learn.statistics.survey_figures import Statistics, SurveyFigures
from topologies.plots import DARK, new_figure, plain, save, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_GROUPS = 7
"""The most groups that are easy to tell apart."""
HIDDEN = "?"
"""Stands at the place of a count that is hidden."""


def draw_statistics(statistics: Statistics, path: Path | None = None) -> Figure:
    """Draw what is shown; with a `path`, also into a .png, .svg or .pdf file.

    Raises TopologyError: the file cannot be written.
    """
    columns = statistics.asked.columns
    figure: Figure = new_figure(4.4 * min(len(columns), 3), 3.2 * -(-len(columns) // 3))
    panels = figure.subplots(-(-len(columns) // 3), min(len(columns), 3), squeeze=False).flat
    for axes, column in zip(panels, columns, strict=False):
        plain(axes)
        _draw_column(axes, column, [one for one in statistics.figures if one.column == column])
    for axes in list(panels):
        axes.set_visible(False)
    title = f"{statistics.rows:,} rows" + f"; {HIDDEN} is hidden, not 0" * _hides(statistics)
    figure.suptitle(title, fontsize=10.5, color=DARK, x=0.01, ha="left")
    if path is not None:
        save(figure, path)
    return figure


def _hides(statistics: Statistics) -> bool:
    counts = [bar.rows for one in statistics.figures for bar in one.histogram]
    return None in [*counts, *(count for one in statistics.figures for count in (one.categories or {}).values())]


def _draw_column(axes: Any, column: str, groups: list[SurveyFigures]) -> None:
    drawn = [one for one in groups if one.categories or one.histogram][:MOST_GROUPS]
    for place, one in enumerate(drawn):
        name = None if one.group is None else shown(one.group)
        if one.categories is not None:
            width = 0.8 / len(drawn)
            counts = list(one.categories.values())
            spots = [spot + (place - (len(drawn) - 1) / 2) * width for spot in range(len(counts))]
            axes.bar(spots, [count or 0 for count in counts], width, label=name, color=f"C{place}")
            axes.set_xticks(range(len(counts)), [shown(value, 12) for value in one.categories])
        else:
            counts = [bar.rows for bar in one.histogram]
            edges = _edges(one)
            rows = [math.nan if count is None else count for count in counts]
            axes.stairs(rows, edges, label=name, linewidth=1.6, color=f"C{place}")
            share = (place + 1) / (len(drawn) + 1)
            spots = [low + share * (high - low) for low, high in pairwise(edges)]
        for spot, count in zip(spots, counts, strict=True):
            if count is None:
                axes.text(spot, 0, HIDDEN, color=f"C{place}", ha="center", va="bottom", fontsize=11, weight="bold")
    axes.set_xlabel(shown(column), fontsize=9)
    axes.set_ylabel("rows", fontsize=9)
    if any(one.group is not None for one in drawn):
        axes.legend(fontsize=8, frameon=False)


def _edges(figures: SurveyFigures) -> list[float]:
    """Return the ends of the bins. The outer ones are unknown: these bins are drawn as wide as those beside them."""
    inner = [bar.low for bar in figures.histogram if bar.low is not None]
    step = inner[1] - inner[0] if len(inner) > 1 else 1.0
    return [inner[0] - step, *inner, inner[-1] + step] if inner else [0.0, 1.0]
