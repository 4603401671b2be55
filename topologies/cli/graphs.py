"""The commands that make something of graphs: `design` (which edges one should have), `simulate` (consensus of random
values, without learning and without a network), `attack` (what remains as nodes fail), `convert` and `plot`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topologies.cli import terminal
from topologies.cli.terminal import (
    check_target,
    far_options,
    format_option,
    nodes_option,
    progress,
    read_distances,
    seed_option,
    weights_option,
    write_facts,
    write_json,
    write_rows,
)
from topologies.errors import TopologyError

if TYPE_CHECKING:
    from topologies.design import Design
    from topologies.experiments import FailureState
    from topologies.graph import Topology

DESIGN_HELP = """Find the best graph for N nodes, at most 5000, and say why.

With a graph SPEC (a family, or a file) and --add K: that graph, and the K edges that help it most.
"""
DESIGN_EPILOG = """\
What a graph must be: connected, and within --max-degree. With --byzantine B every node has more than 2B neighbors and
the graph is (2B+1)-robust: then the honest agree with up to B liars beside each; above about 30 nodes that is often
unknown. Ties: fewer edges with rounds, time and lambda_2, the lower mixing rate with bytes and edges. With --far
the default is time; 28-29=60ms: nodes, and how far they are from all, one way.
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
@click.option("--within", type=terminal.Time(), default="2m", show_default=True, help="Stop searching then.")
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
    output: Path | None,
    form: str,
    far: Sequence[str],
    train: float,
    **requirements: Any,
) -> None:
    # for many small matrices, numpy's threads would wait for each other: eight times slower on a shared processor
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from topologies.design import design  # noqa: PLC0415 - `--help` stays instant
    from topologies.design.candidates import Goal  # noqa: PLC0415 - as above

    if output is not None:
        check_target(output)
    if minimize is not None and maximize is not None:
        raise TopologyError("two criteria", key="maximize", value=maximize, allowed="--minimize or --maximize")
    given = _given(spec, nodes, add, requirements["seed"])
    names = () if given is None else given.names
    count = nodes if given is None else given.nodes
    if count is None:
        raise TopologyError("how many nodes?", key="nodes", allowed="-n N, or a graph file and --add")
    apart = read_distances(count, names, far=far, train=train)
    minimize = minimize or ("rounds" if apart is None else "time")
    more: dict[str, Any] = {"distances": apart, "train_s": train, "given": given, "add": add or 0}
    goal = Goal(nodes=count, minimize=minimize, maximize=maximize, **more, **requirements)
    end = time.monotonic() + within
    with progress() as tell:
        result = design(goal, evaluations=evaluations, tell=tell, over=lambda: time.monotonic() > end)
    if output is not None:
        from topologies.files import write_topology  # noqa: PLC0415 - as above

        write_topology(_with_edges(result.winner.topology), output)
    _write(result, output, form)


def _given(spec: str | None, nodes: int | None, add: int | None, seed: int) -> Topology | None:
    """Return the graph to which edges are added; None if there is none."""
    if (spec is None) != (add is None):
        raise TopologyError("one without the other", key="add", value=add, allowed="a graph SPEC and --add, or neither")
    if spec is None:
        return None
    from topologies.families import resolve  # noqa: PLC0415 - `--help` stays instant

    given = resolve(spec, nodes, seed)
    if given.weights is not None:
        text = f"{spec} has mixing weights of its own: they are not looked at, and the new graph has none"
        click.echo(f"note: {text}; convert --weights optimal", err=True)
    return given


def _with_edges(topology: Topology) -> Topology:
    """Return the graph with its edges, if the search had only formulas."""
    from topologies.families import build  # noqa: PLC0415 - `--help` stays instant

    return build(topology.spec, topology.nodes, topology.seed) if topology.implicit else topology


def _write(design: Design, output: Path | None, form: str) -> None:
    from topologies.design import line, rows  # noqa: PLC0415 - `--help` stays instant

    listed = rows(design)
    use = line(design.winner, output)
    match form:
        case "json":
            known = {"proven": design.proven, "evaluations": design.evaluations, "stopped": design.stopped}
            write_json(known | {"line": use, "candidates": listed})
        case "csv":
            write_rows(listed, form)
        case _:
            _write_table(listed)
    _advise(design, use)


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


