"""`p2pfl topology info` and `p2pfl topology compare`: the figures of one graph, or of several side by side."""

from __future__ import annotations

from typing import Any

import click

from topologies.cli import terminal
from topologies.cli.terminal import cell, format_option, write_facts, write_json, write_rows

CAUTION = "How fast a graph mixes does not alone say how well a network learns on it (Vogels et al., 2022)."
MEANING = """\b
What the words mean:
  algebraic connectivity   lambda_2, the second smallest eigenvalue of the Laplacian;
                           0 where disconnected
  certified                lambda_2 is proven to within a millionth; --certify tries harder
  mixing rate              what one round of averaging shrinks the distance to consensus by
  thinnest cut             the two sides of the narrowest place that was found
  robustness               r: of any two separate groups one has a node with r neighbors
                           outside (LeBlanc 2013)
  liars per node           mixes: with so many lying neighbors a node still mixes;
                           guaranteed: with so many the honest agree for certain;
                           at most: with more they may not, even if nobody lies
  a to b                   the value lies in between, and is not known better

\b
Of a schedule, or a directed graph:
  edges, diameter, algebraic connectivity   of all rounds together, without directions
  exact after              so many rounds after which every node has the mean itself
  asymptotic rate          as mixing rate, but in the long run
  certified                the mixing rate is right; connectivity certified: lambda_2 is

\b
Exit codes: 2 a mistake, 4 an eigenvalue did not converge, or --certify could not prove it.

\b
Examples:
  p2pfl topology info torus -n 36
  p2pfl topology info graph.json --model-bytes 400K --format json
  p2pfl topology info base:k=1 -n 25
"""


@click.command(
    "info",
    help=f"What the graph SPEC is like: how connected, how fast it mixes, what it bears.\n\n{terminal.SPEC_HELP}",
    epilog=f"{MEANING}\n\n{CAUTION}",
)
@terminal.spec_argument()
@terminal.nodes_option()
@terminal.seed_option()
@terminal.weights_option()
@terminal.epsilon_option()
@terminal.model_bytes_option()
@click.option("--certify", is_flag=True, help="Prove lambda_2, with minutes and gigabytes if need be.")
@format_option("table", "json")
def info_command(*, weights: str, certify: bool, form: str, **asked: Any) -> int:
    from topologies.spectral import check_weights  # noqa: PLC0415 - `--help` stays instant

    check_weights(weights)
    described = _described(weights=weights, certify=certify, **asked)
    write_json(described) if form == "json" else write_facts(_readable_facts(described))
    return _verdict(described, certify=certify)


def _described(
    *, spec: str, nodes: int | None, seed: int, weights: str, epsilon: float, certify: bool, model_bytes: int | None
) -> dict[str, Any]:
    from topologies.building import build_schedule, is_static, resolve  # noqa: PLC0415 - `--help` stays instant

    if is_static(spec) or nodes is None:
        from topologies.metrics.describe import survey  # noqa: PLC0415 - as above

        return survey(resolve(spec, nodes, seed), weights, epsilon, certify=certify, model_bytes=model_bytes)
    from topologies.metrics.describe import describe_schedule  # noqa: PLC0415 - as above

    described = describe_schedule(build_schedule(spec, nodes, seed), epsilon)
    if model_bytes is not None:
        messages = described["messages_to_consensus"]
        described["bytes_to_consensus"] = None if messages is None else messages * model_bytes
        described["bytes_per_round_busiest_node"] = described["degree"]["max"] * model_bytes
    return described


def _readable_facts(described: dict[str, Any]) -> dict[str, Any]:
    """For people: ranges in words, sizes with units, and nothing said twice."""
    facts: dict[str, Any] = {key: _readable(value) for key, value in described.items()}
    facts["diameter"] = facts.pop("diameter_bounds", facts["diameter"])
    for key in ("probable_lower_bound", "lower_bound"):
        if facts["certified"] or facts.get(key) is None:
            facts.pop(key, None)
    for key in ("converged", "mixing_converged"):
        facts.pop(key, None)  # what did not converge is an error of its own
    for key in ("bytes_to_consensus", "bytes_per_round_busiest_node"):
        if facts.get(key) is not None:
            facts[key] = terminal.readable_bytes(facts[key])
    if "liars_per_node" in facts:
        facts["liars_per_node"] = {key: _readable(value) for key, value in facts["liars_per_node"].items()}
    return facts


