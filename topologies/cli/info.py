"""`p2pfl topology info`."""

from __future__ import annotations

import click

from topologies.cli.output import format_option, write_facts, write_json

SPEC_HELP = "SPEC is a name with its parameters, such as watts-strogatz:k=4,p=0.1, or the path of a graph file."
CAUTION = "How fast a graph mixes does not alone say how well a network learns on it (Vogels et al., 2022)."


@click.command("info", help=f"What the graph SPEC is like on N nodes.\n\n{SPEC_HELP}", epilog=CAUTION)
@click.argument("spec")
@click.option("-n", "--nodes", type=int, required=True, help="How many nodes.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the random families.")
@click.option(
    "--weights",
    default="metropolis",
    show_default=True,
    help="Mixing weights: metropolis, max-degree, best-constant or sample-weighted.",
)
@click.option(
    "--epsilon",
    type=float,
    default=1e-3,
    show_default=True,
    help="Consensus means the distance to it shrank to this fraction.",
)
@format_option("table", "json")
def command(*, spec: str, nodes: int, seed: int, weights: str, epsilon: float, form: str) -> None:
    from topologies.building import build  # noqa: PLC0415 - `--help` stays instant
    from topologies.metrics.describe import describe  # noqa: PLC0415 - `--help` stays instant

    described = describe(build(spec, nodes, seed), weights, epsilon)
    write_json(described) if form == "json" else write_facts(described)