def _advise(design: Design, use: str | None) -> None:
    """Print on stderr what to write into the federation file."""
    click.echo(f"\nOne model is taken as {terminal.readable_bytes(design.goal.model_bytes)}.", err=True)
    if design.stopped:
        click.echo(
            "The time of --within was over before everything was tried: a longer search may find better.", err=True
        )
    if use is None:
        click.echo("Only a file can hold the best graph: -o graph.json writes one that a federation can use.", err=True)
        return
    click.echo("In the federation file, under [federation]:", err=True)
    for text in use.split("\n"):
        click.echo(f"  {text}", err=True)


SIMULATE_HELP = """\b
All nodes mix at once. At most 100,000 rounds, and fewer where a round has
more than 5,000 edges, so that all rounds together have 500 million; what is
not settled then, the notes say. --rounds may ask for ten times as many.

A schedule or a directed graph has its own weights.

Exit code 3: the graph is not connected, so that its nodes never agree.

\b
Examples:
  p2pfl topology simulate torus -n 36
  p2pfl topology simulate base:k=1 -n 12
"""


@click.command(
    "simulate",
    help=f"Bring random values on the nodes of SPEC to consensus, and compare with theory.\n\n{terminal.SPEC_HELP}",
    epilog=SIMULATE_HELP,
)
@click.argument("spec")
@terminal.nodes_option()
@click.option("--rounds", type=int, default=None, help="Exactly so many rounds.  [default: until a thousandth]")
@terminal.seed_option()
@terminal.weights_option()
@format_option("table", "json", "csv")
def simulate_command(*, spec: str, nodes: int | None, form: str, **asked: Any) -> None:
    from topologies.experiments import ConsensusSettings, simulate, simulate_schedule  # noqa: PLC0415 - instant --help
    from topologies.families import build_schedule, is_static, resolve  # noqa: PLC0415 - as above

    settings = ConsensusSettings(**asked)
    if nodes is None or is_static(spec):
        report = simulate(resolve(spec, nodes, settings.seed), settings)
    else:
        report = simulate_schedule(build_schedule(spec, nodes, settings.seed), settings)
    if form == "csv":
        write_rows(report.history, form)
    else:
        write_json(report.facts) if form == "json" else write_facts(report.facts)
    for note in report.notes:
        click.echo(f"note: {note}", err=True)


STRATEGIES_HELP = """\b
Strategies; each looks at what is left then:
  random  drawn uniformly, from --seed
  degree  the node with the most neighbors

A graph that falls apart is an answer: lambda 2 is 0 from then on, and the exit code stays 0.

What would take too long on a graph of this size is refused.
On a terminal a line tells how far it is.

\b
Examples:
  p2pfl topology attack ring -n 16 --remove 3
  p2pfl topology attack graph.json --remove 2 --strategy degree
"""


@click.command(
    "attack",
    help=f"What is left of SPEC as nodes fail, one at a time.\n\n{terminal.SPEC_HELP}",
    epilog=STRATEGIES_HELP,
)
@click.argument("spec")
@terminal.nodes_option()
@click.option("--remove", type=int, default=1, show_default=True, help="How many fail.")
@click.option("--strategy", default="random", show_default=True, help="Which fails next; see below.")
@terminal.seed_option()
@format_option("table", "json", "csv")
def attack_command(*, spec: str, nodes: int | None, remove: int, strategy: str, seed: int, form: str) -> None:
    from topologies.experiments import decay  # noqa: PLC0415 - as above
    from topologies.families import resolve  # noqa: PLC0415 - `--help` stays instant

    topology = resolve(spec, nodes, seed)
    with progress() as tell:
        result = decay(topology, remove, strategy, seed=seed, tell=tell)
    write_rows(_rows(result, topology.names, form), form)
    _note(result)


def _rows(states: Sequence[FailureState], names: Sequence[str], form: str) -> list[dict[str, Any]]:
    """Return the rows. What failed is a list; CSV has no lists."""
    rows = []
    for left in states:
        failed = [] if left.failed is None else [names[left.failed] if names else left.failed]
        rows.append(
            {
                "removed": left.removed,
                "failed": " ".join(map(str, failed)) if form == "csv" else failed,
                "lambda_2": left.algebraic_connectivity,
                "components": left.components,
                "largest": left.largest,
            }
        )
    return rows


