"""`p2pfl topology convert`."""

from __future__ import annotations

from pathlib import Path

import click

from topologies.cli.options import nodes_option, seed_option

HELP = """Write the graph SOURCE to the file TARGET.

SOURCE is a graph file, or a family such as torus with -n. Either may be - for standard input or output, JSON by
default. Formats, told by suffix: json, edgelist (.edges .edgelist .txt), adjlist, graphml, gexf, gml, metis (.metis
.graph), mtx (Matrix Market), npz (scipy). A file that is there is replaced.
"""
EXAMPLES = """\b
Examples:
  p2pfl topology convert torus -n 36 torus.graphml
  p2pfl topology convert net.gml net.edges
  p2pfl topology convert - net.json --from edgelist
"""


@click.command("convert", help=HELP, epilog=EXAMPLES)
@click.argument("source")
@click.argument("target", type=click.Path(path_type=Path))
@nodes_option()
@seed_option()
@click.option("--from", "source_format", help="Format of SOURCE, where its suffix does not tell.")
@click.option("--to", "target_format", help="Format of TARGET, where its suffix does not tell.")
def command(
    *, source: str, target: Path, nodes: int | None, seed: int, source_format: str | None, target_format: str | None
) -> None:
    from topologies.building import resolve  # noqa: PLC0415 - `--help` stays instant
    from topologies.files import read_topology, write_topology  # noqa: PLC0415 - as above
    from topologies.files.formats import format_of  # noqa: PLC0415 - as above

    format_of(target, target_format)
    topology = read_topology(Path(source), nodes, source_format) if source_format else resolve(source, nodes, seed)
    write_topology(topology, target, target_format)
    shown = "stdout" if str(target) == "-" else target
    click.echo(f"{shown}: nodes {topology.nodes}, edges {topology.edge_count}", err=True)
