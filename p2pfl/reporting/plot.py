"""Runs, real or simulated, in one picture: what they learn, how far apart the nodes are, and what they send."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from p2pfl.errors import UserError
from p2pfl.learn.metrics import ACCURACY, LOSS, Measure
from p2pfl.reporting.measures import Point, Statistic, measures_of, value_of
from topologies.plots import DARK, counted, legend_above, legend_rows, new_figure, plain, save, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

X = Literal["time", "rounds", "bytes"]
Drawable = Any
"""A `Report`, which imports this module."""

FORMATS = (".png", ".svg", ".pdf")

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
"""Okabe and Ito's colors, which color-blind people can tell apart too."""
STYLES: tuple[Any, ...] = ("solid", (0, (4, 1.5)), (0, (1, 1)))
GRAY = "#555555"
MOST_RUNS = len(COLORS) * len(STYLES)
MOST_BANDS = 2
"""The most runs with a band from worst to best. The bands of more would cover each other."""
WIDTH_INCHES = 8.0
CURVE_INCHES = (5.0, 2.4)
TRAINING = Measure("train_loss", "loss", higher_is_better=False)
"""The measure in the first panel if there is no common test set."""
MOST_LEARNED = 3
"""The most measures of the task that get a panel: the main one, then the task's own metrics."""
WIDEST = 28
"""The most characters in a line beside a panel."""
POWERS_FROM = 20.0
"""The scale is logarithmic if the largest value is at least this many times the smallest."""


def check_target(path: Path, *, key: str, coming: Path | None = None) -> None:
    """Check that a file can be written there, in place of an older one. `coming` is a folder that the run will create.

    Raises UserError: there is no such folder, it cannot be written to, or the path is a folder.
    """
    if path.is_dir():
        raise UserError("is a folder", key=key, value=str(path), allowed="a file")
    folder = path.absolute().parent
    if coming is not None and folder == coming.absolute():
        return
    if not folder.is_dir():
        raise UserError("no such folder", key=key, value=str(path.parent), allowed="a folder that exists")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError("cannot be written to", key=key, value=str(folder), allowed="a folder of yours")


def check_picture(path: Path, *, key: str = "--plot", coming: Path | None = None) -> None:
    """Check before a run that its picture can be drawn. `coming` is a folder that the run will create; `key` is the
    option.

    Raises UserError: the format is not supported, or as `check_target`.
    """
    if path.suffix.lower() not in FORMATS:
        raise UserError("no such picture format", key=key, value=str(path), allowed=", ".join(FORMATS))
    check_target(path, key=key, coming=coming)
    import matplotlib as _  # noqa: F401, ICN001, PLC0415 - an extra: missing, it must show before the run


def draw_runs(runs: Sequence[Drawable], path: Path | None, x: X = "time", labels: Sequence[str] = ()) -> Figure:
    """Draw the picture as a matplotlib figure; with a `path` also as a .png, .svg or .pdf file. `labels` distinguish
    several runs.

    Raises UserError: there are too many runs, one has no history, or `path` has no supported format; TopologyError: the
    file cannot be written.
    """
    if len(runs) > MOST_RUNS:
        raise UserError("too many runs for one picture", key="REPORT", value=len(runs), allowed=f"up to {MOST_RUNS}")
    if not all(run.history for run in runs):
        raise UserError("its history is empty: nothing to draw")
    if path is not None:
        check_picture(path, key="path")
    panels: list[Callable[[Any], None]] = [
        partial(_draw_learned, runs=runs, measure=measure, x=x) for measure in _learned(runs)
    ]
    if _have(runs, "consensus_distance"):
        panels.append(partial(_draw_distance, runs=runs, x=x))
    if x != "bytes":
        panels.append(partial(_draw_bytes, runs=runs, x=x))
    marks = _marks(runs, labels)
    rows = legend_rows([text for _, text in marks], WIDTH_INCHES)
    figure: Figure = new_figure(WIDTH_INCHES, 1.0 + 0.2 * rows + 2.3 * len(panels) if panels else 3)
    places: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False).flat if panels else []
    for draw_panel, axes in zip(panels, places, strict=True):
        plain(axes)
        draw_panel(axes)
    if panels:
        _across(figure.axes[-1], runs, x)
        legend_above(figure.axes[0], marks, WIDTH_INCHES)
        figure.align_ylabels()
    figure.suptitle(_title(runs), fontsize=10.5, color=DARK, x=0.01, ha="left")
    if path is not None:
        save(figure, path)
    return figure


