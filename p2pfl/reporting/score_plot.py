"""The picture of `p2pfl score`: for classes the ROC curve and, for two classes, the calibration; for a number the
predicted against the true values.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.intervals import wilson
from p2pfl.learn.metrics import classified
from p2pfl.learn.table.testing import TableOutputs
from topologies.plots import BLUE, DARK, new_figure, plain, save, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRAY = "#999999"
BINS = 10
MOST_CURVES = 7
"""The most classes whose curves people can tell apart."""


def draw_scores(outputs: TableOutputs, path: Path | None = None) -> Figure:
    """Draw the test; with a `path` also into a .png, .svg or .pdf file.

    Raises TopologyError: the file cannot be written.
    """
    classes = outputs.schema.classes
    panels = [_draw_roc, _draw_calibration] if classes is not None and len(classes) == 2 else [_draw_roc]
    panels = panels if classes is not None else [_draw_numbers, _draw_errors]
    figure: Figure = new_figure(4.4 * len(panels), 4.2)
    for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        plain(axes)
        draw(axes, outputs)
    figure.suptitle(
        f"{shown(outputs.schema.target)}: {len(outputs):,} rows", fontsize=10.5, color=DARK, x=0.01, ha="left"
    )
    if path is not None:
        save(figure, path)
    return figure


def roc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[Any]]:
    """False and true positive rates (k,) from (0, 0) to (1, 1), of `scores` (n,); equal scores are one threshold."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    right = np.cumsum(positive[order])[ends]
    wrong = ends + 1 - right
    return np.insert(wrong / wrong[-1], 0, 0.0), np.insert(right / right[-1], 0, 0.0)


def _draw_roc(axes: Any, outputs: TableOutputs) -> None:
    found = classified(outputs.outputs, outputs.targets)
    names = outputs.schema.classes or ()
    for (scores, positive), name in zip(found.one_against_rest(), names[1:] if found.is_binary else names, strict=True):
        if positive.any() and not positive.all() and len(axes.lines) < MOST_CURVES:
            axes.plot(*roc(scores, positive), label=shown(name), linewidth=1.6)
    axes.plot([0, 1], [0, 1], color=GRAY, linewidth=1, linestyle="dashed")
    if not found.is_binary and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False, loc="lower right")
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axes.set_xlabel("share of others mistaken for it", fontsize=9)
    axes.set_ylabel(f"{shown(names[1])} recognized" if found.is_binary else "share of the class recognized", fontsize=9)


def _draw_calibration(axes: Any, outputs: TableOutputs) -> None:
    """Draw how often class 1 was true in each tenth of the probabilities, with its interval."""
    chances = classified(outputs.outputs, outputs.targets).probabilities[:, 1]
    places = np.minimum((chances * BINS).astype(int), BINS - 1)
    for place in np.unique(places):
        here = places == place
        share = float(np.mean(outputs.targets[here] == 1))
        ends = wilson(share, int(here.sum()))
        at = float(chances[here].mean())
        if ends is not None:
            axes.plot([at, at], ends, color=BLUE, linewidth=1.2)
        axes.plot([at], [share], "o", color=BLUE, markersize=4)
    axes.plot([0, 1], [0, 1], color=GRAY, linewidth=1, linestyle="dashed")
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    axes.set_xlabel("predicted probability", fontsize=9)
    axes.set_ylabel("observed share", fontsize=9)


def _draw_numbers(axes: Any, outputs: TableOutputs) -> None:
    said, was = outputs.outputs[:, 0], outputs.targets[:, 0]
    axes.plot(was, said, "o", color=BLUE, markersize=3, alpha=0.6, markeredgewidth=0)
    ends = [min(was.min(), said.min()), max(was.max(), said.max())]
    axes.plot(ends, ends, color=GRAY, linewidth=1, linestyle="dashed")
    axes.set_xlabel("true", fontsize=9)
    axes.set_ylabel("predicted", fontsize=9)


def _draw_errors(axes: Any, outputs: TableOutputs) -> None:
    said = outputs.outputs[:, 0]
    axes.plot(said, said - outputs.targets[:, 0], "o", color=BLUE, markersize=3, alpha=0.6, markeredgewidth=0)
    axes.axhline(0, color=GRAY, linewidth=1, linestyle="dashed")
    axes.set_xlabel("predicted", fontsize=9)
    axes.set_ylabel("predicted minus true", fontsize=9)
