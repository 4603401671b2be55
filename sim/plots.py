"""Runs, real or simulated, in one picture: what they learn, how far the nodes are apart, what they send.

A run is read from its report; of that only what is drawn must be there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from p2pfl.errors import UserError
from topologies.plots.canvas import DARK, counted, new_figure, plain, save, shown

X = Literal["time", "rounds", "bytes"]

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
"""Okabe and Ito's, told apart by everybody."""
STYLES: tuple[Any, ...] = ("solid", (0, (4, 1.5)), (0, (1, 1)))
GRAY = "#555555"
DOTS: Any = "dotted"
MOST_RUNS = len(COLORS) * len(STYLES)
LEARNED = {
    "accuracy": "accuracy on the common test set",
    "loss": "loss on the common test set",
    "train_loss": "loss in training",
}
"""What the first panel shows: the first of these that any run has."""
HELD_FROM = 3.0
"""usual gaps between two points."""
POWERS_FROM = 20.0
"""where the largest value is so many times the smallest, the scale is logarithmic."""


class PlottedSpread(msgspec.Struct):
    mean: float
    min: float
    max: float


class Point(msgspec.Struct):
    time_s: float
    rounds: PlottedSpread | None = None
    accuracy: PlottedSpread | None = None
    loss: PlottedSpread | None = None
    train_loss: PlottedSpread | None = None
    consensus_distance: float | None = None
    bytes_sent: float | None = None
    evaluated: int | None = None
    """how many nodes, where not all were."""


class PlottedMoment(msgspec.Struct):
    """Of a reference; `rounds` and `bytes_sent` of federated averaging alone."""

    accuracy: float | None = None
    loss: float | None = None
    rounds: float | None = None
    bytes_sent: float | None = None


class Reference(PlottedMoment):
    history: list[PlottedMoment] = []


class Central(msgspec.Struct):
    one_node: Reference | None = None
    all_nodes: Reference | None = None


class References(msgspec.Struct):
    centralized: Central | None = None
    fedavg: Reference | None = None


class Config(msgspec.Struct):
    federation: str


class Run(msgspec.Struct):
    """`label` tells it from the others in the picture."""

    nodes: list[Any]
    topology: str
    history: list[Point]
    config: Config
    seed: int = 0
    simulated: bool = False
    byzantine: list[str] = []
    reference: References | None = None
    label: str = ""


def read_run(content: bytes, label: str = "") -> Run:
    """A run from the text of its report.

    Raises:
        ValueError: this is no report.
    """
    run = run_of(msgspec.json.decode(content))
    run.label = label
    return run


def run_of(report: Mapping[str, Any]) -> Run:
    """A run from the report that it has just made."""
    run = msgspec.convert(_known(report), type=Run)
    run.history = _held(run)
    return run


def _known(report: Any) -> Any:
    """Without the figures of its history that are no numbers, null in JSON, because somebody's model diverged."""
    history = report.get("history") if isinstance(report, Mapping) else None
    if not isinstance(history, list):
        return report
    return {**report, "history": [_known_figures(point) if isinstance(point, Mapping) else point for point in history]}


def _known_figures(point: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(figure, Mapping) and None in figure.values() else figure
        for name, figure in point.items()
    }


def _held(run: Run) -> list[Point]:
    """A simulated history leaves out points while no model moves: the last one held until shortly before the next.

    Messages may go on meanwhile, so nothing is said of bytes.
    """
    history = run.history
    gaps = [after.time_s - before.time_s for before, after in itertools.pairwise(history)]
    if not run.simulated or not gaps:
        return history
    usual = median(gaps)
    held = history[:1]
    for before, after in itertools.pairwise(history):
        if after.time_s - before.time_s > HELD_FROM * usual:
            held.append(msgspec.structs.replace(before, time_s=after.time_s - usual, bytes_sent=None))
        held.append(after)
    return held


