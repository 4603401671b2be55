"""Writes, plots and prints the report of a real or simulated run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from p2pfl.cli.output import Form, figure, size
from p2pfl.errors import StorageError, UserError

if TYPE_CHECKING:
    from p2pfl.reporting.report import NodeReport, Report


def where(report: Path | None, form: Form) -> tuple[Path | None, Form]:
    """The file and the form that the user means: `--report -` is the whole report on stdout, and no file."""
    return (None, "json") if report == Path("-") else (report, form)


def check_report(path: Path, *, coming: Path | None = None) -> None:
    """Check before the run that the report can be written. `coming` is a folder that the run creates.

    Raises UserError: there is no such folder, or the path is one.
    """
    if path.is_dir():
        raise UserError("is a folder", key="--report", value=str(path), allowed="a file")
    if path.absolute().parent != (coming or path).absolute() and not path.absolute().parent.is_dir():
        raise UserError("no such folder", key="--report", value=str(path.parent), allowed="a folder that exists")


def write_report(report: Report, path: Path) -> None:
    """Write the whole file or nothing; an older one is replaced. Raises StorageError: it cannot be written."""
    from topologies.files import replace  # noqa: PLC0415 - `--help` stays instant

    content = report.to_json()

    def write(file: BinaryIO) -> None:
        file.write(content)

    try:
        replace(path, write)
    except OSError as error:
        raise StorageError(f"{path} could not be written: {error.strerror}") from error


def node_rows(nodes: Iterable[NodeReport]) -> list[dict[str, Any]]:
    """What a table shows of these `nodes` of a report."""
    return [
        {
            "node": node.name,
            "state": _state(node),
            "rounds": node.rounds,
            "samples": node.samples,
            "accuracy": figure(node.accuracy, stale=True) if node.test_is_stale else node.accuracy,
            "own data": node.local_accuracy,
            "loss": figure(node.test_loss, stale=True) if node.test_is_stale else node.test_loss,
            "staleness": node.staleness and node.staleness.mean,
            "sent": node.bytes_sent and size(node.bytes_sent),
        }
        for node in nodes
    ]


def _state(node: NodeReport) -> str:
    alone = f", {node.rounds_alone} rounds mixed with nobody" if node.rounds_alone else ""
    if node.rounds_without_neighbor:
        alone += f", {node.rounds_without_neighbor} of {node.rounds} rounds without a neighbor"
    failed = f", {node.failed_rounds} rounds failed" if node.failed_rounds else ""
    return f"{node.state}{failed}{alone}{', lies' if node.byzantine else ''}"
