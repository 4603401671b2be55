"""The figures of a run in progress, for other programs: `--log csv:FILE`, `--log tensorboard:DIR`, and `--log
NAME:PLACE` for what the entry point group `p2pfl.loggers` has, here MLflow and Weights & Biases.

An entry point names a class that is made with PLACE, a text, and is a `Sink`. If it has `needs`, that is the module
without which a run is refused. A row is about one node, or about all honest ones together (`mean`, `min` and `max`); it
has only figures that may be shown. If a log can no longer be written, it is abandoned with a warning, and the run goes
on.
"""

from __future__ import annotations

import csv
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from p2pfl.errors import UserError
from p2pfl.plugins import FAILURES, describe_failure
from p2pfl.reporting.measures import Point, Statistic
from p2pfl.reporting.status import MeanAndMax, NodeLine

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


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


log = logging.getLogger("p2pfl")

Row = Mapping[str, Any]
"""A row of a log, by column; an unknown figure is absent or None."""

WHERE = ("time_s", "node", "rounds")
"""The columns that identify a row: seconds, the node or one of `mean`, `min` and `max`, and the node's own rounds."""
FIGURES = (
    "accuracy",
    "loss",
    "train_loss",
    "consensus_distance",
    "neighbor_distance",
    "staleness",
    "bytes_sent",
    "messages_sent",
)
"""The columns, as in a report's history: `loss` is measured on the common test set."""
OLDER_COLUMNS = (*WHERE, "phase", *FIGURES, "metrics")
"""The columns of tables from before `tested_round`; a run that appends to one leaves it out."""
COLUMNS = (*OLDER_COLUMNS, "tested_round")
"""All columns of a table. `metrics` are the task's own metrics on the common test set, by name: a JSON object in a
table, separate curves in TensorBoard. `tested_round` is the round whose model the test figures are from.
"""
TEST_FIGURES = ("accuracy", "loss")
OF_ALL = ("mean", "min", "max")
KEY = "--log"


class Sink(Protocol):
    """A destination of rows. Raises OSError: they cannot be written."""

    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class CsvLog:
    """A CSV file with one line for each row; a later run appends to it."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", newline="", encoding="utf-8")
        older = path.stat().st_size > 0 and _head_of(path) == ",".join(OLDER_COLUMNS)
        columns = OLDER_COLUMNS if older else COLUMNS
        self._writer = csv.DictWriter(self._file, columns, extrasaction="ignore", lineterminator="\n")
        if self._file.tell() == 0:
            self._writer.writeheader()

    def write(self, row: Row) -> None:
        self._writer.writerow({**row, "metrics": json.dumps(row["metrics"]) if row.get("metrics") else None})
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def check(path: Path, folder: Path) -> None:
        if path.is_dir():
            raise UserError("is a folder", key=KEY, value=f"csv:{path}", allowed="a file")
        _require_folder("csv", path, folder)
        if path.is_file() and _head_of(path) not in ("", ",".join(OLDER_COLUMNS), ",".join(COLUMNS)):
            raise UserError(
                "holds another table", key=KEY, value=f"csv:{path}", allowed="a new file, or a log of this kind"
            )


def _head_of(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().rstrip("\n")


class TensorBoardLog:
    """A folder with a subfolder for each node. TensorBoard overlays them as curves over the nodes' own rounds."""

    def __init__(self, path: Path) -> None:
        self._folder = path
        self._writers: dict[str, SummaryWriter] = {}

    def write(self, row: Row) -> None:
        from tensorboardX import SummaryWriter  # noqa: PLC0415 - an extra

        node = str(row["node"])
        if node not in self._writers:
            self._writers[node] = SummaryWriter(str(self._folder / node), flush_secs=5)
        for name, value in figures_in(row).items():
            self._writers[node].add_scalar(name, value, global_step=round_of(row, name))

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    @staticmethod
    def check(path: Path, folder: Path) -> None:
        if path.is_file():
            raise UserError("is a file", key=KEY, value=f"tensorboard:{path}", allowed="a folder")
        _require_folder("tensorboard", path, folder)
        import tensorboardX as _  # noqa: F401, PLC0415 - an extra: missing, it must show before the run


