"""`p2pfl topology convert` and `p2pfl topology plot`: a graph as a file in another format, or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from topologies.cli.terminal import nodes_option, seed_option, weights_option
from topologies.errors import TopologyError

if TYPE_CHECKING:
    from topologies.graph import Topology


CONVERT_HELP = """Write the graph SOURCE to the file TARGET.

SOURCE is a graph file, or a family such as torus with -n. Either may be - for standard input or output, JSON by
default. Formats, told by suffix: json, edgelist (.edges .edgelist .txt), adjlist, graphml, gexf, gml, npz
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
    from topologies.building import resolve  # noqa: PLC0415 - `--help` stays instant
    from topologies.files import (  # noqa: PLC0415 - as above
        format_of,
        read_topology,
        write_topology,
    )

    format_of(target, target_format)
    topology = read_topology(Path(source), nodes, source_format) if source_format else resolve(source, nodes, seed)
    if weights is not None:
        topology = _weighed(topology, weights)
    write_topology(topology, target, target_format)
    shown = "stdout" if str(target) == "-" else target
    click.echo(f"{shown}: nodes {topology.nodes}, edges {topology.edge_count}", err=True)


def _weighed(topology: Topology, weights: str) -> Topology:
    """Return the graph with these mixing weights on its edges. Raises TopologyError if no nodes could use them."""
    from topologies.errors import nearest  # noqa: PLC0415 - `--help` stays instant
    from topologies.gone import refuse_gone  # noqa: PLC0415 - as above
    from topologies.spectral import BY_DEGREE, own_weights, weighted  # noqa: PLC0415 - as above

    if weights == "none":
        return topology.with_weights(None)
    known = (*BY_DEGREE, "optimal", "none")
    if weights not in known:
        refuse_gone("weights", weights)
        raise TopologyError("unknown mixing weights", key="weights", value=weights, allowed=nearest(weights, known))
    found = topology.with_weights(weighted(topology, weights).c)
    own_weights(found)
    return found


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
    from topologies.building import resolve  # noqa: PLC0415 - `--help` stays instant
    from topologies.plots import check_target  # noqa: PLC0415 - as above
    from topologies.plots.single import check_size, draw_single  # noqa: PLC0415 - as above

    check_target(output)
    if nodes is not None:
        check_size(nodes)
    draw_single(resolve(source, nodes, seed), output, weights)
    click.echo(f"picture: {output}", err=True)
