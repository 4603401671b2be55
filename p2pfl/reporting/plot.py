"""Runs, real or simulated, in one picture: what they learn, how far apart the nodes are, and what they send."""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from p2pfl.errors import UserError
from p2pfl.learn.metrics import ACCURACY, LOSS, Measure
from p2pfl.reporting.measures import Point, ReferencePoint, Statistic, measures_of, value_of, worst
from topologies.plots import DARK, counted, new_figure, plain, save, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

X = Literal["time", "rounds", "bytes"]

FORMATS = (".png", ".svg", ".pdf")

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
"""Okabe and Ito's colors, which color-blind people can tell apart too."""
STYLES: tuple[Any, ...] = ("solid", (0, (4, 1.5)), (0, (1, 1)))
GRAY = "#555555"
DOTS: Any = "dotted"
MOST_RUNS = len(COLORS) * len(STYLES)
TRAINING = Measure("train_loss", "loss", higher_is_better=False)
"""The measure in the first panel if there is no common test set."""
MOST_LEARNED = 3
"""The most measures of the task that get a panel: the main one, then the task's own metrics."""
WIDEST = 28
"""The most characters in a line beside a panel."""
HELD_FROM = 3.0
"""From this gap between two points, in multiples of the usual gap, the first point is repeated."""
POWERS_FROM = 20.0
"""The scale is logarithmic if the largest value is at least this many times the smallest."""


Drawable = Any
"""A `Report`, which imports this module."""


@dataclass(frozen=True, slots=True)
class Run:
    """A report, as drawn. `label` distinguishes it from the others in the picture."""

    report: Drawable
    history: list[Point]
    label: str = ""


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


def _repeat_points(report: Drawable) -> list[Point]:
    """Repeat a simulated point, without its bytes, shortly before the next one if there is a gap: no model changed in
    between.
    """
    history: list[Point] = report.history
    gaps = [after.time_s - before.time_s for before, after in itertools.pairwise(history)]
    if not report.simulated or not gaps:
        return history
    usual = median(gaps)
    held = history[:1]
    for before, after in itertools.pairwise(history):
        if after.time_s - before.time_s > HELD_FROM * usual:
            held.append(msgspec.structs.replace(before, time_s=after.time_s - usual, bytes_sent=None))
        held.append(after)
    return held


def draw_runs(reports: Sequence[Drawable], path: Path | None, x: X = "time", labels: Sequence[str] = ()) -> Figure:
    """Draw the picture as a matplotlib figure; with a `path` also as a .png, .svg or .pdf file.

    Raises UserError: there are too many runs, one has no history, or `path` has no supported format; TopologyError: the
    file cannot be written.
    """
    if len(reports) > MOST_RUNS:
        raise UserError("too many runs for one picture", key="REPORT", value=len(reports), allowed=f"up to {MOST_RUNS}")
    if not all(report.history for report in reports):
        raise UserError("its history is empty: nothing to draw")
    if path is not None:
        check_picture(path, key="path")
    named = zip(reports, itertools.chain(labels, itertools.repeat("")), strict=False)
    runs = [Run(report, _repeat_points(report), label) for report, label in named]
    panels: list[Callable[[Any], None]] = [
        partial(_draw_learned, runs=runs, measure=measure, x=x) for measure in _learned(runs)
    ]
    if _have(runs, "consensus_distance"):
        panels.append(lambda axes: _draw_distance(axes, runs, x))
    if x != "bytes":
        panels.append(lambda axes: _draw_bytes(axes, runs, x))
    figure: Figure = new_figure(8 if len(runs) == 1 else 9, 1.4 + 2.3 * len(panels) if panels else 3)
    places: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False).flat if panels else []
    for draw_panel, axes in zip(panels, places, strict=True):
        plain(axes)
        draw_panel(axes)
    if panels:
        _across(figure.axes[-1], runs, x)
        _explain(figure, runs)
        figure.align_ylabels()
    figure.suptitle(_title(runs), fontsize=10.5, color=DARK, x=0.01, ha="left")
    if path is not None:
        save(figure, path)
    return figure