def _note(states: Sequence[FailureState]) -> None:
    first = next((left for left in states if left.components > 1), None)
    if first is not None:
        click.echo(f"note: not connected after {first.removed} of {states[-1].removed} failures", err=True)


CONVERT_HELP = """Write the graph SOURCE to the file TARGET.

SOURCE is a graph file, or a family such as torus with -n. Either may be - for standard input or output, JSON by
default. Formats, told by suffix: json, edgelist (.edges .edgelist .txt), adjlist, graphml, gml, npz
(scipy). A file that is there is replaced.

Mixing weights that the edges of SOURCE have are kept (not in an adjlist). --weights writes others: nodes of a
federation whose topology is the file then mix with these. A weight is the share of their difference by which both ends
of an edge move in a round; those of a node add up to at most 1.
"""
CONVERT_EXAMPLES = """\b
Examples:
  p2pfl topology convert torus -n 36 torus.graphml
  p2pfl topology convert net.gml net.edges
  p2pfl topology convert net.json fast.json --weights optimal
  p2pfl topology convert - net.json --from edgelist
"""


@click.command("convert", help=CONVERT_HELP, epilog=CONVERT_EXAMPLES)
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
@nodes_option()
@seed_option()
@click.option("--from", "source_format", help="Format of SOURCE, where its suffix does not tell.")
@click.option("--to", "target_format", help="Format of TARGET, where its suffix does not tell.")
@click.option(
    "--weights",
    default=None,
    help="Write these weights: optimal, metropolis, best-constant, or none.  [default: those of SOURCE]",
)
def convert_command(
    *,
    source: str,
    target: Path,
    nodes: int | None,
    seed: int,
    source_format: str | None,
    target_format: str | None,
    weights: str | None,
) -> None:
    from topologies.families import resolve  # noqa: PLC0415 - `--help` stays instant
    from topologies.files import format_of, read_topology, write_topology  # noqa: PLC0415 - as above

    format_of(target, target_format)
    topology = read_topology(Path(source), nodes, source_format) if source_format else resolve(source, nodes, seed)
    if weights is not None:
        topology = _weighed(topology, weights)
    write_topology(topology, target, target_format)
    shown = "stdout" if str(target) == "-" else target
    click.echo(f"{shown}: nodes {topology.nodes}, edges {topology.edge_count}", err=True)


def _weighed(topology: Topology, weights: str) -> Topology:
    """Return the graph with these mixing weights on its edges. Raises TopologyError if no nodes could use them."""
    from topologies.errors import nearest, refuse_gone  # noqa: PLC0415 - `--help` stays instant
    from topologies.spectral import BY_DEGREE, own_weights, weighted  # noqa: PLC0415 - as above

    if weights == "none":
        return topology.with_weights(None)
    known = (*BY_DEGREE, "optimal", "none")
    if weights not in known:
        refuse_gone("weights", weights)
        raise TopologyError("unknown mixing weights", key="weights", value=weights, allowed=nearest(weights, known))
    weighed = topology.with_weights(weighted(topology, weights).c)
    own_weights(weighed)
    return weighed


PLOT_HELP = """Draw a graph.

SOURCE is a graph file, or a family with -n: the graph with its thinnest cut, its Laplacian spectrum, and how fast nodes
agree, up to 2000 nodes. `p2pfl topology compare` shows several.
"""
PLOT_EXAMPLES = """\b
Examples:
  p2pfl topology plot geometric -n 60 --seed 3 -o graph.png
  p2pfl topology plot net.graphml -o net.svg
"""


@click.command("plot", help=PLOT_HELP, epilog=PLOT_EXAMPLES)
@click.argument("source", metavar="SOURCE")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="A .png, .svg or .pdf file.")
@click.option("-n", "--nodes", type=int, metavar="N", help="How many nodes; a graph file has its own number.")
@seed_option()
@weights_option()
def plot_command(*, source: str, output: Path, nodes: int | None, seed: int, weights: str | None) -> None:
    from topologies.families import resolve  # noqa: PLC0415 - `--help` stays instant
    from topologies.plots import check_size, check_target, draw_single  # noqa: PLC0415 - as above

    check_target(output)
    if nodes is not None:
        check_size(nodes)
    draw_single(resolve(source, nodes, seed), output, weights)
    click.echo(f"picture: {output}", err=True)