def draw_curve(run: Drawable) -> Any:
    """Draw the main measure of a run over time, for a notebook; None if it is not known at any time."""
    if not (measures := _learned([run])):
        return None
    figure = new_figure(*CURVE_INCHES)
    axes = figure.subplots()
    plain(axes)
    _draw_learned(axes, runs=[run], measure=measures[0], x="time", levels=False)
    _across(axes, [run], "time")
    return figure


def _learned(runs: Sequence[Drawable]) -> list[Measure]:
    """Return the main measure of the first run that has a value for it, and the metrics that the task adds."""
    for run in runs:
        measures = measures_of([run, *run.nodes, *run.history])
        known = [measure for measure in measures if any(_finite(value_of(point, measure)) for point in run.history)]
        own = [measure for measure in known if measure is measures[0] or measure.name not in (ACCURACY.name, LOSS.name)]
        if own or known:
            return (own or known)[:MOST_LEARNED]
    return [TRAINING] if _have(runs, "train_loss") else []


def _have(runs: Sequence[Drawable], name: str) -> bool:
    return any(_finite(getattr(point, name)) for run in runs for point in run.history)


def _finite(value: Statistic | float | None) -> Any:
    """Return a statistic if it can be drawn, or None if a node's model diverged in the run."""
    return None if isinstance(value, Statistic) and not value.is_finite else value


# -- panels ------------------------------------------------------------------------------------------------------------


def _draw_learned(axes: Any, runs: Sequence[Drawable], measure: Measure, x: X, *, levels: bool = True) -> None:
    for place, run in enumerate(runs):
        spreads = [(_place(run, point, x), _finite(_of_point(point, measure))) for point in run.history]
        known = [(at, spread) for at, spread in spreads if spread is not None and at is not None]
        at = [moment for moment, _ in known]
        low, high = [spread.min for _, spread in known], [spread.max for _, spread in known]
        if len(runs) <= MOST_BANDS:
            axes.fill_between(at, low, high, color=_color(place), alpha=0.16, linewidth=0)
        else:
            axes.plot(at, low if measure.higher_is_better else high, color=_color(place), linewidth=0.8)
        _line(axes, [(at, spread.mean) for at, spread in known], place)
    for style, _, scores in _references(runs) if levels and measure is not TRAINING else []:
        for value in (value_of(score, measure) for score in scores):
            level = value.mean if isinstance(value, Statistic) else value
            if level is not None and math.isfinite(level):
                axes.axhline(level, color=GRAY, linewidth=1.1, linestyle=style)
    where = "in training" if measure is TRAINING else "on the test set"
    better = "" if measure.name in (ACCURACY.name, LOSS.name) or measure.higher_is_better else "\n(lower is better)"
    axes.set_ylabel(textwrap.fill(f"{measure.label} {where}", WIDEST) + better, fontsize=9)
    if measure.name == ACCURACY.name:
        axes.set_ylim(0, 1.02)
    elif not measure.higher_is_better:
        drawn = [_finite(_of_point(point, measure)) for run in runs for point in run.history]
        means = [spread.mean for spread in drawn if spread]
        if min(means) > 0 and max(means) / min(means) >= POWERS_FROM:
            axes.set_yscale("log")


def _of_point(point: Point, measure: Measure) -> Statistic | None:
    statistic: Statistic | None = point.train_loss if measure is TRAINING else value_of(point, measure)
    return statistic


def _references(runs: Sequence[Drawable]) -> list[tuple[Any, str, list[Any]]]:
    """Return how the references of a single run are drawn: the style of the level lines, their name, and the scores."""
    reference = runs[0].reference if len(runs) == 1 else None
    if reference is None:
        return []
    pooled = [] if reference.centralized is None else [reference.centralized.one_node, reference.centralized.all_nodes]
    drawn: list[tuple[Any, str, list[Any]]] = [
        ("dashed", "a server (FedAvg)", [reference.fedavg]),
        ("dashdot", "each node alone, on average", [reference.alone]),
        ("dotted", "all data in one place:\nsteps of one node, of all", pooled),
    ]
    return [(style, name, known) for style, name, scores in drawn if (known := [score for score in scores if score])]


def _draw_distance(axes: Any, runs: Sequence[Drawable], x: X) -> None:
    for place, run in enumerate(runs):
        _line(axes, [(_place(run, point, x), point.consensus_distance or None) for point in run.history], place)
    axes.set_yscale("log")
    axes.set_ylabel("consensus distance (relative)", fontsize=9)