def draw_runs(runs: Sequence[Run], path: Path, x: X = "time") -> None:
    """Write the picture, a .png, .svg or .pdf file.

    Raises:
        UserError: there are too many.
    """
    if len(runs) > MOST_RUNS:
        raise UserError("too many runs for one picture", key="REPORT", value=len(runs), allowed=f"up to {MOST_RUNS}")
    learned = next((name for name in LEARNED if _have(runs, name)), None)
    panels: list[Callable[[Any], None]] = []
    if learned is not None:
        panels.append(lambda axes: _draw_learned(axes, runs, learned, x))
    if _have(runs, "consensus_distance"):
        panels.append(lambda axes: _draw_distance(axes, runs, x))
    if x != "bytes":
        panels.append(lambda axes: _draw_bytes(axes, runs, x))
    figure = new_figure(8 if len(runs) == 1 else 9, 1.4 + 2.3 * len(panels) if panels else 3)
    places = figure.subplots(len(panels), 1, sharex=True, squeeze=False).flat if panels else []
    for draw_panel, axes in zip(panels, places, strict=True):
        plain(axes)
        draw_panel(axes)
    if panels:
        _across(figure.axes[-1], runs, x)
        _explain(figure, runs)
        figure.align_ylabels()
    figure.suptitle(_title(runs), fontsize=10.5, color=DARK, x=0.01, ha="left")
    save(figure, path)


def _have(runs: Sequence[Run], name: str) -> bool:
    return any(getattr(point, name) for run in runs for point in run.history)


# -- panels ------------------------------------------------------------------------------------------------------------


def _draw_learned(axes: Any, runs: Sequence[Run], name: str, x: X) -> None:
    for place, run in enumerate(runs):
        spreads = [(_place(run, point, x), getattr(point, name)) for point in run.history]
        known = [(at, spread) for at, spread in spreads if spread is not None and at is not None]
        at = [one for one, _ in known]
        low, high = [spread.min for _, spread in known], [spread.max for _, spread in known]
        axes.fill_between(at, low, high, color=_color(place), alpha=0.16, linewidth=0)
        _line(axes, at, [spread.mean for _, spread in known], place)
    if name != "train_loss":
        _draw_references(axes, runs, name, x)
    axes.set_ylabel(LEARNED[name], fontsize=9)
    if name == "accuracy":
        axes.set_ylim(0, 1.02)
    else:
        means = [getattr(point, name).mean for run in runs for point in run.history if getattr(point, name)]
        if min(means) > 0 and max(means) / min(means) >= POWERS_FROM:
            axes.set_yscale("log")


def _draw_references(axes: Any, runs: Sequence[Run], name: str, x: X) -> None:
    """Dashed: federated averaging, as a curve where it has the same axis. Dotted, of a single run: all data at once.

    In gray where it is the same for all runs, else in the run's own color.
    """
    curves = [_fedavg(run, name, x) for run in runs]
    same = all(curve == curves[0] for curve in curves)
    for place, curve in enumerate(curves[:1] if same else curves):
        look = {"color": GRAY if same else _color(place), "linewidth": 1.1, "linestyle": "dashed"}
        if len(curve) == 1 and x == "time":
            axes.axhline(curve[0][1], **look)
        elif curve:
            axes.plot(*zip(*curve, strict=True), **look)
    found = runs[0].reference
    if len(runs) == 1 and found is not None and found.centralized is not None:
        for reference in (found.centralized.one_node, found.centralized.all_nodes):
            if reference is not None and getattr(reference, name) is not None:
                axes.axhline(getattr(reference, name), color=GRAY, linewidth=1.1, linestyle=DOTS)


def _fedavg(run: Run, name: str, x: X) -> list[tuple[float, float]]:
    """Points of its curve; over time, which a server does not have, the end alone."""
    fedavg = run.reference.fedavg if run.reference else None
    if fedavg is None:
        return []
    moments = [fedavg] if x == "time" else fedavg.history
    points = [(_moment(run, moment, x), getattr(moment, name)) for moment in moments]
    return [(at, value) for at, value in points if at is not None and value is not None]


def _draw_distance(axes: Any, runs: Sequence[Run], x: X) -> None:
    for place, run in enumerate(runs):
        points = [(_place(run, point, x), point.consensus_distance) for point in run.history]
        known = [(at, value) for at, value in points if at is not None and value]
        _line(axes, [at for at, _ in known], [value for _, value in known], place)
    axes.set_yscale("log")
    axes.set_ylabel("consensus distance (relative)", fontsize=9)