class ForeignLog:
    """A log of the group `p2pfl.loggers`, whose failures are those of a log that cannot be written."""

    def __init__(self, entry: EntryPoint, place: str) -> None:
        """Make it. Raises UserError: it is not installed, or fails."""
        self._name, kind = entry.name, _loaded(entry, place)
        try:
            self._made: Sink = kind(place)
        except FAILURES as error:
            text = f"cannot be begun: {describe_failure(error)}"
            raise UserError(text, key=KEY, value=f"{entry.name}:{place}") from error

    def write(self, row: Row) -> None:
        self._attempt(lambda: self._made.write(row))

    def close(self) -> None:
        self._attempt(self._made.close)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except FAILURES as error:
            raise OSError(f"{self._name}: {describe_failure(error)}") from error


def _loaded(entry: EntryPoint, place: str) -> Callable[[str], Sink]:
    """Import a log's class. Raises UserError: that fails, as when its package is not installed."""
    try:
        found: Callable[[str], Sink] = entry.load()
        if (needs := getattr(found, "needs", None)) is not None:
            import_module(needs)
    except FAILURES as error:
        text = f"cannot be imported: {describe_failure(error)}"
        allowed = f"pip install 'p2pfl-gossip[{entry.name}]' first" if isinstance(error, ImportError) else None
        raise UserError(text, key=KEY, value=f"{entry.name}:{place}", allowed=allowed) from error
    return found


KINDS: Mapping[str, type[CsvLog | TensorBoardLog]] = {"csv": CsvLog, "tensorboard": TensorBoardLog}
GROUP = "p2pfl.loggers"


def check_logs(specs: Sequence[str], *, coming: Path | None = None) -> None:
    """Check before the run that logs can be written. `coming` is a folder that the run will create.

    Raises UserError: there is no such kind of log, or it cannot be written at that path.
    """
    for kind, place in _places(specs):
        if isinstance(kind, str):
            KINDS[kind].check(Path(place), (coming or Path(place)).absolute())
        else:
            _loaded(kind, place)


def open_logs(specs: Sequence[str]) -> Logs:
    """Open the logs. Raises UserError in the same cases as `check_logs`."""
    check_logs(specs)
    try:
        return Logs([_opened(kind, place) for kind, place in _places(specs)])
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", key=KEY, value=error.filename) from None


def _opened(kind: str | EntryPoint, place: str) -> Sink:
    # Once importlib_metadata is imported, as by MLflow, entry points are of its class.
    return KINDS[kind](Path(place)) if isinstance(kind, str) else ForeignLog(kind, place)


def _places(specs: Sequence[str]) -> list[tuple[str | EntryPoint, str]]:
    """Return each log's kind, by its name or as an entry point, and its place."""
    found: list[tuple[str | EntryPoint, str]] = []
    for spec in specs:
        name, colon, place = spec.partition(":")
        others = {entry.name: entry for entry in (() if name in KINDS else entry_points(group=GROUP))}
        if (name not in KINDS and name not in others) or not colon or not place:
            allowed = ", ".join(["csv:FILE", "tensorboard:DIR", *(f"{one}:PLACE" for one in sorted(others))])
            gone = (
                "opentelemetry is gone: /metrics has its figures, and a logger of your own may be under p2pfl.loggers"
            )
            text = gone if name == "opentelemetry" else "no such log"
            raise UserError(text, key=KEY, value=spec, allowed=allowed)
        found.append((others.get(name, name), place))
    return found


def figures_in(row: Row) -> dict[str, float]:
    """Return the known figures of a row, with the task's metrics by name."""
    named = {**{name: row.get(name) for name in FIGURES}, **(row.get("metrics") or {})}
    return {name: value for name, value in named.items() if value is not None}


def round_of(row: Row, name: str) -> int:
    """Return the round that a figure is of: where not every round ends with a test, that of the latest one."""
    is_tested = name in TEST_FIGURES or name in (row.get("metrics") or {})
    tested = row.get("tested_round") if is_tested else None
    return round((row["rounds"] or 0) if tested is None else tested)


def _require_folder(kind: str, path: Path, coming: Path) -> None:
    parent = path.absolute().parent
    if parent != coming and not parent.is_dir():
        raise UserError("no such folder", key=KEY, value=f"{kind}:{path}", allowed="a path in a folder that exists")


