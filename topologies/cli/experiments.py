"""Experiments on a graph: `p2pfl topology simulate`, consensus of random values without learning and without a network,
and `p2pfl topology attack`, what remains of a graph as parts of it fail. Nothing is sent to anyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topologies.cli import terminal
from topologies.cli.terminal import check_target, format_option, progress, write_facts, write_json, write_rows
from topologies.errors import TopologyError

if TYPE_CHECKING:
    from topologies.convergence import Consensus, ConsensusSettings
    from topologies.failures import Decay

MODES_HELP = """\b
Modes:
  sync    all nodes mix at once; predicted from eigenvalues
  gossip  one random edge averages its ends at each tick; predicted: bounds
          (Boyd et al., Randomized gossip algorithms, 2006, Theorem 3)

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
    help=f"Bring random values on the nodes of SPEC to consensus, and compare with theory.\n\n{terminal.SPEC_HELP}",
    epilog=MODES_HELP,
)
@terminal.spec_argument()
@terminal.nodes_option()
@click.option("--mode", default="sync", show_default=True, help="sync or gossip; see below.")
@click.option(
    "--rounds",
    type=int,
    default=None,
    help="Exactly so many rounds; in gossip, ticks at most.  [default: until a thousandth]",
)
@terminal.seed_option()
@terminal.weights_option()
@format_option("table", "json", "csv")
def simulate_command(*, spec: str, nodes: int | None, mode: str, form: str, **asked: Any) -> None:
    from topologies.convergence import ConsensusSettings  # noqa: PLC0415 - `--help` stays instant

    report = _simulate(spec, nodes, mode, ConsensusSettings(**asked))
    if form == "csv":
        write_rows(report.history, form)
    else:
        write_json(report.facts) if form == "json" else write_facts(report.facts)
    for note in report.notes:
        click.echo(f"note: {note}", err=True)


def _simulate(spec: str, nodes: int | None, mode: str, settings: ConsensusSettings) -> Consensus:
    from topologies.building import build_schedule, kind, resolve  # noqa: PLC0415 - `--help` stays instant
    from topologies.convergence import simulate  # noqa: PLC0415 - as above
    from topologies.family import GraphKind  # noqa: PLC0415 - as above

    if spec == "-" or nodes is None or kind(spec) is GraphKind.STATIC:
        return simulate(resolve(spec, nodes, settings.seed), mode, settings)
    from topologies.convergence import simulate_schedule  # noqa: PLC0415 - as above

    return simulate_schedule(build_schedule(spec, nodes, settings.seed), mode, settings)


STRATEGIES_HELP = """\b
Strategies; each looks at what is left then:
  random       drawn uniformly, from --seed
  degree       the node with the most neighbors
  fiedler      where the Fiedler vector says that lambda_2 falls most
  betweenness  the one that most shortest paths use (up to 1,000 nodes)

A graph that falls apart is an answer: lambda 2 is 0 from then on, and the exit code stays 0.

What would take too long on a graph of this size is refused.
On a terminal a line tells how far it is.

\b
Examples:
  p2pfl topology attack ring -n 16 --remove 3
  p2pfl topology attack graph.json --remove 2 --strategy betweenness
"""


@click.command(
    "attack",
    help=f"What is left of SPEC as nodes fail, one at a time.\n\n{terminal.SPEC_HELP}",
    epilog=STRATEGIES_HELP,
)
@terminal.spec_argument()
@terminal.nodes_option()
@click.option("--remove", type=int, default=1, show_default=True, help="How many fail.")
@click.option("--strategy", default="random", show_default=True, help="Which fails next; see below.")
@terminal.seed_option()
@click.option("-o", "--output", type=click.Path(), help="Write what is left in the end as a graph file.")
@format_option("table", "json", "csv")
def attack_command(
    *, spec: str, nodes: int | None, remove: int, strategy: str, seed: int, output: str | None, form: str
) -> None:
    from topologies.building import resolve  # noqa: PLC0415 - `--help` stays instant
    from topologies.failures import decay  # noqa: PLC0415 - as above
    from topologies.files import write_topology  # noqa: PLC0415 - as above

    if output == "-":
        raise TopologyError("the table goes there already", key="output", value=output, allowed="a file")
    if output is not None:
        check_target(Path(output))
    topology = resolve(spec, nodes, seed)
    with progress() as tell:
        found = decay(topology, remove, strategy, seed=seed, tell=tell)
    write_rows(_rows(found, topology.names, form), form)
    _note(found)
    if output is not None:
        write_topology(found.remaining, Path(output))


def _rows(decay: Decay, names: Sequence[str], form: str) -> list[dict[str, Any]]:
    """Return the rows. What failed is a list; CSV has no lists."""
    rows = []
    for left in decay.left:
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


def _note(decay: Decay) -> None:
    first = next((left for left in decay.left if left.components > 1), None)
    if first is not None:
        click.echo(f"note: not connected after {first.removed} of {decay.left[-1].removed} failures", err=True)
