"""`p2pfl topology augment`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topologies.cli import options
from topologies.cli.output import check_target, format_option, progress, write_json, write_rows

if TYPE_CHECKING:
    from topologies.graph import Edge

DRAWS = 20
DRAWS_LARGE = 3
LARGE = 500
EPILOG = """\b
Each edge is the single one that raises the algebraic connectivity (lambda_2) most;
above 1,000 nodes the best to first order (Ghosh and Boyd, 2006). A disconnected
graph is joined first. Where lambda_2 is a multiple eigenvalue, as in a ring, one edge
cannot raise it: the edge is chosen that prepares the next one best.
A higher lambda_2 does not always mean a lower mixing rate: an edge also changes the
mixing weights of its ends.
How many edges may be added depends on the size: to a ring all it has room for up to 80
nodes, 1,800 on 100, 21 on 500, 2 on 1,000, 47 on 2,000; more is refused, for it would
take too long. On a terminal a line tells how far it is.

\b
Examples:
  p2pfl topology augment ring -n 20 --add 4
  p2pfl topology augment graph.json --add 2 --max-degree 6 -o better.json
"""


@click.command("augment", help=f"Adds the edges that help the graph SPEC most.\n\n{options.SPEC_HELP}", epilog=EPILOG)
@options.spec_argument()
@options.nodes_option()
@click.option("--add", "count", type=int, required=True, help="How many edges.")
@click.option("--max-degree", type=int, default=None, help="Most neighbors of a node.  [default: no limit]")
@options.weights_option()
@options.epsilon_option()
@options.seed_option()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, help="Write the new graph here.")
@format_option("table", "json", "csv")
def command(
    *,
    spec: str,
    nodes: int | None,
    count: int,
    max_degree: int | None,
    weights: str,
    epsilon: float,
    seed: int,
    output: Path | None,
    form: str,
) -> None:
    # many small matrices: numpy's threads would wait for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from topologies.building import resolve  # noqa: PLC0415 - `--help` stays instant
    from topologies.design.augmenting import augment, by_chance  # noqa: PLC0415 - as above

    if output is not None:
        check_target(output)
    given = resolve(spec, nodes, seed)
    with progress() as tell:
        found = augment(given, count, max_degree, weights=weights, epsilon=epsilon, tell=tell)
    if output is not None:
        from topologies.files import write_topology  # noqa: PLC0415 - as above

        write_topology(found.topology, output)
    rows: list[dict[str, Any]] = [
        {
            "added": None if step.edge is None else _told(step.edge, given.names),
            "lambda_2": step.algebraic_connectivity,
            "mixing_rate": step.mixing_rate,
            "rounds": step.rounds,
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
    click.echo(f"\n{count} random edges instead: lambda_2 {chance:.6g}, mean of {draws} draws.", err=True)
    if found.steps[-1].components > 1:
        click.echo("Still not connected: more edges are needed.", err=True)
    if output is not None:
        click.echo(f'In the federation file, under [federation]:\n  topology = "{output.as_posix()}"', err=True)


def _told(edge: Edge, names: Sequence[str]) -> str:
    """By the names of a file's nodes, in which a hyphen may be."""
    i, j = edge
    return f"{names[i]} - {names[j]}" if names else f"{i}-{j}"
