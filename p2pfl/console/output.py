"""The output of subcommands: data to stdout, as a table, JSON or CSV, the report file, and progress on stderr.

Colors appear only on a terminal, and never with NO_COLOR.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal, Self, TypeVar

import click

from p2pfl.errors import StorageError
from p2pfl.foreign import printable

if TYPE_CHECKING:
    from rich.console import Console

    from p2pfl.learn.metrics import Measure
    from p2pfl.reporting.measures import ModelScore, Point
    from p2pfl.reporting.report import NodeReport, Report
    from p2pfl.reporting.status import PrivacyStatus

Form = Literal["table", "json", "csv"]
Function = TypeVar("Function", bound=Callable[..., Any])

PIPE_WIDTH = 1_000
LONGEST = 32
"""The widest column in a terminal; longer text gets several lines."""
GAP = 3
"""The width between two columns."""
MOST_MISTAKES = 20
INTERVAL = "95% interval"
LINES = "\n\t"
BAR_EVERY_S = 0.2
STALE = "*"
"""Marks a figure that was measured on an older model."""


def format_option(*forms: Form) -> Callable[[Function], Function]:
    """Add the option `--format`, as the argument `form`; the first form is the default."""
    return click.option(
        "--format", "form", type=click.Choice(forms), default=forms[0], show_default=True, help="How to print."
    )


class _PrintableFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))


def log_to_stderr(form: str = "%(message)s", level: int = logging.ERROR, clock: str | None = None) -> None:
    """Log to stderr, a message in one printable line, whoever wrote its text; notices in any case."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter(form, clock))
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("p2pfl.notice").setLevel(logging.INFO)


def show_mistakes(mistakes: Sequence[Exception]) -> None:
    """Print the first mistakes to stderr, one per line, and the number of others."""
    for mistake in mistakes[:MOST_MISTAKES]:
        click.echo(f"error: {printable(str(mistake), LINES)}", err=True)
    if len(mistakes) > MOST_MISTAKES:
        click.echo(f"error: and {len(mistakes) - MOST_MISTAKES:,} more", err=True)


def write_rows(rows: Sequence[Mapping[str, Any]], form: Form, *, title: str | None = None) -> None:
    """Print rows with the same keys, which become the column headings."""
    match form:
        case "json":
            write_json(list(rows))
        case "csv":
            writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        case "table":
            _write_table(rows, title)


def write_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


