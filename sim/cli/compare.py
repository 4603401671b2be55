"""`p2pfl sim compare`: what many nodes learn on each of several graphs, as arrays."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from p2pfl.console.output import Form, cell, write_rows
from p2pfl.errors import UserError
from p2pfl.reporting.measures import value_of, worst
from p2pfl.reporting.plot import check_picture, draw_comparison
from p2pfl.reporting.report import Report
from sim.sweeps.plan import SweepFile
from sim.sweeps.run import Folder, SweepView, run_sweep
from sim.sweeps.runners import cores, run_here
from topologies.cli.terminal import readable_bytes

STOPPED = 130
LONG = 16
"""A graph with a longer name has a second line in the table."""


def compare(*, graphs: tuple[str, ...], plot: Path | None, quiet: bool, form: Form, **asked: Any) -> int:
    """Carry the command out: see its options in `sim.cli`."""
    if plot is not None:
        check_picture(plot)
    graphs = tuple(dict.fromkeys(graphs))
    reports = _reports(graphs, {key: value for key, value in asked.items() if value is not None}, quiet=quiet)
    if reports is None:
        click.echo("stopped; nothing was compared", err=True)
        return STOPPED
    rows = [_row(graph, report) for graph, report in zip(graphs, reports, strict=True)]
    write_rows(rows if form == "json" else [_shown(row) for row in rows], form)
    if plot is not None:
        draw_comparison(reports, plot, graphs)
        click.echo(f"picture: {plot}", err=True)
    return 0


def _reports(graphs: tuple[str, ...], asked: dict[str, Any], *, quiet: bool) -> list[Report] | None:
    """Run one federation on each graph, as a sweep whose folder is not kept; None after Ctrl-C. Raises UserError that
    names the graph.
    """
    seeds = (asked.pop("seed", 0),)
    file = SweepFile(
        path=Path.cwd() / "graphs", fixed={"arrays": True, **asked}, axes={"topology": graphs}, seeds=seeds
    )
    with TemporaryDirectory() as place, SweepView(quiet=quiet) as view:
        sweep = run_sweep(file, Path(place), runner=partial(run_here, count=cores()), on_change=view.update)
        if sweep.interrupted:
            return None
        for row in sweep.results["rows"]:
            if row["failed"]:
                raise UserError(f"{row['values']['topology']}: {row['failed'][0]['reason']}", key="GRAPH")
        found = [Folder(Path(place)).report(row["keys"][0]) for row in sweep.results["rows"]]
        return [Report.from_json(one) for one in found if one is not None]


def _row(graph: str, report: Report) -> dict[str, Any]:
    main, rates, time_s = report.main_measure, report.contraction, report.virtual_time_s
    learned = value_of(report, main)
    return {
        "graph": graph,
        "worst": learned and worst(learned, main),
        "mean": learned and learned.mean,
        "apart": report.consensus_distance,
        "sent": (report.bytes_sent or 0) / len(report.nodes),
        **({} if time_s is None else {"time, s": time_s}),
        "lambda_2": report.algebraic_connectivity,
        "predicted": rates.predicted,
        "measured": rates.measured,
    }


def _shown(row: dict[str, Any]) -> dict[str, str]:
    """Format a row for a table of 80 columns."""
    figures = {key: cell(None) if value is None else f"{value:.3g}" for key, value in row.items() if key != "graph"}
    rates = [cell(None) if row[key] is None else f"{row[key]:.3f}".lstrip("0") for key in ("predicted", "measured")]
    figures |= {
        "apart": f"{row['apart']:.2g}",
        "sent": readable_bytes(float(figures["sent"])),
        "mixing": " ".join(rates),
    }
    del figures["predicted"], figures["measured"]
    graph = row["graph"]
    return {"graph": graph.replace(":", ": ") if len(graph) > LONG else graph} | figures