def _draw_bytes(axes: Any, runs: Sequence[Run], x: X) -> None:
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415 - slow to import, and an extra

    for place, run in enumerate(runs):
        points = [(_place(run, point, x), _place(run, point, "bytes")) for point in run.history]
        known = [(at, value) for at, value in points if at is not None and value is not None]
        _line(axes, [at for at, _ in known], [value for _, value in known], place)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.set_ylabel("sent by a node", fontsize=9)


def _line(axes: Any, at: Sequence[float], values: Sequence[float], place: int) -> None:
    """A single point is no line: it shows as a dot."""
    style = STYLES[place // len(COLORS)]
    marker = "o" if len(at) == 1 else None
    axes.plot(at, values, color=_color(place), linewidth=1.7, linestyle=style, marker=marker, markersize=5)


def _color(place: int) -> str:
    return COLORS[place % len(COLORS)]


# -- axes and words ----------------------------------------------------------------------------------------------------


def _place(run: Run, point: Point, x: X) -> float | None:
    """Where on the horizontal axis. Real processes take their time to start: theirs begins with the first point."""
    match x:
        case "time":
            return point.time_s if run.simulated else point.time_s - run.history[0].time_s
        case "rounds":
            return None if point.rounds is None else point.rounds.mean
        case "bytes":
            return None if point.bytes_sent is None else point.bytes_sent / max(1, len(run.nodes))


def _moment(run: Run, moment: PlottedMoment, x: X) -> float | None:
    match x:
        case "time":
            return 0.0
        case "rounds":
            return moment.rounds
        case "bytes":
            return None if moment.bytes_sent is None else moment.bytes_sent / max(1, len(run.nodes))


def _across(axes: Any, runs: Sequence[Run], x: X) -> None:
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


def _explain(figure: Any, runs: Sequence[Run]) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - as above
    from matplotlib.patches import Patch  # noqa: PLC0415 - as above

    marks: list[tuple[Any, str]] = []
    mixed = len({run.simulated for run in runs}) > 1
    for place, run in enumerate(runs):
        line = Line2D([], [], color=_color(place), linewidth=1.7, linestyle=STYLES[place // len(COLORS)])
        marks.append((line, "mean of the nodes" if len(runs) == 1 else _named(run, mixed=mixed)))
    marks.append((Patch(color=COLORS[0] if len(runs) == 1 else GRAY, alpha=0.16), _band(runs)))
    found = [run.reference for run in runs if run.reference is not None]
    if any(one.fedavg for one in found):
        marks.append((Line2D([], [], color=GRAY, linewidth=1.1, linestyle="dashed"), "a server (FedAvg)"))
    if len(runs) == 1 and any(one.centralized for one in found):
        words = "all data in one place:\nsteps of one node, of all"
        marks.append((Line2D([], [], color=GRAY, linewidth=1.1, linestyle=DOTS), words))
    handles, labels = zip(*marks, strict=True)
    figure.legend(handles, labels, loc="outside right upper", fontsize=8.5, frameon=False)


def _band(runs: Sequence[Run]) -> str:
    """A run of very many nodes looks at some of them on its way."""
    run = runs[0]
    some = run.history[-1].evaluated if len(runs) == 1 else None
    liars = len(run.byzantine)
    return "worst to best node" if some is None or some >= len(run.nodes) - liars else f"worst to best of {some} nodes"


def _named(run: Run, *, mixed: bool) -> str:
    kind = (", simulated" if run.simulated else ", real") if mixed else ""
    return f"{shown(run.label, 32)}\n{counted(len(run.nodes), 'node')}, {shown(run.topology, 28)}{kind}"


def _title(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs"
    run = runs[0]
    kind = "simulated" if run.simulated else "real processes"
    what = f"{run.config.federation}: {counted(len(run.nodes), 'node')}, {run.topology}, seed {run.seed}, {kind}"
    return shown(what, 100)
