"""`p2pfl topology design` and `p2pfl topology augment`: which edges a graph should have."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topologies.cli import terminal
from topologies.cli.far_options import distances_of, far_options, read_distances
from topologies.cli.terminal import check_target, format_option, progress, write_json, write_rows
from topologies.errors import TopologyError

if TYPE_CHECKING:
    from topologies.design.augmenting import AugmentStep
    from topologies.design.designing import Design
    from topologies.graph import Edge, Topology

DESIGN_EPILOG = """\
What a graph must be: connected, within --max-degree and --budget-bytes (which a search for lambda_2 or time checks only
at its end). With --byzantine B every node has more than 2B neighbors and the graph is (2B+1)-robust: then the honest
agree with up to B liars beside each; above about 30 nodes that is often unknown, and schedules never qualify. Ties:
fewer edges with rounds, time and lambda_2, the lower mixing rate with bytes and edges. With --far the default is time;
28-29=60ms: nodes, and how far they are from all, one way. How it searches: docs/how-to/which-graph.md

\b
Examples:
  p2pfl topology design -n 20 --max-degree 6 --byzantine 1 -o graph.json
  p2pfl topology design -n 30 --max-degree 4 --far 28-29=60ms -o graph.json
"""


@click.command("design", help="Find the best graph for N nodes, and say why.", epilog=DESIGN_EPILOG)
@click.option("-n", "--nodes", type=int, required=True, help="How many nodes, at most 5000.")
@click.option("--max-degree", type=int, default=None, help="Most neighbors of a node.  [default: no limit]")
@click.option("--byzantine", type=int, default=0, show_default=True, help="Liars among the neighbors of a node.")
@click.option("--budget-bytes", type=terminal.Bytes(), default=None, help="Most that may be sent, such as 2G.")
@terminal.model_bytes_option("400K")
@click.option("--minimize", default=None, help="rounds, bytes, edges, time.  [default: rounds]")
@click.option("--maximize", default=None, help="lambda_2, in place of --minimize.")
@terminal.weights_option(by_degree=True)
@terminal.epsilon_option()
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
    minimize: str | None,
    maximize: str | None,
    evaluations: int | None,
    within: float,
    schedules: bool,
    top: int,
    output: Path | None,
    form: str,
    nodes: int,
    far: Sequence[str],
    distances: Path | None,
    near: float,
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
    apart = read_distances(nodes, (), far=far, distances=distances, near=near, train=train)
    minimize = minimize or ("rounds" if apart is None else "time")
    goal = Goal(nodes=nodes, minimize=minimize, maximize=maximize, distances=apart, train_s=train, **requirements)
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


DRAWS = 20
DRAWS_LARGE = 3
LARGE = 500
AUGMENT_EPILOG = """\
Each edge is the single one that raises the algebraic connectivity (lambda_2) most;
above 1,000 nodes the best to first order (Ghosh and Boyd, 2006). A disconnected
graph is joined first. Where lambda_2 is a multiple eigenvalue, as in a ring, one edge
cannot raise it: the edge is chosen that prepares the next one best.
A higher lambda_2 does not always mean fewer rounds: an edge also changes the mixing
weights of its ends. A warning says so if rounds rise; --minimize rounds exchanges the
edges for others until fewer rounds are needed with --weights (up to 500 nodes).
With --far or --distances each line has the time to consensus; it does not choose edges.
How many edges may be added depends on the size: to a ring all it has room for up to 80
nodes, 1,800 on 100, 21 on 500, 2 on 1,000, 47 on 2,000; more is refused, for it would
take too long.

\b
Examples:
  p2pfl topology augment ring -n 20 --add 4
  p2pfl topology augment graph.json --add 2 --max-degree 6 -o better.json
  p2pfl topology augment ring -n 30 --add 2 --far 28-29=60ms
