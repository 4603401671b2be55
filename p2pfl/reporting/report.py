"""The report of a run, real or simulated, in one shape, so that the two can be compared; and what a secure sum gives.

A field that is null is unknown, or does not apply. Sizes are in bytes, times in seconds. JSON has neither NaN nor
infinity: both are written as null, and a null in a `Statistic` is read as NaN.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from p2pfl.errors import UserError, naming_extras
from p2pfl.learn.metrics import Measure
from p2pfl.reporting.measures import Maybe, ModelScore, Point, References, Statistic, measures_of, merit, value_of
from p2pfl.reporting.status import MeanAndMax, NeighborStatus, PrivacyStatus

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

TABLES = "csv"
"""The task whose models are scored on tables."""
SCORE = "`p2pfl score NODE TABLE` says how good the model is, on a labelled table of your own"


def instead(task: str) -> str | None:
    """Return the command to use if scores are withheld, for the task with this name, or None if there is none."""
    return SCORE if task == TABLES else None


MOST_SHOWN = 10
"""The most nodes that a notebook shows."""
PRIVATE_FIGURES = ("losses in training", "scores on a node's own data", "which classes a node has")
"""The figures that a private run withholds."""
SCORES = "scores on the test set"
"""Another figure that a private run withholds, unless the test set is public."""


class NodeReport(msgspec.Struct, kw_only=True):
    """One node of a run."""

    name: str
    state: str = ""
    finished: bool = False
    died: bool = False
    byzantine: bool = False
    failed_rounds: int | None = None
    rounds: int | None = None
    accuracy: float | None = None
    test_loss: float | None = None
    tested_round: int | None = None
    tested_version: int | None = None
    test_is_stale: bool | None = None
    """True if accuracy and test_loss belong to an older model than the last one."""
    loss: float | None = None
    """The loss of the latest local round."""
    bytes_sent: int | None = None
    messages_sent: int | None = None
    staleness: MeanAndMax | None = None
    exchanges: int | None = None
    rounds_without_neighbor: int = 0
    rounds_unmixed: int | None = None
    """The rounds since its last start that mixed with nobody although a neighbor was connected; null for sums."""
    rounds_beyond: int | None = None
    """The rounds trained beyond those asked for, with nodes that were not through; null if time bounds training."""
    ended_by: str | None = None
    """The reason why its training ended."""
    through_by: str | None = None
    """The reason why it counts as having done all its training; null if it has not."""
    device: str | None = None
    """The device on which it trained, with the precision if that was not float32."""
    stranded: bool = False
    """True if it was stopped because it was waiting for neighbors that would never come."""
    local_accuracy: float | None = None
    """Accuracy on the node's own training data."""
    metrics: dict[str, float | None] = {}
    """The task's own metrics on the common test set, by name."""
    test_samples: int | None = None
    """The number of rows on which it was tested."""
    intervals: dict[str, tuple[float, float]] = {}
    """95% intervals of accuracy and metrics, by name, for the choice of these rows."""
    local_metrics: dict[str, float | None] = {}
    """The same on the node's own training data."""
    alone: ModelScore | None = None
    """Its score on the common test set if trained without neighbors; null unless references were asked for."""
    samples: int | float | None = None
    steps: int | None = None
    alarms: dict[str, int] | None = None
    wall_time_s: float | None = None
    neighbors: list[NeighborStatus] | None = None
    rounds_mixed: int | None = None
    """The rounds in which a robust rule mixed; null for the mean."""
    rounds_alone: int | None = None
    """The rounds in which a robust rule had too few neighbors to mix."""
    starts: int | None = None
    log: str | None = None
    attack_success: float | None = None
    """The share of samples to which its model gives the label that the poisoned data teach."""
    privacy: PrivacyStatus | None = None
    """The spending of its privacy budget; null if there is no privacy promise."""


class Withheld(msgspec.Struct, kw_only=True):
    """The promise of a private run, and the figures withheld for it."""

    unit: str
    epsilon: float | None
    """The most that any node has spent; null if unknown for some node."""
    budget: float
    delta: float
    figures: list[str]
    """Descriptions of the withheld figures: without noise, they would reveal rows."""
    instead: str | None = None
    """A description of another way to find out how good the model is."""


class HeldAgainst(msgspec.Struct, kw_only=True):
    """Faults that `node` has proven against `neighbor`."""

    node: str
    neighbor: str
    standing: float | None
    faults: dict[str, int]
    quarantines: int


class Contraction(msgspec.Struct, kw_only=True):
    """The factor by which one exchange on every edge shrinks the distance between the models."""

    predicted: float | None = None
    """Computed from the graph's spectrum; null under a robust rule."""
    samples_known: bool = True
    """False if the prediction assumes equally many samples on all nodes."""
    measured: float | None = None
    """Measured in the closing rounds."""


class Cost(msgspec.Struct, kw_only=True):
    """The cost of a simulation, in CPU-seconds."""

    cpu_s: float
    set_up_cpu_s: float
    run_cpu_s: float
    evaluation_cpu_s: float
    references_cpu_s: float = 0.0
    """The CPU time of what a server, pooled data or lone nodes would have achieved."""
    report_cpu_s: float
    node_rounds: int
    node_rounds_per_cpu_s: float | None
    events: int