def write_facts(facts: Mapping[str, Any], title: str | None = None) -> None:
    """Print names and values, one per line, without values that are None."""
    from rich.table import Table  # noqa: PLC0415 - only for who prints a table

    table = Table(title=title, box=None, show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None:
            table.add_row(name, cell(value))
    table_console().print(table)


def cell(value: Any) -> str:
    """Format one value for people."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case [low, high]:
            return f"{cell(low)} to {cell(high)}"
        case _:
            return printable(str(value), LINES)


def figure(value: object, *, stale: bool | None, form: str = ".4g") -> str | None:
    """Format a figure from a node's latest test, with a star if the tested model is older than the node's last one."""
    return format(float(value), form) + STALE * bool(stale) if isinstance(value, int | float) else None


def footnote(rounds: Sequence[int]) -> list[str]:
    """Explain the star beside figures of nodes that were last tested after these `rounds`; empty without any."""
    most = f" to {max(rounds)}" if len({*rounds}) > 1 else ""
    return [f"{STALE} of an earlier model: tested after round {min(rounds)}{most}, not since"] if rounds else []


def size(count: float) -> str:
    """Format a number of bytes for people, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def age(seconds: float) -> str:
    """Format a time span for people, in the largest unit that is precise enough."""
    for unit, most in (("s", 100), ("min", 100), ("h", 48)):
        if seconds < most:
            return f"{seconds:.0f} {unit}"
        seconds /= 24 if unit == "h" else 60
    return f"{seconds:.0f} days"


def report_target(report: Path | None, form: Form) -> tuple[Path | None, Form]:
    """Return the file and the format that the user means: `--report -` prints the report and writes no file."""
    return (None, "json") if report == Path("-") else (report, form)


def write_report(report: Report, path: Path) -> None:
    """Write the file atomically, replacing an older one. Raises StorageError: it cannot be written."""
    from topologies.files import replace  # noqa: PLC0415 - `--help` stays instant

    content = report.to_bytes()

    def write(file: BinaryIO) -> None:
        file.write(content)

    try:
        replace(path, write)
    except OSError as error:
        raise StorageError(f"{path} could not be written: {error.strerror}") from error


def node_rows(nodes: Iterable[NodeReport], measures: Sequence[Measure]) -> list[dict[str, Any]]:
    """Return the table's rows for these `nodes` in a report, with the task's `measures`, the main one first."""
    known = list(nodes)
    private = any(node.privacy is not None for node in known)
    compared = any(node.alone is not None for node in known)
    bounded = any(measures[0].name in node.intervals for node in known)
    rows = [
        {
            "node": node.name,
            "state": _state(node),
            "rounds": node.rounds,
            "samples": node.samples,
            **_scores(node, measures, compared=compared, bounded=bounded),
            **({"epsilon": spent_of(node.privacy)} if private else {}),
            "staleness": node.staleness and node.staleness.mean,
            "sent": node.bytes_sent and size(node.bytes_sent),
        }
        for node in known
    ]
    may_lack = rows[0].keys() if private else ("staleness",)
    untold = {key for key in may_lack if all(row[key] is None for row in rows)}
    return [{key: value for key, value in row.items() if key not in untold} for row in rows]


def learned_facts(report: Report, *, worst_of: str = "node", mean_of: str = "") -> dict[str, Any]:
    """Return the worst node's value and the mean for the main measure, and the means for the others."""
    from p2pfl.reporting.measures import measures_of, value_of, worst  # noqa: PLC0415 - as above

    main, *others = measures_of([report, *report.nodes])
    value, of = value_of(report, main), f" {mean_of}" if mean_of and main.name != "loss" else ""
    facts = {
        f"{main.label}, worst {worst_of}": value and worst(value, main),
        f"{main.label}, mean{of}": value and value.mean,
        f"{main.label}, {INTERVAL} of the mean": between(report.intervals.get(main.name)),
    }
    means = {f"{measure.label}, mean": value_of(report, measure) for measure in others}
    return facts | {name: statistic and statistic.mean for name, statistic in means.items()}


def beyond_facts(report: Report) -> dict[str, Any]:
    """Return how many rounds nodes trained beyond those asked for; an empty dictionary if none did."""
    beyond = report.rounds_beyond
    if report.rounds_asked is None or beyond is None or not beyond.max:
        return {}
    low, high = int(beyond.min), int(beyond.max)
    many = f"{low:,}" if low == high else f"{low:,} to {high:,}, mean {cell(beyond.mean)}"
    return {f"rounds beyond the {report.rounds_asked:,} asked for": f"{many}: until all were known to be through"}


def privacy_facts(report: Report) -> dict[str, Any]:
    """Return a private run's promise, how much of it is spent, and the figures withheld because of it."""
    held = report.privacy
    if held is None:
        return {}
    spent = "not known of all nodes" if held.epsilon is None else f"at most {held.epsilon:.3g}"
    return {
        "privacy of each " + held.unit: f"epsilon spent: {spent}; budget: {held.budget:.3g} at delta {held.delta:g}",
        "withheld": f"{', '.join(held.figures)}: computed from the data without noise",
        "in its place": held.instead,
    }


def spent_of(privacy: PrivacyStatus | None) -> str | None:
    """Format, in one cell, what a node has spent of its budget."""
    return None if privacy is None else spent_text(privacy.epsilon, privacy.budget, privacy.state)


def spent_text(epsilon: float | None, budget: float | None = None, state: str = "open") -> str:
    if epsilon is None:
        return state
    of = "" if budget is None else f" of {budget:.3g}"
    return f"{epsilon:.3g}{of}" + ("" if state == "open" else f", {state}")


def reference_facts(report: Report) -> dict[str, Any]:
    """Return the results of the same training without a network of peers: each node alone, all data in one place, and
    with a server.
    """
    from p2pfl.reporting.measures import (  # noqa: PLC0415 - as above
        beside,
        value_of,
        worst,
    )

    main, reference, facts = report.main_measure, report.reference, dict[str, Any]()
    if reference is None:
        return facts
    if reference.alone is not None and (values := value_of(reference.alone, main)):
        ends = between(reference.alone.intervals.get(main.name))
        facts["each node alone, with its own data"] = (
            f"{main.label} {cell(values.mean)}{f' ({ends})' if ends else ''}, worst {cell(worst(values, main))}"
        )
        facts["together beside alone"] = beside(report, reference.alone)
    central = reference.centralized
    if central is not None and central.one_node and central.all_nodes:
        runs = {"as many steps as a node": central.one_node, "as many as all nodes": central.all_nodes}
        for words, run in runs.items():
            facts[f"all data in one place, {words}"] = f"{score_words(run, main)}, {run.steps:,} steps"
        facts["together beside all data in one place"] = beside(report, central.all_nodes)
    if reference.fedavg:
        server = f"{score_words(reference.fedavg, main)}, {size(reference.fedavg.bytes_sent or 0)}"
        facts["a server that averages each round"] = server
    return facts


def score_words(score: ModelScore, main: Measure) -> str:
    """Format the main measure; without a test set, the training loss."""
    from p2pfl.reporting.measures import value_of  # noqa: PLC0415 - as above

    value = value_of(score, main)
    ends = between(score.intervals.get(main.name))
    bounds = f" ({ends})" if ends else ""
    return f"loss {cell(score.loss)}" if value is None else f"{main.label} {cell(value)}{bounds}"


def between(ends: Sequence[float] | None) -> str | None:
    """Format an interval in one cell, to three digits."""
    return None if ends is None else " to ".join(f"{end:.3g}" for end in ends)


def _scores(node: NodeReport, measures: Sequence[Measure], *, compared: bool, bounded: bool) -> dict[str, Any]:
    """Return the main measure, then its interval if any node has one (`bounded`), then the node's score without
    neighbors (if `compared`) and its score on its own data; then the other measures.
    """
    from p2pfl.reporting.measures import local_value_of, shown, value_of  # noqa: PLC0415 - as above

    columns: dict[str, Any] = {}
    for measure in shown(measures):
        value = value_of(node, measure)
        columns[measure.label] = figure(value, stale=True) if node.test_is_stale else value
        if measure is measures[0] and bounded:
            columns[INTERVAL] = between(node.intervals.get(measure.name))
        if measure is measures[0] and compared:
            columns["alone"] = node.alone and value_of(node.alone, measure)
        if measure is measures[0] and measure.name != "loss":
            columns["own data"] = local_value_of(node, measure)
    return columns


def _write_table(rows: Sequence[Mapping[str, Any]], title: str | None) -> None:
    """Print a table. What is wider than the terminal is printed in parts, each with the first column."""
    from rich import box  # noqa: PLC0415 - only for who prints a table
    from rich.table import Table  # noqa: PLC0415 - as above

    console = table_console()
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    texts = {name: [cell(value) for value in values] for name, values in columns.items()}
    most = LONGEST if console.is_terminal else None
    for names in _parts(texts, console.width):
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
        for name in names:
            numeric = all(isinstance(value, int | float) for value in columns[name])
            table.add_column(name, justify="right" if numeric else "left", overflow="fold", max_width=most)
        for cells in zip(*(texts[name] for name in names), strict=True):
            table.add_row(*cells)
        console.print(table)
        title = None


def _parts(texts: Mapping[str, Sequence[str]], most: int) -> list[list[str]]:
    """Return the columns in each part of a table that is at most so wide; the first names the rows of all parts."""
    from rich.cells import cell_len  # noqa: PLC0415 - as above

    widths = {name: GAP + min(LONGEST, max(map(cell_len, (name, *column)))) for name, column in texts.items()}
    first, *others = list(texts) or [""]
    parts = [[first][: len(texts)]]
    for name in others:
        if len(parts[-1]) > 1 and sum(widths[column] for column in (*parts[-1], name)) > most:
            parts.append([first])
        parts[-1].append(name)
    return parts


def table_console() -> Console:
    """Return the console of stdout; output into a pipe is neither wrapped nor truncated."""
    from rich.console import Console  # noqa: PLC0415 - only for who prints a table

    console = Console(file=sys.stdout, markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _state(node: NodeReport) -> str:
    alone = f", {node.rounds_alone} rounds mixed with nobody" if node.rounds_alone else ""
    if node.rounds_without_neighbor:
        alone += f", {node.rounds_without_neighbor} of {node.rounds} rounds without a neighbor"
    failed = f", {node.failed_rounds} rounds failed" if node.failed_rounds else ""
    again = f", started {node.starts} times" if (node.starts or 1) > 1 else ""
    return f"{node.state}{again}{failed}{alone}{', lies' if node.byzantine else ''}"


def in_notebook() -> bool:
    """Return True in a kernel of Jupyter, whose output can be replaced."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def watched() -> bool:
    """Return True if somebody may be looking at what this process shows: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or in_notebook()


class ProgressView:
    """Words on stderr: on a terminal in one line that is written anew, elsewhere now and then in one of their own. In a
    notebook, a bar with the words beside it.
    """

    line_every_s: ClassVar[float] = 10.0

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.anew = "\r\x1b[K" if not quiet and sys.stderr.isatty() else ""
        self.printed_at = time.monotonic()
        self.cell: Any = None
        if not quiet and in_notebook():
            display = import_module("IPython.display").display
            self.cell = display(_bar("", None), raw=True, display_id=True)  # in this cell, whichever thread shows more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.cell is not None:
            self.cell.update({"text/plain": "", "text/html": ""}, raw=True)
        click.echo(self.anew, nl=False, err=True)

    def show(self, words: str, *, due: bool = False, part: float | None = None) -> None:
        """Show the words; in a line of their own if one is `due`, or the last is old. `part` of the whole is done."""
        if self.cell is not None:
            if time.monotonic() - self.printed_at >= BAR_EVERY_S:
                self.printed_at = time.monotonic()
                self.cell.update(_bar(words, part), raw=True)
        elif self.anew:
            click.echo(self.anew + words[: get_terminal_size().columns - 1], nl=False, err=True)
        elif not self.quiet and (due or time.monotonic() - self.printed_at >= self.line_every_s):
            self.printed_at = time.monotonic()
            click.echo(words, err=True)


def _bar(words: str, part: float | None) -> dict[str, str]:
    value = "" if part is None else f' value="{min(part, 1.0):.3f}"'
    bar = f'<progress style="width: 16em; vertical-align: middle"{value}></progress>'
    return {"text/plain": words, "text/html": f"{bar} {escape(words)}"}


def point_in_words(point: Point, measures: Sequence[Measure]) -> str:
    from p2pfl.reporting.measures import in_words  # noqa: PLC0415 - `--help` stays instant

    parts = [f"{point.time_s:6.1f} s"]
    if point.rounds is not None:
        parts.append(f"round {point.rounds.mean:.0f}")
    if learned := in_words(point, measures):
        parts.append(learned)
    if point.consensus_distance is not None:
        parts.append(f"apart {point.consensus_distance:.2e}")
    parts.append(f"sent {size(point.bytes_sent or 0)}")
    return ", ".join(parts)