class Logs:
    """All logs of a run, possibly none. Unchanged figures are not written again."""

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self._sinks = list(sinks)
        self._latest: dict[str, object] = {}

    def line(self, line: NodeLine) -> None:
        """Log a node's progress, if its model has changed or was tested since the last line."""
        if self._sinks and self._is_new(line.node, (line.rounds, line.version, line.tested_version, line.phase)):
            self._write(row_of(line))

    def point(self, point: Point | None) -> None:
        """Log the figures of all nodes, if they are newer than the last ones."""
        if self._sinks and point is not None and self._is_new(OF_ALL[0], point.time_s):
            for row in rows_of(point):
                self._write(row)

    def close(self) -> None:
        for sink in self._sinks:
            self._attempt(sink.close, sink)

    def _is_new(self, source: str, key: object) -> bool:
        if self._latest.get(source) == key:
            return False
        self._latest[source] = key
        return True

    def _write(self, row: Row) -> None:
        for sink in list(self._sinks):
            self._attempt(lambda sink=sink: sink.write(row), sink)  # type: ignore[misc]

    def _attempt(self, work: Callable[[], None], sink: Sink) -> None:
        try:
            work()
        except OSError as error:
            log.warning("%s: writing to it has stopped: %s", type(sink).__name__, error)
            self._sinks = [one for one in self._sinks if one is not sink]


def row_of(line: NodeLine) -> Row:
    """Make the row of one node; time is measured from the start of its process."""
    return {
        "time_s": line.uptime_s,
        "node": line.node,
        "rounds": line.rounds,
        "tested_round": line.tested_round,
        "phase": line.phase,
        "accuracy": line.accuracy,
        "loss": line.test_loss,
        "train_loss": line.loss,
        "neighbor_distance": line.neighbor_distance,
        "staleness": None if line.staleness is None else line.staleness.mean,
        "bytes_sent": line.bytes_sent,
        "messages_sent": line.messages_sent,
        "metrics": _other_metrics(line.metrics),
    }


def rows_of(point: Point) -> list[Row]:
    """Make the rows about all honest nodes together, one for each of `OF_ALL`. Figures that are single numbers are in
    the first.
    """
    once = {name: getattr(point, name) for name in ("consensus_distance", "bytes_sent", "messages_sent")}
    rows: list[Row] = []
    for which in OF_ALL:
        row: dict[str, Any] = {"time_s": point.time_s, "node": which, **(once if which == OF_ALL[0] else {})}
        for name in ("rounds", "accuracy", "loss", "train_loss", "neighbor_distance", "staleness"):
            found: Statistic | MeanAndMax | None = getattr(point, name)
            row[name] = getattr(found, which, None)
        row["tested_round"] = getattr(point.tested_rounds, which, None)
        row["metrics"] = _other_metrics({name: getattr(found, which) for name, found in point.metrics.items()})
        rows.append(row)
    return rows


def _other_metrics(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the known metrics that do not have a column."""
    return {name: value for name, value in metrics.items() if value is not None and name not in FIGURES}


class MlflowLog:
    """The runs of an experiment. Where they go is MLflow's own setting, `MLFLOW_TRACKING_URI`."""

    needs = "mlflow"

    def __init__(self, place: str) -> None:
        from mlflow import MlflowClient  # noqa: PLC0415 - an extra

        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(place)
        self._experiment = known.experiment_id if known is not None else self._client.create_experiment(place)
        self._runs: dict[str, str] = {}

    def write(self, row: Row) -> None:
        node = str(row["node"])
        if node not in self._runs:
            self._runs[node] = self._client.create_run(self._experiment, run_name=node).info.run_id
        for name, value in figures_in(row).items():
            self._client.log_metric(self._runs[node], name, value, step=round_of(row, name))

    def close(self) -> None:
        for run in self._runs.values():
            self._client.set_terminated(run)


ROUNDS = "rounds"


class WandbLog:
    """The runs of a project. Where they go is W&B's own settings: `WANDB_MODE=offline` keeps them here."""

    needs = "wandb"

    def __init__(self, place: str) -> None:
        import wandb  # noqa: PLC0415 - an extra

        self._init, self._project = wandb.init, place
        self._runs: dict[str, Any] = {}

    def write(self, row: Row) -> None:
        node = str(row["node"])
        if node not in self._runs:
            run = self._runs[node] = self._init(project=self._project, name=node, reinit="create_new")
            run.define_metric("*", step_metric=ROUNDS)
        by_round: dict[int, dict[str, float]] = {}
        for name, value in figures_in(row).items():
            by_round.setdefault(round_of(row, name), {})[name] = value
        for rounds, figures in sorted(by_round.items()):
            self._runs[node].log({ROUNDS: rounds, **figures})

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()