def _readable(value: Any) -> Any:
    """Two numbers in a list are a range."""
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(end, int | float) for end in value):
        return value
    low, high = (cell(end) for end in value)
    return low if low == high else f"{low} to {high}"


def _verdict(described: dict[str, Any], *, certify: bool) -> int:
    """4 where lambda_2 is not known, or not proven though that was asked for."""
    if not described.get("converged", True):
        text = "no eigenvalue converged: the algebraic connectivity is at most what is printed"
    elif not described.get("mixing_converged", True):
        text = "the eigenvalues behind the mixing rate did not converge"
    elif certify and not described["certified"]:
        text = "not certified: a proof was beyond its limits, or failed"
    else:
        return 0
    click.echo(f"error: {text}", err=True)
    return 4


IN_STEP = "Schedules mix this fast while all nodes are in the same round; those of a federation are not."
IN_BYTES = ("bytes", "busiest_bytes")
COLUMNS_HELP = """\b
Columns, any of which --sort takes; best first, unknown last, within each n:
  topology  n  edges  degree_max  lambda_2  mixing_rate  diameter
  rounds, messages, bytes   until consensus (--epsilon), from the worst start
  busiest_bytes             what the node with the most neighbors sends in a round
                            (it and bytes are in the table only with --model-bytes)
  certified                 lambda_2 is proven, not only computed

\b
Examples:
  p2pfl topology compare ring torus exponential -n 16,64,256 --sort rounds
  p2pfl topology compare ring base:k=1 -n 16 --model-bytes 400K --sort bytes
"""


class Sizes(click.ParamType):  # type: ignore[type-arg]  # generic only in later releases of click
    """Whole numbers joined by commas."""

    name = "n,n,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of sizes; allowed: whole numbers joined by commas, as 16,64", param, ctx)


@click.command(
    "compare",
    help=f"The graphs SPECS side by side: what each costs, and how fast it mixes.\n\n{terminal.SPEC_HELP}",
    epilog=COLUMNS_HELP,
)
@click.argument("specs", nargs=-1, required=True)
@click.option("-n", "--nodes", "sizes", type=Sizes(), default=None, help="How many nodes; several joined by commas.")
@click.option("--sort", default=None, help="A column; see below.  [default: as given]")
@terminal.weights_option()
@terminal.epsilon_option()
@terminal.seed_option()
@terminal.model_bytes_option()
@format_option("table", "json", "csv")
def compare_command(
    *, specs: tuple[str, ...], sizes: tuple[int, ...] | None, model_bytes: int | None, form: str, **asked: Any
) -> None:
    from topologies.building import is_static  # noqa: PLC0415 - `--help` stays instant
    from topologies.metrics.describe import compare  # noqa: PLC0415 - `--help` stays instant

    found = compare(specs, sizes or (), model_bytes=model_bytes, **asked)
    sized = model_bytes is not None
    write_rows([_readable_row(row, sized=sized) for row in found.rows] if form == "table" else found.rows, form)
    for missing in found.missing:
        click.echo(f"note: {missing}", err=True)
    if form == "table":
        click.echo(f"note: {CAUTION}", err=True)
        if not all(is_static(spec) for spec in specs):
            click.echo(f"note: {IN_STEP}", err=True)


def _readable_row(row: dict[str, Any], *, sized: bool) -> dict[str, Any]:
    """Sizes in words; no columns of dashes where no model has a size."""
    sizes = {key: terminal.readable_bytes(row[key]) for key in IN_BYTES}
    return {key: sizes.get(key, value) for key, value in row.items() if sized or key not in IN_BYTES}