"""


@click.command(
    "augment", help=f"Add the edges that help the graph SPEC most.\n\n{terminal.SPEC_HELP}", epilog=AUGMENT_EPILOG
)
@terminal.spec_argument()
@terminal.nodes_option()
@click.option("--add", "count", type=int, required=True, help="How many edges.")
@click.option("--max-degree", type=int, default=None, help="Most neighbors of a node.  [default: no limit]")
@click.option("--minimize", default=None, help="rounds.  [default: maximize lambda_2]")
@terminal.weights_option(by_degree=True)
@terminal.epsilon_option()
@terminal.seed_option()
@far_options
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, help="Write the new graph here.")
@format_option("table", "json", "csv")
def augment_command(
    *,
    spec: str,
    nodes: int | None,
    count: int,
    max_degree: int | None,
    minimize: str | None,
    weights: str,
    epsilon: float,
    seed: int,
    far: Sequence[str],
    distances: Path | None,
    near: float,
    train: float,
    output: Path | None,
    form: str,
) -> None:
    # for many small matrices, numpy's threads would wait for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from topologies.building import resolve  # noqa: PLC0415 - `--help` stays instant
    from topologies.design.augmenting import augment, by_chance  # noqa: PLC0415 - as above

    if output is not None:
        check_target(output)
    given = resolve(spec, nodes, seed)
    apart = distances_of(given, far=far, distances=distances, near=near, train=train)
    with progress() as tell:
        found = augment(
            given,
            count,
            max_degree,
            weights=weights,
            epsilon=epsilon,
            minimize=minimize,
            distances=apart,
            train_s=train,
            tell=tell,
        )
    if output is not None:
        from topologies.files import write_topology  # noqa: PLC0415 - as above

        write_topology(found.topology, output)
    rows: list[dict[str, Any]] = [
        {
            "added": None if step.edge is None else _edge_text(step.edge, given.names),
            "lambda_2": step.algebraic_connectivity,
            "mixing_rate": step.mixing_rate,
            "rounds": step.rounds,
            **({} if apart is None else {"seconds": step.seconds}),
            "components": step.components,
            "chosen": step.method,
        }
        for step in found.steps
    ]
    draws = DRAWS if given.nodes <= LARGE else DRAWS_LARGE
    chance = by_chance(given, count, max_degree, seed, draws)
    if form == "json":
        write_json({"steps": rows, "random_lambda_2": chance, "random_draws": draws})
    else:
        write_rows(rows, form)
    if given.weights is not None:
        text = f"{spec} has mixing weights of its own: they are not looked at, and the new graph has none"
        click.echo(f"note: {text}; convert --weights optimal", err=True)
    click.echo(f"\n{count} random edges instead: lambda_2 {chance:.6g}, mean of {draws} draws.", err=True)
    _warn_of_rounds(found.steps, minimize)
    if found.steps[-1].components > 1:
        click.echo("Still not connected: more edges are needed.", err=True)
    if output is not None:
        click.echo(f'In the federation file, under [federation]:\n  topology = "{output.as_posix()}"', err=True)


def _warn_of_rounds(steps: Sequence[AugmentStep], minimize: str | None) -> None:
    """Say it on stderr if the graph needs more rounds than before the edges were added."""
    slower = steps[0].seconds, steps[-1].seconds
    if slower[0] is not None and slower[1] is not None and slower[1] > 1.01 * slower[0]:
        text = f"warning: the time to consensus rises from {slower[0]:.3g} to {slower[1]:.3g} s: the edges are chosen"
        click.echo(f"{text} by lambda_2 or rounds, wherever the nodes are; `design --far` looks at times", err=True)
    before, after = steps[0].rounds, steps[-1].rounds
    if before is None or after is None or after <= before:
        return
    text = f"warning: rounds rise from {before} to {after}, although lambda_2 does not fall"
    if minimize is None:
        click.echo(f"{text}: new edges change the mixing weights. --minimize rounds looks at these, too.", err=True)
    else:
        click.echo(f"{text}: every edge that was tried does that; more edges may help.", err=True)


def _edge_text(edge: Edge, names: Sequence[str]) -> str:
    """Write the edge using the names of a file's nodes, which may contain a hyphen."""
    i, j = edge
    return f"{names[i]} - {names[j]}" if names else f"{i}-{j}"
