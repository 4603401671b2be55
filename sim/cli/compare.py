"""`p2pfl sim compare`: what many nodes learn on each of several graphs, as arrays."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.output import Form, cell, format_option, write_rows
from p2pfl.errors import UserError
from p2pfl.reporting.measures import value_of, worst
from p2pfl.reporting.plot import check_picture, draw_comparison
from p2pfl.reporting.report import Report
from sim.cli.run import command as run_command
from sim.sweeps.plan import SweepFile
from sim.sweeps.run import Folder, SweepView, run_sweep
from sim.sweeps.runners import cores, run_here
from topologies.cli.terminal import readable_bytes

if TYPE_CHECKING:
    from p2pfl.reporting.report import Report

NODES = 100
STOPPED = 130
LONG = 16
"""A graph with a longer name has a second line in the table."""
SHARED = ("rounds", "partition", "compressor", "method", "seed")
"""Options that are those of `sim run`."""
EPILOG = """\b
Examples:
  p2pfl sim compare ring torus exponential random-regular:degree=4
  p2pfl sim compare ring base:k=1 -n 1000 --rounds 20 --plot graphs.png
  p2pfl sim compare ring torus --clock apart

\b
Columns, after the last round and the closing rounds, in which nodes only mix:
  worst, mean  accuracy on the test set: of the worst node, of all
  apart        root mean square of the models' distances to their mean,
               relative to it (the consensus distance)
  sent         by a node
  lambda_2     the graph's algebraic connectivity; of a schedule: of all edges
  mixing       the contraction, the factor by which an exchange on every edge
               shrinks the distance between the models: predicted from the
               spectrum, then measured in the closing rounds

One seed each: repeat with another --seed before you trust a small difference.
"""


@click.command("compare", epilog=EPILOG, params=[one for one in run_command.params if one.name in SHARED])
@click.argument("graphs", metavar="GRAPH...", nargs=-1, required=True)
@click.option("-n", "--nodes", type=click.IntRange(2), default=NODES, show_default=True, help="Number of nodes.")
@click.option(
    "--clock",
    type=click.Choice(["in-step", "apart"]),
    default="in-step",
    show_default=True,
    help="All in step, or each at its own pace.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw all against rounds, bytes and time.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@format_option("table", "json")
def command(*, graphs: tuple[str, ...], plot: Path | None, quiet: bool, form: Form, **asked: Any) -> int:
    """Train the built-in digits on each GRAPH, and compare: what nodes learn, how far apart they are, what they send.

    GRAPH is a specification or a file, as for `--topology`: see `p2pfl topology list`. Nodes are arrays, as with
    `p2pfl sim run --arrays`. Exits with 130 after Ctrl-C.
    """
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