class Report(msgspec.Struct, kw_only=True):
    """The result of a run. Its figures cover the honest nodes that reached the end."""

    nodes: list[NodeReport]
    """All nodes, including malicious ones and those that died."""
    topology: str = ""
    """The graph, as the federation file names it."""
    algebraic_connectivity: float | None = None
    """The algebraic connectivity of the graph; for a schedule, of the union of all its rounds."""
    rounds: dict[str, int | None] = {}
    """The number of each node's own rounds, by node."""
    rounds_asked: int | None = None
    """The number of rounds that each node was asked to train; null if time bounds training."""
    rounds_beyond: Maybe[Statistic] = None
    """The rounds beyond those asked, trained until word had spread that all were through; among `rounds`."""
    accuracy: Maybe[Statistic] = None
    """The accuracy on the common test set; null if there is none."""
    local_accuracy: Maybe[Statistic] = None
    """The accuracy on each node's own training data."""
    loss: Maybe[Statistic] = None
    """The loss on the common test set."""
    measures: list[Measure] = []
    """The measures of the task, the main one first, each with its direction."""
    metrics: dict[str, Statistic] = {}
    """The task's own metrics on the common test set, by name."""
    intervals: dict[str, tuple[float, float]] = {}
    """95% intervals of the means, by name, as if all nodes were tested on the same rows."""
    local_metrics: dict[str, Statistic] = {}
    """The task's own metrics on each node's own training data, by name."""
    mean_model: ModelScore | None = None
    """The score of the mean of the honest models, a model that no node has. Simulated runs only."""
    attack: str | None = None
    """The attack of the malicious nodes."""
    attack_success: Maybe[Statistic] = None
    """The share of test samples that get the label taught by poisoned data; null for other attacks."""
    consensus_distance: float | None = None
    """The root mean square distance between the models and their mean, divided by that mean's norm."""
    bytes_sent: int | None = None
    """Bytes sent by all nodes together, including headers, retries and encryption, but not TCP and WebSocket."""
    messages_sent: int | None = None
    """Messages sent by all nodes together."""
    wall_time_s: float | None = None
    """Seconds of real time."""
    virtual_time_s: float | None = None
    """The virtual duration of a simulation, in seconds."""
    staleness: Maybe[MeanAndMax] = None
    """The age, in rounds, of the models that were mixed, as nodes weight it."""
    contraction: Contraction = msgspec.field(default_factory=Contraction)
    """The speed at which models approach each other: predicted from the graph, and measured."""
    rule: str = "mean"
    """The rule by which nodes mixed their neighbors' models."""
    held_against: list[HeldAgainst] = []
    """The faults that honest nodes have proven against their neighbors."""
    died: list[str] = []
    """The names of the nodes that neither finished nor were stopped cleanly."""
    byzantine: list[str] = []
    """The names of the malicious nodes."""
    warnings: list[str] = []
    """Reasons to doubt the result that are visible on this machine."""
    stopped: bool = False
    """True if somebody stopped the run before it ended."""
    reached_limit: bool | None = None
    """True if a simulation ended because it reached its limit of virtual time."""
    history: list[Point] = []
    """The same figures at about forty times."""
    config: dict[str, Any] = {}
    """The contents of the federation file, with the graph resolved."""
    world: dict[str, Any] | None = None
    """The world of a simulation."""
    seed: int = 0
    """The seed of the federation."""
    simulated: bool = False
    """True if no real node ran."""
    digest: str | None = None
    """A hash of a simulation's trace of events, without vectors: the same seed gives the same hash on any machine."""
    value_digest: str | None = None
    """A hash of every bit that the simulated nodes have at the end."""
    reference: References | None = None
    """The results of a server, of one model trained on all data, and of each node alone."""
    peak_memory_bytes: int | None = None
    """The peak memory use of the simulator's process."""
    cost: Cost | None = None
    """The CPU-seconds that a simulation used, by part."""
    computed: str | None = None
    """Computation of a simulation: whether local rounds were batched and, if not, why; of arrays the clock, too."""
    privacy: Withheld | None = None
    """The privacy of a real run with a budget; null if nothing is withheld."""
    sweep: dict[str, Any] | None = None
    """For a simulation in a sweep, the sweep and which of its runs this is."""

    def __repr__(self) -> str:
        """Summarize the report in one line, as a notebook shows it."""
        main = self.main_measure
        value: Statistic | None = value_of(self, main)
        learned = f"no {main.label}" if value is None else f"{main.label} {value.min:.4g} to {value.max:.4g}"
        kind = "simulated" if self.simulated else "real"
        return f"Report({len(self.nodes)} {kind} nodes, {self.topology}: {learned})"

    def _repr_html_(self) -> str:
        """Show the report in a notebook: its nodes, the worst first, and a curve if matplotlib is installed."""
        return f"<p>{escape(repr(self))}</p>{_table(self)}{_curve(self)}"

    @property
    def main_measure(self) -> Measure:
        """The main measure of the task; for a report of an older version, accuracy or else loss."""
        return measures_of([self, *self.nodes])[0]

    def to_json(self) -> str:
        """Return the report as indented JSON text."""
        return self.to_bytes().decode()

    def to_bytes(self) -> bytes:
        """Return the same text in UTF-8, as in the report's file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def from_json(cls, content: bytes | str) -> Report:
        """Read a report from the result of `to_json` in this version or an older one. Raises ValueError: this is not a
        report.
        """
        try:
            return msgspec.convert(_with_nan(msgspec.json.decode(content)), type=cls)
        except RecursionError as error:
            raise ValueError(str(error)) from None

    @naming_extras()
    def to_frame(self, of: Literal["history", "nodes"] = "history") -> DataFrame:
        """Return a pandas DataFrame with one row for each point in the history, or for each node.

        A statistic becomes three columns, such as `accuracy_mean`, `accuracy_min` and `accuracy_max`; staleness becomes
        two. A task's own metric has one column of that name, or three; on a node's own data the name starts with
        `local_`.

        Raises ModuleNotFoundError: pandas is not installed.
        """
        from pandas import DataFrame  # noqa: PLC0415 - p2pfl does not need it

        if of not in ("history", "nodes"):
            raise UserError("no such table", file="Report", key="of", value=of, allowed="history, nodes")
        rows = self.history if of == "history" else self.nodes
        frame = DataFrame([_flat(row) for row in rows])
        return frame.set_index("time_s" if of == "history" else "name") if rows else frame

    @naming_extras()
    def plot(self, path: Path | str | None = None, x: Literal["time", "rounds", "bytes"] = "time") -> Figure:
        """Draw what was learned, how far apart the nodes were and what they sent, over `x`; with a `path`, also into a
        file.

        Raises ModuleNotFoundError: matplotlib is not installed; UserError: the history is empty, or `path` is not a
        .png, .svg or .pdf file in an existing folder; TopologyError: `path` cannot be written.
        """
        from p2pfl.reporting.plot import draw_runs  # noqa: PLC0415 - matplotlib is an extra

        if x not in ("time", "rounds", "bytes"):
            raise UserError("no such axis", file="Report", key="x", value=x, allowed="time, rounds, bytes")
        return draw_runs([self], None if path is None else Path(path), x)


def _table(report: Report) -> str:
    main = report.main_measure
    worst_first = sorted(report.nodes, key=lambda node: merit(value_of(node, main), main))
    rows = [
        (node.name, node.rounds, value_of(node, main), node.bytes_sent and f"{node.bytes_sent / 1e6:,.2f} MB")
        for node in worst_first[:MOST_SHOWN]
    ]
    if (more := len(report.nodes) - len(rows)) > 0:
        rows.append((f"{more:,} more", None, None, None))
    return f"<table>{''.join(map(_row, [('node, worst first', 'rounds', main.label, 'sent'), *rows]))}</table>"


def _row(cells: Iterable[str | float | None]) -> str:
    texts = ["" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells]
    sides = ["left", *["right"] * (len(texts) - 1)]
    columns = "".join(
        f'<td style="text-align: {side}; padding: 0.1em 0.8em">{escape(text)}</td>'
        for side, text in zip(sides, texts, strict=True)
    )
    return f"<tr>{columns}</tr>"


def _curve(report: Report) -> str:
    try:
        from p2pfl.reporting.plot import draw_curve  # noqa: PLC0415 - matplotlib is an extra

        figure = draw_curve(report)
    except ModuleNotFoundError:
        return ""
    picture = "" if figure is None else b64encode(figure._repr_png_()).decode()
    return picture and f'<img alt="over time" src="data:image/png;base64,{picture}">'


def _with_nan(value: Any) -> Any:
    """Turn the nulls in statistics into NaN."""
    if isinstance(value, list):
        return [_with_nan(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"mean", "min", "max"}:
        return {name: math.nan if figure is None else figure for name, figure in value.items()}
    return {name: _with_nan(item) for name, item in value.items()}


def _flat(row: Point | NodeReport) -> dict[str, Any]:
    """Flatten a row into the same columns for every row, whether values are known or not."""
    flat: dict[str, Any] = {}
    metrics: dict[str, Statistic | float | None] = {}
    for field in msgspec.structs.fields(row):
        value = getattr(row, field.name)
        statistic = next((kind for kind in get_args(field.type) if kind in (Statistic, MeanAndMax)), None)
        if field.name in ("metrics", "local_metrics"):
            metrics |= {f"{field.name.removesuffix('metrics')}{name}": figure for name, figure in value.items()}
        elif statistic is None:
            flat[field.name] = msgspec.to_builtins(value)
        else:
            flat |= {f"{field.name}_{which}": getattr(value, which, None) for which in statistic.__struct_fields__}
    of_metrics: dict[str, Any] = {}
    for name, figure in metrics.items():
        if isinstance(figure, Statistic):
            of_metrics |= {f"{name}_{end}": getattr(figure, end) for end in figure.__struct_fields__}
        else:
            of_metrics[name] = figure
    return of_metrics | flat
