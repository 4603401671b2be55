"""`p2pfl topology simulate`: consensus of random values on a graph, without learning and without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from topologies.cli import options
from topologies.cli.output import format_option, write_facts, write_json, write_rows

if TYPE_CHECKING:
    from topologies.simulation.report import Asked, Consensus

MODES_HELP = """\b
Modes:
  sync     all nodes mix at once; predicted from the eigenvalues of the mixing matrix
  gossip   one random edge averages its ends at each tick; predicted: between two bounds
           (Boyd et al., Randomized gossip algorithms, 2006, Theorem 3)
  delay    all nodes mix at once, with values up to --max-delay rounds old: the mean drifts

At most 100,000 rounds, and fewer where a round has more than 5,000 edges, so that all
rounds together have 500 million; what is not settled then, the notes say. --rounds may
ask for ten times as many.

A schedule or a directed graph has sync only, and its own weights.

Exit code 3: the graph is not connected, so that its nodes never agree.

\b
Examples:
  p2pfl topology simulate torus -n 36
  p2pfl topology simulate ring -n 12 --mode gossip
"""


@click.command(
    "simulate",
    help=f"Bring random values on the nodes of SPEC to consensus, and compare with theory.\n\n{options.SPEC_HELP}",
    epilog=MODES_HELP,
)
@options.spec_argument()
@options.nodes_option()
@click.option("--mode", default="sync", show_default=True, help="sync, gossip or delay; see below.")
@click.option(
    "--rounds",
    type=int,
    default=None,
    help="Exactly so many rounds; in gossip, ticks at most.  [default: until --epsilon]",
)
@options.epsilon_option()
@options.seed_option()
@options.weights_option()
@click.option("--dimension", type=int, default=1, show_default=True, help="Values at each node; not for gossip.")
@click.option("--runs", type=int, default=None, help="Runs of gossip.  [default: 2 / epsilon, at least 100]")
@click.option("--max-delay", type=int, default=3, show_default=True, help="Greatest age in rounds, for delay.")
@format_option("table", "json", "csv")
def simulate_command(
    *,
    spec: str,
    nodes: int | None,
    mode: str,
    rounds: int | None,
    epsilon: float,
    seed: int,
    weights: str,
    dimension: int,
    runs: int | None,
    max_delay: int,
    form: str,
) -> None:
    from topologies.simulation.report import Asked  # noqa: PLC0415 - `--help` stays instant

    asked = Asked(
        epsilon=epsilon,
        weights=weights,
        rounds=rounds,
        dimension=dimension,
        runs=runs,
        max_delay=max_delay,
        seed=seed,
    )
    report = _simulated(spec, nodes, mode, asked)
    if form == "csv":
        write_rows(report.history, form)
    else:
        write_json(report.facts) if form == "json" else write_facts(report.facts)
    for note in report.notes:
        click.echo(f"note: {note}", err=True)


def _simulated(spec: str, nodes: int | None, mode: str, asked: Asked) -> Consensus:
    from topologies.building import build_schedule, kind, resolve  # noqa: PLC0415 - `--help` stays instant
    from topologies.family import GraphKind  # noqa: PLC0415 - as above
    from topologies.simulation.report import simulate  # noqa: PLC0415 - as above

    if spec == "-" or nodes is None or kind(spec) is GraphKind.STATIC:
        return simulate(resolve(spec, nodes, asked.seed), mode, asked)
    from topologies.simulation.report import simulate_schedule  # noqa: PLC0415 - as above

    return simulate_schedule(build_schedule(spec, nodes, asked.seed), mode, asked)
