"""`p2pfl topology design`: which edges a graph should have."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topologies.cli import terminal
from topologies.cli.far_options import far_options, read_distances
from topologies.cli.terminal import check_target, format_option, progress, write_json, write_rows
from topologies.errors import TopologyError

if TYPE_CHECKING:
    from topologies.design.designing import Design
    from topologies.graph import Topology

DESIGN_HELP = """Find the best graph for N nodes, at most 5000, and say why.

With a graph SPEC (a family, or a file) and --add K: that graph, and the K edges that help it most.
"""
DESIGN_EPILOG = """\
What a graph must be: connected, and within --max-degree. With --byzantine B every node has more than 2B neighbors and
the graph is (2B+1)-robust: then the honest agree with up to B liars beside each; above about 30 nodes that is often
unknown, and schedules never qualify. Ties: fewer edges with rounds, time and lambda_2, the lower mixing rate with bytes
and edges. With --far the default is time; 28-29=60ms: nodes, and how far they are from all, one way.
How it searches: docs/how-to/which-graph.md

\b
Examples:
  p2pfl topology design -n 20 --max-degree 6 --byzantine 1 -o graph.json
  p2pfl topology design -n 30 --max-degree 4 --far 28-29=60ms -o graph.json
  p2pfl topology design ring -n 16 --add 3 -o better.json
"""


@click.command("design", help=DESIGN_HELP, epilog=DESIGN_EPILOG)
@click.argument("spec", required=False)
@terminal.nodes_option()
@click.option("--add", type=int, default=None, help="Keep the edges of SPEC, and add so many.")
@click.option("--max-degree", type=int, default=None, help="Most neighbors of a node.  [default: no limit]")
@click.option("--byzantine", type=int, default=0, show_default=True, help="Liars among the neighbors of a node.")
@terminal.model_bytes_option("400K")
@click.option("--minimize", default=None, help="rounds, bytes, edges, time.  [default: rounds]")
@click.option("--maximize", default=None, help="lambda_2, in place of --minimize.")
@terminal.weights_option(by_degree=True)
@terminal.seed_option()
@far_options
@click.option("--evaluations", type=click.IntRange(min=0), default=None, help="Graphs that the search tries.")
@click.option("--within", type=terminal.TimeLimit(), default="2m", show_default=True, help="Stop searching then.")
@click.option("--schedules", is_flag=True, help="Also look at schedules.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many to list.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, help="Write the best graph here.")
@format_option("table", "json", "csv")
def design_command(
    *,
    spec: str | None,
    nodes: int | None,
    add: int | None,
    minimize: str | None,
    maximize: str | None,
    evaluations: int | None,
    within: float,
    schedules: bool,
    top: int,
    output: Path | None,
    form: str,
    far: Sequence[str],
    distances: Path | None,
    train: float,
    **requirements: Any,
) -> None:
    # for many small matrices, numpy's threads would wait for each other: eight times slower on a shared processor
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from topologies.design.designing import design  # noqa: PLC0415 - `--help` stays instant
    from topologies.design.goal import Goal  # noqa: PLC0415 - as above

    if output is not None:
        check_target(output)
    if minimize is not None and maximize is not None:
        raise TopologyError("two criteria", key="maximize", value=maximize, allowed="--minimize or --maximize")
    given = _given(spec, nodes, add, requirements["seed"])
    names = () if given is None else given.names
    count = nodes if given is None else given.nodes
    if count is None:
        raise TopologyError("how many nodes?", key="nodes", allowed="-n N, or a graph file and --add")
    apart = read_distances(count, names, far=far, distances=distances, train=train)
    minimize = minimize or ("rounds" if apart is None else "time")
    more: dict[str, Any] = {"distances": apart, "train_s": train, "given": given, "add": add or 0}
    goal = Goal(nodes=count, minimize=minimize, maximize=maximize, **more, **requirements)
    end = time.monotonic() + within
    with progress() as tell:
        found = design(
            goal,
            evaluations=evaluations,
            schedules=schedules,
            top=top,
            tell=tell,
            over=lambda: time.monotonic() > end,
        )
    if output is not None and not found.winner.schedule:
        from topologies.files import write_topology  # noqa: PLC0415 - as above

        write_topology(_with_edges(found.winner.topology), output)
    _write(found, top, output, form)


def _given(spec: str | None, nodes: int | None, add: int | None, seed: int) -> Topology | None:
    """Return the graph to which edges are added; None if there is none."""
    if (spec is None) != (add is None):
        raise TopologyError("one without the other", key="add", value=add, allowed="a graph SPEC and --add, or neither")
    if spec is None:
        return None
    from topologies.building import resolve  # noqa: PLC0415 - `--help` stays instant

    given = resolve(spec, nodes, seed)
    if given.weights is not None:
        text = f"{spec} has mixing weights of its own: they are not looked at, and the new graph has none"
        click.echo(f"note: {text}; convert --weights optimal", err=True)
    return given


def _with_edges(topology: Topology) -> Topology:
    """Return the graph with its edges, if the search had only formulas."""
    from topologies.building import build  # noqa: PLC0415 - `--help` stays instant

    return build(topology.spec, topology.nodes, topology.seed) if topology.implicit else topology


def _write(design: Design, top: int, output: Path | None, form: str) -> None:
    from topologies.design.designing import line, rows  # noqa: PLC0415 - `--help` stays instant

    listed = rows(design, top)
    use = line(design.winner, output)
    match form:
        case "json":
            known = {"proven": design.proven, "evaluations": design.evaluations, "stopped": design.stopped}
            write_json(known | {"line": use, "candidates": listed})
        case "csv":
            write_rows(listed, form)
        case _:
            _write_table(listed)
    _advise(design, use, output)


def _write_table(rows: list[dict[str, Any]]) -> None:
    """Print the figures as a table, and below it the reasons, which are too long for a column."""
    figures = [{key: value for key, value in row.items() if key != "why"} for row in rows]
    for row in figures:
        row["bytes"] = terminal.readable_bytes(row["bytes"])
        if row.get("seconds") is not None:
            row["seconds"] = float(f"{row['seconds']:.3g}")
        row["qualifies"] = {True: "yes", False: "no", None: "unknown"}[row["qualifies"]]
        if not any(other["robust"] for other in rows):
            del row["robust"]
    write_rows(figures, "table")
    click.echo()
    for row in rows:
        click.echo(f"{row['rank'] or '-':>4}  {row['topology']}: {row['why']}")


def _advise(design: Design, use: str | None, output: Path | None) -> None:
    """Print on stderr what to write into the federation file."""
    best = design.winner
    click.echo(f"\nOne model is taken as {terminal.readable_bytes(design.goal.model_bytes)}.", err=True)
    if design.stopped:
        click.echo(
            "The time of --within was over before everything was tried: a longer search may find better.", err=True
        )
    if best.schedule and output is not None:
        click.echo(f"{output} is not written: the best is a schedule.", err=True)
    if use is None:
        click.echo("Only a file can hold the best graph: -o graph.json writes one that a federation can use.", err=True)
        return
    click.echo("In the federation file, under [federation]:", err=True)
    for text in use.split("\n"):
        click.echo(f"  {text}", err=True)