def _draw_bytes(axes: Any, runs: Sequence[Drawable], x: X) -> None:
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415 - slow to import, and an extra

    for place, run in enumerate(runs):
        _line(axes, [(_place(run, point, x), _place(run, point, "bytes")) for point in run.history], place)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.set_ylabel("sent by a node", fontsize=9)


def _line(axes: Any, points: Sequence[tuple[float | None, float | None]], place: int) -> None:
    """Draw a line through the known points. A single one shows as a dot."""
    known = [(at, value) for at, value in points if at is not None and value is not None]
    style = STYLES[place // len(COLORS)]
    marker = "o" if len(known) == 1 else None
    axes.plot(
        [at for at, _ in known],
        [value for _, value in known],
        color=_color(place),
        linewidth=1.7,
        linestyle=style,
        marker=marker,
        markersize=5,
    )


def _color(place: int) -> str:
    return COLORS[place % len(COLORS)]


# -- axes and words ----------------------------------------------------------------------------------------------------


def _place(run: Drawable, point: Point, x: X) -> float | None:
    """Return the position on the horizontal axis. Real processes take a while to start, so their time begins with the
    first point.
    """
    match x:
        case "time":
            return point.time_s if run.simulated else point.time_s - run.history[0].time_s
        case "rounds":
            return None if point.rounds is None else point.rounds.mean
        case "bytes":
            return None if point.bytes_sent is None else point.bytes_sent / max(1, len(run.nodes))


def _across(axes: Any, runs: Sequence[Drawable], x: X) -> None:
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415 - as above

    kinds = {run.simulated for run in runs}
    seconds = "virtual seconds" if kinds == {True} else "seconds since the first node was ready"
    if len(kinds) > 1:
        seconds = "seconds, virtual where simulated"
    words = {"time": seconds, "rounds": "rounds of a node, on average", "bytes": "sent by a node, on average"}
    axes.set_xlabel(words[x], fontsize=9)
    axes.set_xlim(left=0)
    if x == "bytes":
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))


def _marks(runs: Sequence[Drawable], labels: Sequence[str]) -> list[tuple[Any, str]]:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - as above
    from matplotlib.patches import Patch  # noqa: PLC0415 - as above

    marks: list[tuple[Any, str]] = []
    for place, (run, label) in enumerate(zip(runs, labels or [""] * len(runs), strict=True)):
        line = Line2D([], [], color=_color(place), linewidth=1.7, linestyle=STYLES[place // len(COLORS)])
        own = [fact for fact, shared in zip(_facts(run), _common(runs), strict=True) if fact not in {shared, label}]
        text = ": ".join(filter(None, [shown(label, 32), shown(", ".join(own), 48)]))
        marks.append((line, "mean of the nodes" if len(runs) == 1 else text))
    band = Patch(color=COLORS[0] if len(runs) == 1 else GRAY, alpha=0.16), _band(runs)
    marks.append(band if len(runs) <= MOST_BANDS else (Line2D([], [], color=GRAY, linewidth=0.8), "worst node"))
    levels = [
        (Line2D([], [], color=GRAY, linewidth=1.1, linestyle=style), name) for style, name, _ in _references(runs)
    ]
    return [*marks, *levels]


def _band(runs: Sequence[Drawable]) -> str:
    """Describe the band. A run with very many nodes evaluates only some of them before the end."""
    run = runs[0]
    some, honest = run.history[-1].evaluated, len(run.nodes) - len(run.byzantine)
    return f"worst to best of {some} nodes" if len(runs) == 1 and some and some < honest else "worst to best node"


def _facts(run: Drawable) -> list[str]:
    """Return what distinguishes one run from another."""
    kind = "simulated" if run.simulated else "real nodes"
    return [run.config.get("federation", ""), counted(len(run.nodes), "node"), run.topology, f"seed {run.seed}", kind]


def _common(runs: Sequence[Drawable]) -> list[str]:
    """Return the facts of all runs; what differs among them is empty."""
    return [facts[0] if len(set(facts)) == 1 else "" for facts in zip(*map(_facts, runs), strict=True)]


def _title(runs: Sequence[Drawable]) -> str:
    name, *common = _common(runs)
    return shown(f"{name or counted(len(runs), 'run')}: {', '.join(filter(None, common))}".removesuffix(": "), 100)