def draw_comparison(reports: Sequence[Drawable], path: Path, labels: Sequence[str]) -> None:
    """Draw what the mean and the worst node learn, and the distance, against rounds, bytes and, if it is known, time.

    Without a virtual time all are in step, and the points of the last rounds, which only mix, are drawn as rounds too.
    Raises as `draw_runs`.
    """
    from matplotlib.lines import Line2D  # noqa: PLC0415 - slow to import, and an extra

    if len(reports) > MOST_RUNS:
        raise UserError("too many for one picture", key="GRAPH", value=len(reports), allowed=f"up to {MOST_RUNS}")
    runs = [Run(report, report.history, label) for report, label in zip(reports, labels, strict=True)]
    measure, timed = _learned(runs)[0], all(run.report.virtual_time_s is not None for run in runs)
    across: list[X] = ["rounds", "bytes", "time"] if timed else ["time", "bytes"]
    figure = new_figure(2.2 + 3.2 * len(across), 7.2)
    panels = figure.subplots(3, len(across), sharex="col", sharey="row", squeeze=False)
    for row, column in itertools.product(range(3), range(len(across))):
        axes = panels[row, column]
        plain(axes)
        for place, run in enumerate(runs):
            learned = [(point, _finite(_of_point(point, measure))) for point in run.history]
            values = (
                [(point, found and found.mean) for point, found in learned],
                [(point, found and worst(found, measure)) for point, found in learned],
                [(point, point.consensus_distance or None) for point in run.history],
            )
            _line(axes, [(_place(run, point, across[column]), value) for point, value in values[row]], place)
        if row == 2:
            axes.set_yscale("log")
            _across(axes, runs, across[column])
            axes.locator_params(axis="x", nbins=5)
    if not timed:
        panels[2, 0].set_xlabel("rounds; in the last ones nodes only mix", fontsize=9)
    rows = (f"{measure.label}, mean of the nodes", f"{measure.label}, worst node", "consensus distance (relative)")
    for axes, words in zip(panels[:, 0], rows, strict=True):
        axes.set_ylabel(words, fontsize=9)
    lines = [Line2D([], [], color=_color(one), linestyle=STYLES[one // len(COLORS)]) for one in range(len(runs))]
    figure.legend(lines, [shown(one, 32) for one in labels], loc="outside right upper", fontsize=8.5, frameon=False)
    title = f"{counted(len(reports[0].nodes), 'node')}, seed {reports[0].seed}, {'apart' if timed else 'in step'}"
    figure.suptitle(title, fontsize=10.5, color=DARK, x=0.01, ha="left")
    save(figure, path)


def _learned(runs: Sequence[Run]) -> list[Measure]:
    """Return the main measure of the first run that has a value for it, and the metrics that the task adds."""
    for run in runs:
        main, *others = measures_of([run.report, *run.report.nodes, *run.history])
        found = [one for one in (main, *others) if any(_finite(value_of(point, one)) for point in run.history)]
        own = [one for one in found if one is main or one.name not in (ACCURACY.name, LOSS.name)]
        if own or found:
            return (own or found)[:MOST_LEARNED]
    return [TRAINING] if _have(runs, "train_loss") else []


def _have(runs: Sequence[Run], name: str) -> bool:
    return any(_finite(getattr(point, name)) for run in runs for point in run.history)


def _finite(value: Statistic | float | None) -> Any:
    """Return a statistic if it can be drawn, or None if a node's model diverged in the run."""
    return None if isinstance(value, Statistic) and not value.is_finite else value


# -- panels ------------------------------------------------------------------------------------------------------------


def _draw_learned(axes: Any, runs: Sequence[Run], measure: Measure, x: X) -> None:
    for place, run in enumerate(runs):
        spreads = [(_place(run, point, x), _finite(_of_point(point, measure))) for point in run.history]
        known = [(at, spread) for at, spread in spreads if spread is not None and at is not None]
        at = [one for one, _ in known]
        low, high = [spread.min for _, spread in known], [spread.max for _, spread in known]
        axes.fill_between(at, low, high, color=_color(place), alpha=0.16, linewidth=0)
        _line(axes, [(at, spread.mean) for at, spread in known], place)
    if measure is not TRAINING:
        _draw_references(axes, runs, measure, x)
    where = "in training" if measure is TRAINING else "on the test set"
    better = "" if measure.name in (ACCURACY.name, LOSS.name) or measure.higher_is_better else "\n(lower is better)"
    axes.set_ylabel(textwrap.fill(f"{measure.label} {where}", WIDEST) + better, fontsize=9)
    if measure.name == ACCURACY.name:
        axes.set_ylim(0, 1.02)
    elif not measure.higher_is_better:
        found = [_finite(_of_point(point, measure)) for run in runs for point in run.history]
        means = [one.mean for one in found if one]
        if min(means) > 0 and max(means) / min(means) >= POWERS_FROM:
            axes.set_yscale("log")


def _of_point(point: Point, measure: Measure) -> Statistic | None:
    found: Statistic | None = point.train_loss if measure is TRAINING else value_of(point, measure)
    return found


def _draw_references(axes: Any, runs: Sequence[Run], measure: Measure, x: X) -> None:
    """Draw the references.

    Federated averaging is dashed, as a curve if it has the same axis. Only for a single run, training on all data is
    dotted, and the mean of nodes that train alone is dash-dotted. A reference is gray if it is the same for all runs,
    otherwise it has the run's color.
    """
    curves = [_fedavg(run, measure, x) for run in runs]
    same = all(curve == curves[0] for curve in curves)
    for place, curve in enumerate(curves[:1] if same else curves):
        look = {"color": GRAY if same else _color(place), "linewidth": 1.1, "linestyle": "dashed"}
        if len(curve) == 1 and x == "time":
            axes.axhline(curve[0][1], **look)
        elif curve:
            axes.plot(*zip(*curve, strict=True), **look)
    found = runs[0].report.reference
    single: Statistic | None = None if found is None or found.alone is None else value_of(found.alone, measure)
    if len(runs) == 1 and single is not None and single.is_finite:
        axes.axhline(single.mean, color=GRAY, linewidth=1.1, linestyle="dashdot")
    if len(runs) == 1 and found is not None and found.centralized is not None:
        for reference in (found.centralized.one_node, found.centralized.all_nodes):
            if reference is not None and value_of(reference, measure) is not None:
                axes.axhline(value_of(reference, measure), color=GRAY, linewidth=1.1, linestyle=DOTS)


def _fedavg(run: Run, measure: Measure, x: X) -> list[tuple[float, float]]:
    """Return the points of its curve. Over time, which the reference server does not have, return only the end."""
    fedavg = run.report.reference.fedavg if run.report.reference else None
    if fedavg is None:
        return []
    moments = [fedavg] if x == "time" else fedavg.history
    points = [(_moment(run, moment, x), value_of(moment, measure)) for moment in moments]
    return [(at, value) for at, value in points if at is not None and value is not None]


def _draw_distance(axes: Any, runs: Sequence[Run], x: X) -> None:
    for place, run in enumerate(runs):
        _line(axes, [(_place(run, point, x), point.consensus_distance or None) for point in run.history], place)
    axes.set_yscale("log")
    axes.set_ylabel("consensus distance (relative)", fontsize=9)


def _draw_bytes(axes: Any, runs: Sequence[Run], x: X) -> None:
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


def _place(run: Run, point: Point, x: X) -> float | None:
    """Return the position on the horizontal axis. Real processes take a while to start, so their time begins with the
    first point.
    """
    match x:
        case "time":
            return point.time_s if run.report.simulated else point.time_s - run.history[0].time_s
        case "rounds":
            return None if point.rounds is None else point.rounds.mean
        case "bytes":
            return None if point.bytes_sent is None else point.bytes_sent / max(1, len(run.report.nodes))


def _moment(run: Run, moment: ReferencePoint, x: X) -> float | None:
    match x:
        case "time":
            return 0.0
        case "rounds":
            return moment.rounds
        case "bytes":
            return None if moment.bytes_sent is None else moment.bytes_sent / max(1, len(run.report.nodes))


def _across(axes: Any, runs: Sequence[Run], x: X) -> None:
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415 - as above

    kinds = {run.report.simulated for run in runs}
    seconds = "virtual seconds" if kinds == {True} else "seconds since the first node was ready"
    if len(kinds) > 1:
        seconds = "seconds, virtual where simulated"
    words = {"time": seconds, "rounds": "rounds of a node, on average", "bytes": "sent by a node, on average"}
    axes.set_xlabel(words[x], fontsize=9)
    axes.set_xlim(left=0)
    if x == "bytes":
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))


def _explain(figure: Any, runs: Sequence[Run]) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - as above
    from matplotlib.patches import Patch  # noqa: PLC0415 - as above

    marks: list[tuple[Any, str]] = []
    mixed = len({run.report.simulated for run in runs}) > 1
    for place, run in enumerate(runs):
        line = Line2D([], [], color=_color(place), linewidth=1.7, linestyle=STYLES[place // len(COLORS)])
        marks.append((line, "mean of the nodes" if len(runs) == 1 else _run_label(run, mixed=mixed)))
    marks.append((Patch(color=COLORS[0] if len(runs) == 1 else GRAY, alpha=0.16), _band(runs)))
    found = [run.report.reference for run in runs if run.report.reference is not None]
    if any(one.fedavg for one in found):
        marks.append((Line2D([], [], color=GRAY, linewidth=1.1, linestyle="dashed"), "a server (FedAvg)"))
    if len(runs) == 1 and any(one.alone for one in found):
        line = Line2D([], [], color=GRAY, linewidth=1.1, linestyle="dashdot")
        marks.append((line, "each node alone, on average"))
    if len(runs) == 1 and any(one.centralized for one in found):
        words = "all data in one place:\nsteps of one node, of all"
        marks.append((Line2D([], [], color=GRAY, linewidth=1.1, linestyle=DOTS), words))
    handles, labels = zip(*marks, strict=True)
    figure.legend(handles, labels, loc="outside right upper", fontsize=8.5, frameon=False)


def _band(runs: Sequence[Run]) -> str:
    """Describe the band. A run with very many nodes evaluates only some of them before the end."""
    run = runs[0]
    some, honest = run.history[-1].evaluated, len(run.report.nodes) - len(run.report.byzantine)
    return f"worst to best of {some} nodes" if len(runs) == 1 and some and some < honest else "worst to best node"


def _run_label(run: Run, *, mixed: bool) -> str:
    kind = (", simulated" if run.report.simulated else ", real") if mixed else ""
    return f"{shown(run.label, 32)}\n{counted(len(run.report.nodes), 'node')}, {shown(run.report.topology, 28)}{kind}"


def _title(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs"
    report = runs[0].report
    kind = "simulated" if report.simulated else "real nodes"
    name, nodes = report.config.get("federation", ""), counted(len(report.nodes), "node")
    title = shown(f"{name}: {nodes}, {report.topology}, seed {report.seed}, {kind}", 100)
    return title if report.label_shift is None else f"{title}\ntargets of the nodes: {report.label_shift.in_words}"
